"""The grammar of scenario files, and rewriting them."""

from pathlib import Path

import pytest

from tests.raft.datadriven import Case, parse_directive, read_cases, run


def cases(path: Path, text: str) -> list[Case]:
    path.write_text(text)
    return [part for part in read_cases(path) if isinstance(part, Case)]


@pytest.mark.parametrize(
    ("line", "command", "arguments"),
    [
        ("campaign 1", "campaign", [("1", [])]),
        ('propose 1 "foo"', "propose", [("1", []), ('"foo"', [])]),
        ("add x=(1,2, 3)  y=", "add", [("x", ["1", "2", "3"]), ("y", [""])]),
        ("a b=c,d e=(f(g,h) ,i) j=()", "a", [("b", ["c,d"]), ("e", ["f(g,h) ", "i"]), ("j", [""])]),
        ("a x=1 x=2", "a", [("x", ["1"]), ("x", ["2"])]),
    ],
)
def test_directive(line: str, command: str, arguments: list[tuple[str, list[str]]]) -> None:
    assert parse_directive(line) == (command, arguments)


@pytest.mark.parametrize("line", ["a =b", "a b=(c"])
def test_a_directive_that_cannot_be_read(line: str) -> None:
    with pytest.raises(AssertionError):
        parse_directive(line)


def test_cases(tmp_path: Path) -> None:
    found = cases(
        tmp_path / "file",
        "# a comment\n\none \\\n  1\n# input\n\n  more  \n----\n# output\nsecond\n\n\n"
        "two\n----\n\nthree\n----\n----\nfirst\n\n----\nlast\n----\n----\n\nfour",
    )
    assert [case.command for case in found] == ["one", "two", "three", "four"]
    assert [case.input for case in found] == ["# input\n\n  more", "", "", ""]
    assert [case.expected for case in found] == [
        "# output\nsecond\n",
        "",
        "first\n\n----\nlast\n",
        "",
    ]
    assert found[0].positional() == [1]


def test_subtests(tmp_path: Path) -> None:
    path = tmp_path / "file"
    text = "subtest a\n\nsubtest a/b\nx\n----\nok\n\nsubtest end a/b\nsubtest end\n"
    assert [case.command for case in cases(path, text)] == ["x"]
    for broken in ("subtest a\n", "subtest end\n", "subtest a\nsubtest b\n"):
        with pytest.raises(AssertionError):
            cases(path, broken)


def test_rewriting(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("# why\necho\na\n----\nwrong\n\n\necho\nb\n\nc\n----\n")
    run(path, lambda case: case.input, rewrite=True)
    assert path.read_text() == (
        "# why\necho\na\n----\na\n\n\necho\nb\n\nc\n----\n----\nb\n\nc\n----\n----\n"
    )
    run(path, lambda case: case.input)
    with pytest.raises(AssertionError, match="file:2: echo"):
        run(path, lambda _: "other")
