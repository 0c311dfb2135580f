"""The edges that a test runs at; the native one only where it is built and not left out."""

import os
from importlib.util import find_spec

import pytest

IS_NATIVE_LEFT_OUT = (
    os.environ.get("KVORUM_EDGE") == "python" or find_spec("kvorum.network.edge._native") is None
)
needs_native = pytest.mark.skipif(
    IS_NATIVE_LEFT_OUT, reason="the native edge is not built, or KVORUM_EDGE=python leaves it out"
)
EDGES = ("python", pytest.param("native", marks=needs_native))
