"""The style of the repository, as far as a machine can tell."""

import ast
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
LINES_MAX = 700
CODE = {".py", ".pyi", ".rs", ".proto"}
# Spelled in halves, so that this file does not hold them.
MARKERS = ["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK", "NotImplemented" + "Error"]
MARKERS += ["todo" + "!(", "unimplemented" + "!("]


def source_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout", allow_module_level=True)
    paths = [REPOSITORY / name for name in listed.stdout.splitlines()]
    return [path for path in paths if path.exists() and not is_generated(path)]


def is_generated(path: Path) -> bool:
    return path.is_relative_to(REPOSITORY / "src/kvorum/api/pb") or path.name == "Cargo.lock"


FILES = source_files()
CODE_FILES = [path for path in FILES if path.suffix in CODE]


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


@pytest.mark.parametrize("path", CODE_FILES, ids=name_of)
def test_no_file_is_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LINES_MAX


@pytest.mark.parametrize("path", CODE_FILES, ids=name_of)
def test_no_leftover_markers(path: Path) -> None:
    text = path.read_text()
    assert [marker for marker in MARKERS if marker in text] == []


@pytest.mark.parametrize("path", CODE_FILES, ids=name_of)
def test_every_module_opens_by_saying_what_it_is(path: Path) -> None:
    text = path.read_text()
    if path.suffix == ".py" and text.strip():
        assert ast.get_docstring(ast.parse(text)), "a module begins with its docstring"
    elif path.suffix == ".rs":
        assert text.startswith("//! "), "a module begins with its documentation"
    elif path.suffix == ".proto":
        assert text.startswith("// "), "a file begins with what it describes"


@pytest.mark.parametrize("path", [path for path in FILES if path.suffix == ".py"], ids=name_of)
def test_what_tests_share_lives_beside_them(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
        else:
            continue
        assert not [name for name in names if name.startswith("test_")]


def test_links_in_the_documentation_lead_somewhere() -> None:
    for path in FILES:
        if path.suffix == ".md":
            for target in path.read_text().split("](")[1:]:
                link = target.split(")")[0].split("#")[0]
                if link and "://" not in link:
                    assert (path.parent / link).exists(), f"{name_of(path)} links to {link}"
