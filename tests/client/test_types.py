"""Every public name of the client says its type, so that any checker of a program knows it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[2] / "src" / "kvorum" / "client"
MODULES = sorted(CLIENT.rglob("*.py"))


def assigned(node: ast.ClassDef) -> Iterator[tuple[str, bool]]:
    """Return the attributes of objects that a class sets, and whether it says their types."""
    for each in ast.walk(node):
        targets = each.targets if isinstance(each, ast.Assign) else []
        if isinstance(each, ast.AnnAssign):
            targets = [each.target]
        for target in targets:
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                yield target.attr, isinstance(each, ast.AnnAssign)


def untyped(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            attributes = list(assigned(node))
            typed = {name for name, is_typed in attributes if is_typed}
            names = {name for name, _ in attributes if not name.startswith("_")}
            found |= {f"{node.name}.{name}" for name in names - typed}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(CLIENT)))
def test_public_attributes_say_their_types(path: Path) -> None:
    assert untyped(path.read_text()) == set()


def test_one_that_does_not_is_found() -> None:
    source = (
        "class A:\n    def __init__(self):\n        self.a: int = 0\n        self.b = self._c = 1\n"
    )
    assert untyped(source) == {"A.b"}
