"""What a command line is made of: commands, and the flags they take.

A tool's whole tree of commands is data, so that it is cheap to load; the function that a command
runs is imported when it runs. For the same reason these modules do without typing, regular
expressions and everything else that takes as long to import as Python takes to start.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Value = bool | int | str | list[str]


class Flag:
    """An option by its name, and how its text becomes a value."""

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

        `kind` is bool, string, strings, int, uint, uint32 or duration (nanoseconds); `words` are
        what completion offers as its value.
        """
        self.name = name
        self.kind = kind
        self.text = text
        self.default: Value = zero(kind) if default is None else default
        self.short = short
        self.words = tuple(words)
        self.is_hidden = is_hidden


class Command:
    """A command: what it is called, what it takes, what it runs."""

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
        that shows its help. `passed_on` are flags that the children take, too. `words` are the
        only arguments that it takes, one of them. One that `is_exact` cannot be shortened. The
        flags of one that `is_single_dashed` may have one dash, as programs of Go take them.
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
        """How it is called, from the tool's name on."""
        return self.name if self.parent is None else f"{self.parent.path} {self.name}"

    @property
    def root(self) -> Command:
        """The tool itself."""
        return self if self.parent is None else self.parent.root

    def child(self, name: str) -> Command | None:
        """Return the child of this name, or the only one whose name begins so."""
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
        """Go through the flags that it takes, its own first."""
        yield from self.flags
        command: Command | None = self
        while command is not None:
            yield from command.passed_on
            command = command.parent


def zero(kind: str) -> Value:
    """Return what a flag is that nobody gave."""
    if kind == "bool":
        return False
    if kind == "string":
        return ""
    if kind == "strings":
        return []
    return 0
