"""Completions for a command line that is being typed: commands, flags, their values, keys."""

from collections.abc import Callable, Iterable, Sequence

from kvorum.tools.cli.commands import Command, Flag
from kvorum.tools.cli.completion import FILES, levels
from kvorum.tools.cli.parsing import HELP

KEY_COMMANDS = ("get", "put", "del", "watch", "history", "diff", "tree")
"""The commands whose arguments are keys."""

Keys = Callable[[str], Iterable[str]]
"""Returns the keys that start with a text."""


class Offering:
    """Completes words from the tree of commands."""

    def __init__(self, root: Command) -> None:
        self._levels = {each.at: each for each in levels(root)}
        self._taken_by_all = [*root.passed_on, HELP]

    def list_completions(self, before: Sequence[str], word: str, keys: Keys) -> list[str]:
        """Return the completions of a word that follows the words in `before`.

        A complete word ends with a blank; a word that may grow, such as a part of a key, does not.
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
        """Return the command that words name, and the flag whose value comes next."""
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
    """Cut keys behind their next separator, as shells complete files in directories."""
    found = set()
    for key in keys:
        part, separator, _ = key[len(word) :].partition("/")
        found.add(f"{word}{part}{separator}" if separator else f"{key} ")
    return sorted(found)
