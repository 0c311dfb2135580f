"""A class name means one thing: it occurs once, so that a reader finds the class by its name.

Public names follow the words of their users and may recur. A protocol may have the name of the
class that implements it.
"""

import ast
from collections import defaultdict
from importlib import import_module
from pathlib import Path

from tools.layers import SOURCE, modules

PUBLIC = ("kvorum.client", "kvorum.embed", "kvorum.raft", "kvorum.testing")
# The simulator has doubles of real parts; `make client` writes the client for threads.
LEFT_OUT = ("sim/", "client/sync/")
# The shells of the client, of which `make client` puts one in the place of the other.
TWINS = {"client/loop.py", "client/threads.py"}


def is_protocol(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).partition("[")[0] == "Protocol" for base in node.bases)


def places_of_classes(paths: list[Path]) -> dict[str, set[str]]:
    """Return the modules of every class that is no protocol, by its name."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in paths:
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(LEFT_OUT):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and not is_protocol(node):
                    found[node.name].add(name)
    return found


def is_public(name: str, module: str) -> bool:
    package = f"kvorum.{module.partition('/')[0]}"
    return package in PUBLIC and name in import_module(package).__all__


def test_class_names_occur_once() -> None:
    recurring = {
        name: sorted(places)
        for name, where in places_of_classes(modules()).items()
        if len(places := {each for each in where if not is_public(name, each)}) > 1
        and places != TWINS
    }
    assert recurring == {}
