"""`diff`: show what changed between two revisions, key by key.

The command reads both revisions side by side in key order, so that memory does not grow with the
store. It compares text values line by line, and prints other values whole and quoted.
"""

from collections.abc import Iterator
from difflib import unified_diff
from typing import NamedTuple

from kvorum.client.keys import KeyRange, key_range
from kvorum.client.sync.client import Client
from kvorum.client.values import KeyValue
from kvorum.tools.cli.errors import BAD_ARGUMENTS, CommandError
from kvorum.tools.cli.output import ResultOutput
from kvorum.tools.cli.terminal import painted
from kvorum.tools.cli.text import printable, quoted
from kvorum.tools.cli.values import decimal
from kvorum.tools.ctl.invocation import CtlInvocation
from kvorum.tools.ctl.keys import as_bytes
from kvorum.tools.ctl.lines import field, line_of
from kvorum.tools.ctl.pages import extent, keys_at

COMPARED_LINES_MAX = 2000
"""Longer values are printed whole, because a comparison takes quadratic time."""
NO_NEWLINE = "\\ No newline at end of value"
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_COLOURS = {"+": "green", "-": "red", "~": "yellow", "@": "cyan", "\\": "dim"}


class Difference(NamedTuple):
    """A key that differs between two revisions; None where the key does not exist."""

    before: KeyValue | None
    after: KeyValue | None

    @property
    def key(self) -> bytes:
        """The key."""
        kv = self.before or self.after
        assert kv is not None
        return kv.key

    @property
    def kind(self) -> str:
        """The kind of difference: added, removed or changed."""
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"


def diff(invocation: CtlInvocation) -> None:
    """Show what changed between two revisions."""
    older, newer = _revisions(invocation.texts("rev"))
    if len(invocation.arguments) > 1:
        raise CommandError("diff command takes one argument as prefix", BAD_ARGUMENTS)
    prefix = as_bytes(invocation.arguments[0]) if invocation.arguments else b""
    keys = key_range(prefix=prefix)
    output = invocation.output
    output.check("simple", "json")
    counts = dict.fromkeys(_SIGNS, 0)
    with invocation.client() as client:
        newer = newer or extent(invocation, client, keys).revision
        for each in differences(invocation, client, keys, older, newer):
            counts[each.kind] += 1
            if output.form == "json":
                output.write(line_of(_as_json(each, is_value_shown=not _is_short(invocation))))
            elif _is_short(invocation):
                sign = _SIGNS[each.kind]
                output.styled_line(painted(f"{sign} {quoted(each.key)}", _COLOURS[sign]))
            else:
                _show(output, each, older, newer)
    if output.form == "simple":
        shown = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        output.line(f"{shown} between revisions {older} and {newer}")


def _is_short(invocation: CtlInvocation) -> bool:
    return invocation.switch("keys-only")


def _revisions(texts: list[str]) -> tuple[int, int]:
    """Return the older and the newer revision; the newer one is 0 for the present."""
    try:
        numbers = [decimal(text) for text in texts]
    except ValueError as error:
        raise CommandError(f"bad revision: {error}", BAD_ARGUMENTS) from None
    if len(numbers) not in (1, 2) or min(numbers) < 1:
        raise CommandError(
            f"--rev was given as {', '.join(texts) or 'nothing'}; expected one or two revisions, "
            "the older one first: diff --rev A --rev B",
            BAD_ARGUMENTS,
        )
    return numbers[0], numbers[1] if len(numbers) > 1 else 0


def differences(
    invocation: CtlInvocation, client: Client, keys: KeyRange, older: int, newer: int
) -> Iterator[Difference]:
    """Yield the keys that differ between two revisions, in key order."""
    olds = keys_at(invocation, client, keys, older)
    news = keys_at(invocation, client, keys, newer)
    old, new = next(olds, None), next(news, None)
    while old is not None or new is not None:
        if new is None or (old is not None and old.key < new.key):
            yield Difference(old, None)
            old = next(olds, None)
        elif old is None or new.key < old.key:
            yield Difference(None, new)
            new = next(news, None)
        else:
            if not is_same(old, new):
                yield Difference(old, new)
            old, new = next(olds, None), next(news, None)


def is_same(one: KeyValue | None, other: KeyValue | None) -> bool:
    """Return whether value and lease are equal; revisions do not matter."""
    if one is None or other is None:
        return one is other
    return (one.value, one.lease) == (other.value, other.lease)


def _as_json(difference: Difference, *, is_value_shown: bool) -> dict[str, object]:
    def side(kv: KeyValue) -> dict[str, object]:
        return {
            "mod_revision": kv.mod_revision,
            **({"lease": f"{kv.lease:x}"} if kv.lease else {}),
            **(field("value", kv.value) if is_value_shown else {}),
        }

    before, after = difference.before, difference.after
    return {
        **field("key", difference.key),
        "change": difference.kind,
        **({} if before is None else {"before": side(before)}),
        **({} if after is None else {"after": side(after)}),
    }


def _show(output: ResultOutput, difference: Difference, older: int, newer: int) -> None:
    for sign, kv, revision in (
        ("---", difference.before, older),
        ("+++", difference.after, newer),
    ):
        shown = f"{quoted(difference.key)}, revision {revision}" if kv else "nothing"
        lease = f", lease {kv.lease:x}" if kv and kv.lease else ""
        output.styled_line(painted(f"{sign} {shown}{lease}", "bold"))
    before, after = difference.before, difference.after
    for line in changed_lines(before and before.value, after and after.value):
        colour = _COLOURS.get(line[:1])
        output.styled_line(painted(line, colour) if colour else line)


def changed_lines(before: bytes | None, after: bytes | None) -> list[str]:
    """Return the unified diff of two values, without its head."""
    olds, news = _lines(before), _lines(after)
    if olds is None or news is None:
        shown = [("-", before), ("+", after)]
        return [f"{sign}{quoted(value)}" for sign, value in shown if value is not None]
    if max(len(olds), len(news)) > COMPARED_LINES_MAX:
        return [f"-{line}" for line in olds] + [f"+{line}" for line in news]
    found = list(unified_diff(olds, news, lineterm=""))[2:]
    return [part for line in found for part in line.split("\n")]


def _lines(value: bytes | None) -> list[str] | None:
    """Return the lines of a text value; None if the value is not text.

    A last line without a line feed gets a note, so that it differs from one with a line feed.
    """
    if not value:
        return []
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    if printable(text, kept="\n\t") != text:
        return None
    *whole, last = text.split("\n")
    return [*whole, f"{last}\n{NO_NEWLINE}"] if last else whole
