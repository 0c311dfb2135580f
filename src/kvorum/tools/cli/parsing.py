"""Parse the words of a command line into a command, its flags and its arguments.

The rules are those of etcd's tools: flags may stand anywhere before `--`, booleans take a value
only with `=`, and a command may be shortened to any unambiguous prefix.
"""

from __future__ import annotations

from kvorum.tools.cli.commands import Command, Flag
from kvorum.tools.cli.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvorum.tools.cli.commands import Value

SIMILAR_EDITS_MAX = 2
HELP = Flag("help", "bool", "Show this help", short="h")


class Given:
    """A parsed command line."""

    __slots__ = ("arguments", "changed", "command", "dash_at", "is_help_asked", "values")

    def __init__(self, command: Command) -> None:
        self.command = command
        self.values: dict[str, Value] = {}
        """The values of all flags of the command, by the flags' names."""
        self.changed: set[str] = set()
        """The names of the flags that were given."""
        self.arguments: list[str] = []
        self.dash_at = -1
        """The number of arguments before `--`; -1 without `--`."""
        self.is_help_asked = False


def parse(root: Command, words: Sequence[str]) -> Given:
    """Read a command line; raises UsageError."""
    command, rest = _find(root, list(words))
    if command is root and root.children:
        unknown = next(iter(_without_flags(root, rest)), None)
        if unknown is not None:
            raise UsageError(
                f'unknown command "{unknown}" for "{root.name}"{_similar(root, unknown)}',
                f"Run '{root.name} --help' for usage.\n",
            )
    try:
        given = parse_flags(command, rest)
        if command.words and not given.is_help_asked:
            _check_word(command, given.arguments)
        return given
    except ValueError as error:
        from kvorum.tools.cli.help import usage_text

        raise UsageError(str(error), f"{usage_text(command)}\n") from None


def parse_flags(command: Command, words: Sequence[str]) -> Given:
    """Read the flags and arguments of a command; raises ValueError with the words of etcd's tools.

    A flag that is given twice has its last value; a list of strings has them all.
    """
    given = Given(command)
    flags: dict[str, Flag] = {}
    for flag in (*command.all_flags(), HELP):
        flags.setdefault(flag.name, flag)
        given.values.setdefault(flag.name, flag.default)
    shorts = {flag.short: flag for flag in flags.values() if flag.short}
    left = iter(words)
    for word in left:
        if word == "--":
            given.dash_at = len(given.arguments)
            given.arguments.extend(left)
        elif word.startswith("--"):
            _take_long(given, flags, word, left)
        elif command.is_single_dashed and word[:1] == "-" and word[1:].partition("=")[0] in flags:
            _take_long(given, flags, f"-{word}", left)
        elif word.startswith("-") and word != "-":
            _take_shorts(given, shorts, word, left)
        else:
            given.arguments.append(word)
    given.is_help_asked = given.values[HELP.name] is True
    return given


def _check_word(command: Command, arguments: Sequence[str]) -> None:
    if len(arguments) != 1:
        raise ValueError(f"accepts 1 arg(s), received {len(arguments)}")
    if arguments[0] not in command.words:
        raise ValueError(f'invalid argument "{arguments[0]}" for "{command.path}"')


def _take_long(given: Given, flags: dict[str, Flag], word: str, left: Iterator[str]) -> None:
    name, is_assigned, value = word[2:].partition("=")
    if not name or name.startswith("-"):
        raise ValueError(f"bad flag syntax: {word}")
    flag = flags.get(name)
    if flag is None:
        raise ValueError(f"unknown flag: --{name}")
    if not is_assigned:
        if flag.kind == "bool":
            value = "true"
        else:
            following = next(left, None)
            if following is None:
                raise ValueError(f"flag needs an argument: --{name}")
            value = following
    _set(given, flag, value)


def _take_shorts(given: Given, shorts: dict[str, Flag], word: str, left: Iterator[str]) -> None:
    letters = word[1:]
    while letters:
        letter, rest = letters[0], letters[1:]
        flag = shorts.get(letter)
        if flag is None:
            raise ValueError(f"unknown shorthand flag: '{letter}' in -{letters}")
        # As in etcdctl, an equals sign at the end does not separate a value.
        if rest.startswith("=") and len(rest) > 1:
            _set(given, flag, rest[1:])
            return
        if flag.kind == "bool":
            _set(given, flag, "true")
            letters = rest
            continue
        value = rest or next(left, None)
        if value is None:
            raise ValueError(f"flag needs an argument: '{letter}' in -{letters}")
        _set(given, flag, value)
        return


def _set(given: Given, flag: Flag, text: str) -> None:
    from kvorum.tools.cli.values import parse_value

    try:
        value = parse_value(flag.kind, text)
    except ValueError as error:
        from kvorum.tools.cli.text import quoted

        name = f"-{flag.short}, --{flag.name}" if flag.short else f"--{flag.name}"
        raise ValueError(f'invalid argument {quoted(text)} for "{name}" flag: {error}') from None
    if flag.kind == "strings" and flag.name in given.changed:
        before = given.values[flag.name]
        assert isinstance(before, list) and isinstance(value, list)
        value = before + value
    given.values[flag.name] = value
    given.changed.add(flag.name)


def _find(root: Command, words: list[str]) -> tuple[Command, list[str]]:
    command = root
    while command.children:
        name = next(iter(_without_flags(command, words)), None)
        child = None if name is None else command.child(name)
        if child is None or name is None:
            break
        words = _without_first(command, words, name)
        command = child
    return command, words


def _takes_next(flags: dict[str, Flag], word: str) -> bool:
    """Whether the word after this flag is its value; unknown flags are taken to have one."""
    if "=" in word:
        return False
    if word.startswith("--"):
        flag = flags.get(word[2:])
    elif len(word) == 2:
        flag = next((each for each in flags.values() if each.short == word[1]), None)
    else:
        return False
    return flag is None or flag.kind != "bool"


def _without_flags(command: Command, words: Sequence[str]) -> list[str]:
    """Return the words that may name a command; stop at a flag whose value is the last word."""
    flags = {flag.name: flag for flag in (*command.all_flags(), HELP)}
    found: list[str] = []
    at = 0
    while at < len(words) and words[at] != "--":
        word = words[at]
        at += 1
        if word.startswith("-"):
            if _takes_next(flags, word):
                if len(words) - at <= 1:
                    break
                at += 1
        elif word:
            found.append(word)
    return found


def _without_first(command: Command, words: list[str], name: str) -> list[str]:
    """Return the words without the first `name` that is not a flag's value."""
    flags = {flag.name: flag for flag in (*command.all_flags(), HELP)}
    at = 0
    while at < len(words) and words[at] != "--":
        word = words[at]
        if word == name:
            return words[:at] + words[at + 1 :]
        at += 2 if word.startswith("-") and _takes_next(flags, word) else 1
    return words


def _similar(root: Command, name: str) -> str:
    found = [
        each.name
        for each in root.children
        if not each.is_hidden
        and (
            _edits(name.lower(), each.name.lower()) <= SIMILAR_EDITS_MAX
            or each.name.lower().startswith(name.lower())
        )
    ]
    lines = "".join(f"\t{each}\n" for each in found)
    return f"\n\nDid you mean this?\n{lines}" if lines else ""


def _edits(one: str, other: str) -> int:
    """Return the edit distance between two words."""
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        diagonal, row[0] = row[0], i
        for j, wanted in enumerate(other, 1):
            diagonal, row[j] = (
                row[j],
                min(row[j] + 1, row[j - 1] + 1, diagonal + (letter != wanted)),
            )
    return row[-1]
