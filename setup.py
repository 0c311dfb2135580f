"""Declares the native edge; everything else is in pyproject.toml.

KVORUM_EDGE decides: `python` builds no extension, `native` makes a failing build an error,
unset builds it where cargo works and goes on without it where it does not.
"""

import os

from setuptools import setup
from setuptools_rust import Binding, RustExtension

edge = os.environ.get("KVORUM_EDGE", "")
if edge not in ("", "native", "python"):
    raise SystemExit(f"KVORUM_EDGE is {edge!r}; expected 'native' or 'python', or leave it unset")

native = RustExtension(
    "kvorum.edge._native",
    path="rust/Cargo.toml",
    binding=Binding.PyO3,
    debug=False,
    optional=edge != "native",
    args=["--locked"],
)

setup(rust_extensions=[] if edge == "python" else [native])
