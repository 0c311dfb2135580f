"""What may follow in a command line that is being typed: commands, flags, their values, keys."""

from collections.abc import Callable, Iterable, Sequence

from kvorum.cli.commands import Command, Flag
from kvorum.cli.completion import FILES, levels
from kvorum.cli.parsing import HELP

KEY_COMMANDS = ("get", "put", "del", "watch", "history", "diff", "tree")
"""Those whose arguments are keys."""

Keys = Callable[[str], Iterable[str]]
"""Returns the keys that begin so."""


class Offering:
    """The tree of commands, looked up by words."""

    def __init__(self, root: Command) -> None:
        self._levels = {each.at: each for each in levels(root)}
        self._taken_by_all = [*root.passed_on, HELP]

    def offers(self, before: Sequence[str], word: str, keys: Keys) -> list[str]:
        """Return what a word may become that stands behind others.

        What is whole ends with a blank; what more of may follow, such as a part of a key, does not.
        """
        at, flag = self._walk(before)
        begin = ""
        if not flag and word.startswith("--") and "=" in word:
            name, _, _ = word.partition("=")
            flag, begin = self._flag(at, name), f"{name}="
        if flag is not None:
            return _fitting((f"{begin}{value}" for value in flag.words), word)
        if word.startswith("-"):
            names = (f"--{each.name}" for each in (*self._levels[at].flags, *self._taken_by_all))
            return _fitting(names, word)
        if at.strip() in KEY_COMMANDS:
            return _parts(keys(word), word)
        return _fitting((name for name, _ in self._levels[at].following if name != FILES), word)

    def _walk(self, words: Sequence[str]) -> tuple[str, Flag | None]:
        """Return which command words name, and the flag whose value comes next."""
        at = ""
        flag: Flag | None = None
        for word in words:
            if flag is not None:
                flag = None
            elif word.startswith("-"):
                found = None if "=" in word else self._flag(at, word)
                flag = found if found is not None and found.kind != "bool" else None
            elif f"{at} {word}" in self._levels:
                at = f"{at} {word}"
        return at, flag

    def _flag(self, at: str, word: str) -> Flag | None:
        for flag in (*self._levels[at].flags, *self._taken_by_all):
            if word in (f"--{flag.name}", f"-{flag.short}"):
                return flag
        return None


def _fitting(words: Iterable[str], word: str) -> list[str]:
    return sorted({f"{each} " for each in words if each.startswith(word)})


def _parts(keys: Iterable[str], word: str) -> list[str]:
    """Return keys as far as their next separator, as files in directories are completed."""
    found = set()
    for key in keys:
        part, separator, _ = key[len(word) :].partition("/")
        found.add(f"{word}{part}{separator}" if separator else f"{key} ")
    return sorted(found)
