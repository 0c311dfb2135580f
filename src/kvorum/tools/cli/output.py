"""The formats that results are printed in: simple, fields, json, protobuf and table.

A command renders its result in the formats simple, fields and table; json and protobuf show the
message itself. A command refuses a format that its result lacks only after its work is done, as
etcd's tools do.
"""

from __future__ import annotations

import sys

from kvorum.tools.cli.errors import BAD_FEATURE, CommandError
from kvorum.tools.cli.text import printable, quoted

FORMATS = ("simple", "fields", "json", "protobuf", "table")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, BinaryIO, TypeVar

    Message = Any
    """A protobuf message; its descriptor lists the fields."""
    M = TypeVar("M")

_HTML = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


class ResultOutput:
    """Writes results to a stream, in one of the formats."""

    __slots__ = ("_is_terminal", "_out", "form", "is_hex")

    def __init__(self, form: str, *, is_hex: bool = False, out: BinaryIO | None = None) -> None:
        self.form = form
        self.is_hex = is_hex
        """Whether to show keys, values and ids in hexadecimal, in formats that support it."""
        self._is_terminal = out is None and sys.stdout.isatty()
        self._out = sys.stdout.buffer if out is None else out

    def write(self, data: bytes | str) -> None:
        """Write data unchanged, but escape control characters for a terminal."""
        if self._is_terminal:
            data = printable(data, kept="\n\t")
        self._out.write(data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data)

    def line(self, text: bytes | str = "") -> None:
        """Write a line."""
        self.write(text)
        self._out.write(b"\n")

    def flush(self) -> None:
        """Flush the stream, for results that arrive one after the other."""
        self._out.flush()

    def message(self, message: Message) -> None:
        """Write a protobuf message as bytes, even to a terminal, as etcd's tools do."""
        self._out.write(message.SerializeToString())

    def styled_line(self, text: str) -> None:
        """Write a line that may hold control sequences; its data must be printable already."""
        self._out.write(text.encode("utf-8", "surrogateescape") + b"\n")

    def bytes_line(self, data: bytes) -> None:
        """Write a key or a value, which may be any bytes, as a line of the format simple."""
        self.line("".join(f"\\x{byte:02x}" for byte in data) if self.is_hex else data)

    def field(self, name: str, value: int | str | bytes | bool) -> None:
        """Write a line of the format fields."""
        if isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, int):
            text = str(value)
        else:
            text = quoted(value)
        self.line(f'"{name}" : {text}')

    def id_field(self, name: str, value: int) -> None:
        """Write the id of a cluster or a member as a line of the format fields."""
        self.line(f'"{name}" : {value:x}' if self.is_hex else f'"{name}" : {value}')

    def header_fields(self, header: Message) -> None:
        """Write the header of an answer in the format fields."""
        self.id_field("ClusterID", header.cluster_id)
        self.id_field("MemberID", header.member_id)
        if header.revision > 0:
            self.field("Revision", header.revision)
        self.field("RaftTerm", header.raft_term)

    def show(
        self,
        result: M,
        simple: Callable[[M], None],
        *,
        fields: Callable[[M], None] | None = None,
        table: Callable[[M], None] | None = None,
        json: Callable[[M], object] | None = None,
        has_protobuf: bool = True,
    ) -> None:
        """Print a result in the chosen format, or refuse the format.

        `json` returns the dictionaries, lists and plain values to print instead of the message.
        """
        match self.form:
            case "simple":
                simple(result)
            case "fields" if fields is not None:
                fields(result)
            case "table" if table is not None:
                table(result)
            case "json":
                self.line(json_text(as_json(result) if json is None else json(result)))
            case "protobuf" if has_protobuf:
                self.message(result)
            case _:
                raise self._refusal()

    def check(self, *forms: str) -> None:
        """Refuse other formats before any work, for results that arrive in pieces."""
        if self.form not in forms:
            raise self._refusal()

    def _refusal(self) -> CommandError:
        return CommandError(f"{self.form} not supported as output format", BAD_FEATURE)


def check_format(form: str) -> None:
    """Refuse a word that is not a format."""
    if form not in FORMATS:
        raise CommandError("unsupported output format", BAD_FEATURE)


def as_json(message: Message) -> dict[str, object]:
    """Return a message as Go's encoding/json shows its struct.

    Fields keep their declared order and names. Zero values are left out, enums are numbers, bytes
    are base64. The field that is set in a oneof is wrapped in `Response`, as in Go's struct.
    """
    found: dict[str, object] = {}
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated:
            values = getattr(message, field.name)
            if len(values):
                found[field.name] = [_json_value(field, each) for each in values]
        elif field.message_type is not None:
            if message.HasField(field.name):
                shown = as_json(getattr(message, field.name))
                if field.containing_oneof is not None:
                    found["Response"] = {field.name: shown}
                else:
                    found[field.name] = shown
        else:
            value = getattr(message, field.name)
            if value:
                found[field.name] = _json_value(field, value)
    return found


def _json_value(field: Any, value: Any) -> object:
    if field.message_type is not None:
        return as_json(value)
    if isinstance(value, bytes):
        from base64 import b64encode

        return b64encode(value).decode()
    return value


def json_text(value: object) -> str:
    """Write JSON on one line as Go does; 64-bit numbers are not quoted."""
    import json

    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    for character, escaped in _HTML.items():
        text = text.replace(character, escaped)
    text = text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return text.encode("utf-8", "replace").decode()


def table_text(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Draw a table with centred heads in capitals and right-aligned cells."""
    cells = [list(row) for row in rows]
    heads = [head.replace("_", " ").upper() for head in heads]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]

    def rule(left: str, between: str, right: str) -> str:
        return left + between.join("─" * (width + 2) for width in widths) + right

    def line(texts: Iterable[str]) -> str:
        return f"│{'│'.join(f' {text} ' for text in texts)}│"

    return "\n".join(
        (
            rule("┌", "┬", "┐"),
            line(_centred(head, width) for head, width in zip(heads, widths, strict=True)),
            *([rule("├", "┼", "┤")] if cells else ()),
            *(
                line(text.rjust(width) for text, width in zip(row, widths, strict=True))
                for row in cells
            ),
            rule("└", "┴", "┘"),
        )
    )


def _centred(text: str, width: int) -> str:
    left = (width - len(text)) // 2
    return " " * left + text + " " * (width - len(text) - left)
