"""Imports go downward only, and the deterministic rooms reach no clock, thread or file."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
SOURCE = REPOSITORY / "src" / "kvorum"

# Each row may import the rows below it, never its own neighbours or a row above.
ROWS = [
    {"testing"},
    {"sim"},
    {"ctl", "utl"},
    {"doctor"},
    {"offline"},
    {"embed"},
    {"process"},
    {"cli"},
    {"proxy"},
    {"backup"},
    {"server"},
    {"discovery"},
    {"telemetry"},
    {"gateway"},
    {"rpc", "peer"},
    {"settings"},
    {"net"},
    {"edge"},
    {"compiled"},
    {"member"},
    {"mvcc", "lease", "auth", "membership"},
    {"wal", "snap", "backend"},
    {"files"},
    {"raft"},
    {"client"},
    {"api"},
]
RANK = {room: rank for rank, row in enumerate(ROWS) for room in row}

# What these rooms need of the world they are given through a seam.
DETERMINISTIC = {room for row in ROWS[ROWS.index({"member"}) :] for room in row} | {
    "gateway",
    "peer",
    "proxy",
    "rpc",
    "server",
}
WORLD = {"asyncio", "os", "random", "secrets", "select", "socket", "threading", "time"}
WORLD |= {"kvorum.files.real"}
# Modules that stand behind a seam: they are the world.
SEAMS = {"files/real.py", "backend/real.py"}
SEAMS |= {f"client/{name}.py" for name in ("clocks", "loop", "options", "saving", "threads")}


def modules() -> list[Path]:
    return sorted(SOURCE.glob("*/**/*.py"))


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
    within = str(path.relative_to(SOURCE))
    room = path.relative_to(SOURCE).parts[0]
    assert room in RANK, f"{room} has no place in the layers"
    for name in imports(path):
        package, _, rest = name.partition(".")
        if package == "kvorum" and rest and not rest.startswith("__"):
            other = rest.split(".")[0]
            if other != room and RANK[other] <= RANK[room]:
                yield f"{within} imports {name}"
        if room in DETERMINISTIC and within not in SEAMS and WORLD & {package, name}:
            yield f"{within} imports {name}"


def test_imports_go_downward() -> None:
    assert [stray for path in modules() for stray in strays(path)] == []


def test_the_page_on_the_architecture_has_the_same_layers() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    table = page.partition("## The rooms")[2].partition("\n## ")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("|")]
    assert [set(re.findall(r"`(\w+)/`", row)) for row in rows[2:]] == ROWS


def test_the_rules_see_the_code() -> None:
    assert any("kvorum.api.descriptors" in imports(path) for path in modules())
