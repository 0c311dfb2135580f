"""The elements of a command line: commands, and the flags they take.

A tool's whole tree of commands is data, so that it loads fast; a command's function is imported
when the command runs. For the same reason these modules avoid typing, regular expressions and all
other imports that take as long as Python takes to start.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Value = bool | int | str | list[str]


class Flag:
    """A command-line option: its name, its kind of value, its help text."""

    __slots__ = ("default", "is_hidden", "kind", "name", "short", "text", "words")

    def __init__(
        self,
        name: str,
        kind: str,
        text: str,
        default: Value | None = None,
        *,
        short: str = "",
        words: Sequence[str] = (),
        is_hidden: bool = False,
    ) -> None:
        """Make a flag.

        `kind` is bool, string, strings, int, uint, uint32 or duration (nanoseconds); completion
        offers `words` as values.
        """
        self.name = name
        self.kind = kind
        self.text = text
        self.default: Value = zero(kind) if default is None else default
        self.short = short
        self.words = tuple(words)
        self.is_hidden = is_hidden


class Command:
    """A command: its name, its flags and arguments, the function that it runs."""

    __slots__ = (
        "arguments",
        "children",
        "description",
        "examples",
        "flags",
        "group",
        "is_exact",
        "is_hidden",
        "is_single_dashed",
        "name",
        "parent",
        "passed_on",
        "run",
        "summary",
        "words",
    )

    def __init__(
        self,
        name: str,
        summary: str,
        run: str = "",
        arguments: str = "",
        flags: Sequence[Flag] = (),
        *,
        children: Sequence[Command] = (),
        passed_on: Sequence[Flag] = (),
        group: str = "",
        description: str = "",
        examples: str = "",
        words: Sequence[str] = (),
        is_hidden: bool = False,
        is_exact: bool = False,
        is_single_dashed: bool = False,
    ) -> None:
        """Make a command.

        `run` names a function as `package.module:function`; without it, the command is a group
        that shows its help. The children also take the flags in `passed_on`. With `words`, the
        command takes exactly one argument, which is one of them. `is_exact` forbids shortening the
        command's name. `is_single_dashed` allows a single dash before flags, as in Go programs.
        """
        self.name = name
        self.summary = summary
        self.run = run
        self.arguments = arguments
        self.flags = tuple(flags)
        self.children = tuple(children)
        self.passed_on = tuple(passed_on)
        self.group = group
        self.description = description
        self.examples = examples
        self.words = tuple(words)
        self.is_hidden = is_hidden
        self.is_exact = is_exact
        self.is_single_dashed = is_single_dashed
        self.parent: Command | None = None
        for child in self.children:
            child.parent = self

    @property
    def path(self) -> str:
        """The full name of the command, from the tool's name on."""
        return self.name if self.parent is None else f"{self.parent.path} {self.name}"

    @property
    def root(self) -> Command:
        """The tool itself."""
        return self if self.parent is None else self.parent.root

    def child(self, name: str) -> Command | None:
        """Return the child of this name, or the only child whose name starts with it."""
        alike = []
        for each in self.children:
            if each.name == name:
                return each
            if each.name.startswith(name) and not each.is_exact:
                alike.append(each)
        return alike[0] if len(alike) == 1 else None

    def own_flags(self) -> list[Flag]:
        """Return the flags of this command alone, and those that it passes on."""
        return [*self.flags, *self.passed_on]

    def all_flags(self) -> Iterator[Flag]:
        """Yield the flags that the command takes, its own first."""
        yield from self.flags
        command: Command | None = self
        while command is not None:
            yield from command.passed_on
            command = command.parent


def zero(kind: str) -> Value:
    """Return the value that a flag of this kind has by default."""
    if kind == "bool":
        return False
    if kind == "string":
        return ""
    if kind == "strings":
        return []
    return 0
