"""Imports go downward only, and the deterministic parts reach no clock, thread or file."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tools.layers import LAYERS, PAGE, RANKS, SOURCE, module_index, modules, part_of

PACKAGES_MAX = 15
"""How many packages a newcomer finds directly below `kvorum`."""

# These parts receive what they need of the world through a seam.
DETERMINISTIC = {part for row in LAYERS[RANKS["member"] :] for part in row} | {
    "proxy",
    "server",
    "server/http",
    "server/peer",
    "server/rpc",
}
WORLD = {"asyncio", "os", "random", "secrets", "select", "socket", "threading", "time"}
WORLD |= {"kvorum.storage.files.real"}
WORLD |= {
    f"kvorum.storage.platform.{name}" for name in ("files", "processes", "readiness", "sockets")
}
# Modules that stand behind a seam: they are the world.
SEAMS = {"storage/files/real.py", "storage/backend/real.py"}
SEAMS |= {f"storage/platform/{name}.py" for name in ("files", "processes", "readiness", "sockets")}
SEAMS |= {
    f"client/{name}.py" for name in ("clocks", "loop", "options", "polling", "saving", "threads")
}


def imports(path: Path) -> Iterator[str]:
    """Every absolute module name a file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            yield node.module
            if node.module.split(".")[0] == "kvorum":
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def strays(path: Path) -> Iterator[str]:
    """What a module imports that its layer may not."""
    within = path.relative_to(SOURCE).as_posix()
    part = part_of(within)
    if part is None:
        assert within.endswith("__init__.py"), f"{within} has no place in tools/layers.py"
        yield from (f"{within} imports {name}" for name in imports(path))
        return
    for name in imports(path):
        package, _, rest = name.partition(".")
        if package == "kvorum" and rest and not rest.startswith("__"):
            other = part_of(rest.replace(".", "/"))
            if other is not None and other != part and RANKS[other] <= RANKS[part]:
                yield f"{within} imports {name}"
        if part in DETERMINISTIC and within not in SEAMS and WORLD & {package, name}:
            yield f"{within} imports {name}"


def test_imports_go_downward() -> None:
    assert [stray for path in modules() for stray in strays(path)] == []


def test_what_entries_do_sees_neither_raft_nor_the_log() -> None:
    """The layers keep it from the member; a clock is none of its imports anyway."""
    unseen = ("kvorum.raft", "kvorum.storage.wal", "kvorum.storage.snap", "kvorum.storage.files")
    seen = [
        f"{path.name} imports {name}"
        for path in sorted((SOURCE / "state" / "apply").glob("*.py"))
        for name in imports(path)
        if name.startswith(unseen) and not name.startswith("kvorum.raft.logger")
    ]
    assert seen == []


def test_a_newcomer_finds_few_packages() -> None:
    packages = [path.parent.name for path in SOURCE.glob("*/__init__.py")]
    assert len(packages) <= PACKAGES_MAX


def test_the_page_of_modules_is_up_to_date() -> None:
    assert PAGE.read_text() == module_index(), "run 'make modules'"


def test_the_rules_see_the_code() -> None:
    assert any("kvorum.api.descriptors" in imports(path) for path in modules())
