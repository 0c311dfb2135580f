"""The style of the repository, as far as a machine can tell."""

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
LINES_MAX = 700
CODE = {".py", ".pyi", ".rs", ".proto"}
# Spelled in halves, so that this file does not hold them.
MARKERS = ["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK", "NotImplemented" + "Error"]
MARKERS += ["todo" + "!(", "unimplemented" + "!("]
# Not parsed: there are fifteen hundred files.
DOCSTRING = re.compile(r'(?:#.*\n|\s)*r?"""')
IMPORT = re.compile(r"^[ \t]*(?:from|import) [^(\n]*(?:\([^)]*\))?", re.MULTILINE)
TEST_NAME = re.compile(r"\btest_")


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


def test_no_file_is_too_long() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in CODE_FILES}
    assert {name: lines for name, lines in lengths.items() if lines > LINES_MAX} == {}


def test_no_leftover_markers() -> None:
    assert [
        (name_of(path), marker)
        for path in CODE_FILES
        for marker in MARKERS
        if marker in path.read_text()
    ] == []


def says_what_it_is(path: Path) -> bool:
    text = path.read_text()
    if path.suffix == ".py" and text.strip():
        return DOCSTRING.match(text) is not None
    if path.suffix == ".rs":
        return text.startswith("//! ")
    return path.suffix != ".proto" or text.startswith("// ")


def test_every_module_opens_by_saying_what_it_is() -> None:
    assert [name_of(path) for path in CODE_FILES if not says_what_it_is(path)] == []


def test_what_tests_share_lives_beside_them() -> None:
    assert [
        (name_of(path), statement)
        for path in CODE_FILES
        if path.suffix == ".py"
        for statement in IMPORT.findall(path.read_text())
        if TEST_NAME.search(statement)
    ] == []


def test_links_in_the_documentation_lead_somewhere() -> None:
    for path in FILES:
        if path.suffix == ".md":
            for target in path.read_text().split("](")[1:]:
                link = target.split(")")[0].split("#")[0]
                if link and "://" not in link:
                    assert (path.parent / link).exists(), f"{name_of(path)} links to {link}"
