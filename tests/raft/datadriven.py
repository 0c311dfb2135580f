"""Reads and rewrites scenario files: directives, input, and the output they must give.

A case is a directive line, input lines up to `----`, and the expected output up to a blank
line. Output that holds a blank line stands between two pairs of `----`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Case:
    """One directive: `key`, `key=value` and `key=(value, value)` arguments in their order."""

    command: str
    arguments: list[tuple[str, list[str]]] = field(default_factory=list)
    input: str = ""
    expected: str = ""
    line: int = 0
    source: list[str] = field(default_factory=list)  # the lines up to and including `----`

    def values(self, key: str) -> list[str]:
        return next((values for name, values in self.arguments if name == key), [])

    def has(self, key: str) -> bool:
        return any(name == key for name, _ in self.arguments)

    def text(self, key: str, default: str = "") -> str:
        values = self.values(key)
        assert len(values) <= 1, f"{key} takes one value, was given {values}"
        return values[0] if values else default

    def number(self, key: str, default: int = 0) -> int:
        return int(self.text(key, str(default)))

    def flag(self, key: str) -> bool:
        return parse_flag(self.text(key, "false"))

    def positional(self) -> list[int]:
        return [int(name) for name, values in self.arguments if not values]


def parse_flag(text: str) -> bool:
    if text in ("1", "t", "T", "TRUE", "true", "True"):
        return True
    assert text in ("0", "f", "F", "FALSE", "false", "False"), f"{text!r} is no boolean"
    return False


def parse_directive(line: str) -> tuple[str, list[tuple[str, list[str]]]]:
    command, _, rest = line.partition(" ")
    arguments = []
    rest = rest.strip()
    while rest:
        end = next((at for at, letter in enumerate(rest) if letter in " ="), len(rest))
        key, rest = rest[:end], rest[end:]
        assert key, f"an argument without a name in {line!r}"
        values: list[str] = []
        if rest.startswith("=("):
            values, rest = _parse_list(rest[2:], line)
        elif rest.startswith("="):
            value, _, rest = rest[1:].partition(" ")
            values = [value]
        arguments.append((key, values))
        rest = rest.strip()
    return command, arguments


def _parse_list(rest: str, line: str) -> tuple[list[str], str]:
    values: list[str] = []
    value, depth = "", 1
    for at, letter in enumerate(rest):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:
            return [*values, value], rest[at + 1 :]
        if letter == "," and depth == 1:
            values.append(value)
            value = ""
        elif letter != " " or value:
            value += letter
    raise AssertionError(f"a parenthesis is not closed in {line!r}")


class _Lines:
    """The lines of a file, and the position of the reader."""

    def __init__(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        self.lines = [line.removesuffix("\r") for line in text.split("\n")]
        if self.lines[-1] == "":
            self.lines.pop()
        self.at = 0

    def next(self) -> str | None:
        if self.at >= len(self.lines):
            return None
        self.at += 1
        return self.lines[self.at - 1]

    def until(self, ends: Callable[[str], bool]) -> list[str]:
        taken = []
        while (line := self.next()) is not None and not ends(line):
            taken.append(line)
        return taken


def read_cases(path: Path) -> Iterator[Case | list[str]]:
    """Yield cases, and between them the lines that belong to none."""
    lines = _Lines(path)
    subtests: list[str] = []
    while (line := lines.next()) is not None:
        directive = line.strip()
        if not directive or directive.startswith("#"):
            yield [line]
            continue
        case = Case("", line=lines.at)
        start = lines.at - 1
        while directive.endswith("\\") and (more := lines.next()) is not None:
            directive = directive[:-1] + " " + more.strip()
        case.command, case.arguments = parse_directive(directive)
        if case.command == "subtest":
            _subtest(case, subtests)
            yield lines.lines[start : lines.at]
            continue
        given = lines.until(lambda line: line == "----")
        case.input = "\n".join(given).strip()
        case.source = lines.lines[start : lines.at]
        case.expected = "".join(f"{line}\n" for line in _read_expected(lines))
        yield case
    assert not subtests, f"{path}: subtest {subtests[-1]} does not end"


def _subtest(case: Case, subtests: list[str]) -> None:
    names = [name for name, _ in case.arguments]
    if names[0] == "end":
        assert subtests and names[1:] in ([], [subtests[-1]]), f"line {case.line}: no such subtest"
        subtests.pop()
        return
    assert not subtests or names[0].startswith(f"{subtests[-1]}/"), f"line {case.line}: {names[0]}"
    subtests.append(names[0])


def _read_expected(lines: _Lines) -> list[str]:
    first = lines.next()
    if first is None or not first.strip():
        return []
    if first != "----":
        return [first, *lines.until(lambda line: not line.strip())]
    taken: list[str] = []
    while (line := lines.next()) is not None:
        if line == "----" and taken and taken[-1] == "----":
            after = lines.next()
            assert not after, f"line {lines.at}: {after!r} follows the closing pair"
            return taken[:-1]
        taken.append(line)
    raise AssertionError("the expected output does not end")


def with_newline(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def run(path: Path, handler: Callable[[Case], str], *, rewrite: bool = False) -> None:
    """Run every case; compare the outputs, or write them into the file."""
    lines: list[str] = []
    for part in read_cases(path):
        if isinstance(part, list):
            lines += part
            continue
        actual = with_newline(handler(part))
        if not rewrite:
            where = f"{path.name}:{part.line}: {part.command}"
            assert actual == part.expected, f"{where}\n{actual}"
        lines += part.source + _expectation(actual)
    if rewrite:
        path.write_text("\n".join(lines).rstrip("\n") + "\n", encoding="utf-8")


def _expectation(actual: str) -> list[str]:
    lines = actual.removesuffix("\n").split("\n") if actual else []
    if any(not line.strip() for line in lines):
        return ["----", *lines, "----", "----", ""]
    return [*lines, ""]
