"""Keys and values in JSON for people and programs: text as text, everything else in base64.

A key that is UTF-8 is `"key": "…"`, any other key `"key_base64": "…"`; the same holds for values.
"""

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from typing import BinaryIO

BASE64 = "_base64"
LINE_BYTES_MAX = 64 << 20
"""A longer line counts as truncated."""


def field(name: str, data: bytes) -> dict[str, str]:
    """Return the JSON field for bytes, in base64 if they are not UTF-8."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}{BASE64}": b64encode(data).decode()}


def bytes_of(fields: Mapping[str, object], name: str) -> bytes:
    """Return the bytes that a field holds; raises ValueError."""
    text = fields.get(name)
    if isinstance(text, str):
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise ValueError(f'"{name}" is no text; bytes go into "{name}{BASE64}"') from None
    encoded = fields.get(f"{name}{BASE64}")
    if not isinstance(encoded, str):
        raise ValueError(f'neither "{name}" nor "{name}{BASE64}" is there as a string')
    try:
        return b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f'"{name}{BASE64}" is no base64: {error}') from None


def line_of(fields: Mapping[str, object]) -> bytes:
    """Return a line of JSON."""
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file up to the first truncated one."""
    while (line := file.readline(LINE_BYTES_MAX)).endswith(b"\n"):
        yield line


def laid_out(value: bytes) -> str | None:
    """Return a JSON object or list indented on several lines; None for other values."""
    if value.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        text = json.dumps(json.loads(value), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    # JSON escapes only some of the characters that a terminal interprets.
    return "".join(
        each if each == "\n" or each.isprintable() else json.dumps(each)[1:-1] for each in text
    )
