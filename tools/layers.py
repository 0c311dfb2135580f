"""The layers of the package: which part may import which, and the index of all modules.

`make modules` writes docs/modules.md from this table and from the first line of each module.
"""

import ast
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
SOURCE = REPOSITORY / "src" / "kvorum"
RUST = REPOSITORY / "rust"
CRATES = {
    "src": "The native edge, and the extension module that exports all native code.",
    "storage/src": "The native storage code, which the extension links.",
}
PAGE = REPOSITORY / "docs" / "modules.md"

LAYERS = (
    ("testing",),
    ("sim",),
    ("tools/ctl", "tools/utl"),
    ("tools/doctor",),
    ("tools/offline",),
    ("embed",),
    ("process",),
    ("tools/cli",),
    ("proxy",),
    ("tools/backup",),
    ("server",),
    ("process/discovery",),
    ("server/telemetry",),
    ("server/http",),
    ("server/rpc", "server/peer"),
    ("process/settings",),
    ("network",),
    ("network/edge",),
    ("compiled",),
    ("member",),
    ("state/apply",),
    ("state/mvcc", "state/lease", "state/auth", "state/membership"),
    ("storage/wal", "storage/snap", "storage/backend"),
    ("storage/files",),
    ("storage/platform",),
    ("raft",),
    ("client",),
    ("client/grpc",),
    ("api",),
)
"""A part may import the parts of the rows below its own, never its neighbours or a row above."""

RANKS = {part: rank for rank, row in enumerate(LAYERS) for part in row}

HEAD = """# Modules

Every module with the first line of its docstring, the top layer first. A part may import the parts
below it. [architecture.md](architecture.md) explains how they work together. `make modules` writes
this page.
"""


def part_of(path: str) -> str | None:
    """Return the part to which a path below `kvorum` belongs; None for a package of parts."""
    names = path.split("/")
    for depth in (2, 1):
        part = "/".join(names[:depth])
        if part in RANKS:
            return part
    return None


def modules() -> list[Path]:
    """Return every module inside the packages; generated ones are left out."""
    found = sorted(SOURCE.glob("*/**/*.py"))
    return [path for path in found if "pb" not in path.relative_to(SOURCE).parts]


def _first_line(path: Path) -> str:
    if path.suffix == ".rs":
        text = path.read_text().splitlines()
        lines = [line.removeprefix("//!").strip() for line in text if line.startswith("//!")]
        return " ".join(lines[: [*lines, ""].index("")])
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(docstring.partition("\n\n")[0].split())


def _table(rows: list[tuple[str, str]]) -> str:
    cells = [f"| `{name}` | {text.replace('|', chr(92) + '|')} |" for name, text in rows]
    return "\n".join(["| module | what it does |", "| --- | --- |", *cells]) + "\n"


def module_index() -> str:
    """Return the page that lists all modules."""
    sections = [HEAD]
    paths = {path.relative_to(SOURCE).as_posix(): path for path in modules()}
    for part in (part for row in LAYERS for part in row):
        opening = _first_line(SOURCE / part / "__init__.py")
        own = [name for name in paths if part_of(name) == part]
        rows = [
            (name.removeprefix(f"{part}/"), _first_line(paths[name]))
            for name in own
            if not name.endswith("__init__.py")
        ]
        sections.append(f"## `{part}/`\n\n{opening}\n\n{_table(rows)}")
    for crate, opening in CRATES.items():
        sources = RUST / crate
        rows = [
            (path.relative_to(sources).as_posix(), _first_line(path))
            for path in sorted(sources.rglob("*.rs"))
        ]
        sections.append(f"## `rust/{crate}/`\n\n{opening}\n\n{_table(rows)}")
    return "\n".join(sections)


if __name__ == "__main__":
    PAGE.write_text(module_index())
