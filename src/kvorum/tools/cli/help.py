"""The texts of a tool's help: descriptions, usage, tables of flags."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvorum.api.durations import duration_text
from kvorum.tools.cli.commands import Command, Flag
from kvorum.tools.cli.parsing import HELP

if TYPE_CHECKING:
    from kvorum.tools.cli.commands import Value

NAME_WIDTH_MIN = 11
_KINDS = {"bool": "", "strings": "strings", "string": "string", "duration": "duration"}


def help_text(command: Command) -> str:
    """Return the full help of a command."""
    about = command.description or command.summary
    text = f"{about.rstrip()}\n\n{usage_text(command)}"
    tool = command.root
    if not _has_options(tool):
        return text
    return (
        f'{text}Use "{tool.name} options" for a list of global command-line options '
        "(applies to all commands).\n"
    )


def usage_text(command: Command) -> str:
    """Return the usage of a command."""
    parts = [f"Usage:\n  {_usage_line(command)}\n"]
    if command.examples:
        parts.append(f"Examples:\n{command.examples.rstrip()}\n")
    shown = sorted((each for each in command.children if not each.is_hidden), key=_by_name)
    if shown:
        width = max(NAME_WIDTH_MIN, *(len(each.name) for each in shown))
        groups: dict[str, list[Command]] = {}
        for each in shown:
            groups.setdefault(each.group, []).append(each)
        order = dict.fromkeys(each.group for each in command.children)
        for group in (each for each in order if each in groups):
            lines = (f"  {each.name:<{width}} {each.summary}\n" for each in groups[group])
            parts.append(f"{group or 'Available Commands:'}\n{''.join(lines)}")
    if command.parent is not None or not _has_options(command):
        parts.append(f"Flags:\n{flags_text([*command.own_flags(), HELP])}")
    taken = [flag for flag in _inherited(command) if not flag.is_hidden]
    if taken:
        parts.append(f"Global Flags:\n{flags_text(taken)}")
    if shown:
        parts.append(f'Use "{command.path} [command] --help" for more information about a command.')
        return "\n".join(parts) + "\n"
    return "\n".join(parts)


def flags_text(flags: Iterable[Flag]) -> str:
    """Return a line for each flag, in the order of their names."""
    rows = []
    for flag in sorted(flags, key=lambda each: each.name):
        if flag.is_hidden:
            continue
        short = f"-{flag.short}, " if flag.short else "    "
        kind = _KINDS.get(flag.kind, flag.kind)
        rows.append((f"  {short}--{flag.name}{kind and ' '}{kind}", f"{flag.text}{_default(flag)}"))
    width = max(len(left) for left, _ in rows)
    return "".join(f"{left:<{width}}   {right}\n" for left, right in rows)


def _default(flag: Flag) -> str:
    value = flag.default
    if not value:
        return ""
    text = f'"{value}"' if isinstance(value, str) else value_text(flag, value)
    return f" (default {text})"


def value_text(flag: Flag, value: Value) -> str:
    """Return a flag's value as Go writes it."""
    if isinstance(value, list):
        return f"[{','.join(value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    return duration_text(value) if flag.kind == "duration" else str(value)


def _usage_line(command: Command) -> str:
    words = [command.path]
    if command.children:
        words.append("[command]")
    else:
        words.extend(word for word in (command.arguments,) if word)
        if command.parent is not None and not command.words:
            words.append("[flags]")
    return " ".join(words)


def _inherited(command: Command) -> list[Flag]:
    """Return the flags of enclosing groups; the tool's own only without a command `options`."""
    found: list[Flag] = []
    group = command.parent
    while group is not None:
        if group.parent is not None or not _has_options(group):
            found.extend(group.passed_on)
        group = group.parent
    return found


def _has_options(tool: Command) -> bool:
    """Return whether a tool has a command `options`, which lists the global flags."""
    return any(each.name == "options" for each in tool.children)


def _by_name(command: Command) -> str:
    return command.name
