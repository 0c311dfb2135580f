"""Text as Go writes it: quoted strings, sizes; and text that is safe on a terminal."""

_ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")


def quoted(text: str | bytes) -> str:
    """Quote text as Go's %q does: printable characters unchanged, invalid UTF-8 as hex."""
    # Bytes that are not UTF-8 become surrogates, which `_escaped` turns into hex.
    decoded = text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else text
    if decoded.isprintable() and '"' not in decoded and "\\" not in decoded:
        return f'"{decoded}"'
    return '"' + "".join(map(_escaped, decoded)) + '"'


def printable(data: str | bytes, kept: str = "") -> str:
    """Escape all unprintable characters, so that a terminal interprets none of them.

    Characters in `kept`, for example line feeds, stay unchanged.
    """
    text = data.decode("utf-8", "surrogateescape") if isinstance(data, bytes) else data
    if text.isprintable():
        return text
    return "".join(each if each in kept or each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    known = _ESCAPES.get(character)
    if known is not None:
        return known
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    if character.isprintable():
        return character
    if number < 0x20 or number == 0x7F:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def human_bytes(count: int) -> str:
    """Return a size as people read it, in powers of 1000: `20 kB`, `2.1 GB`."""
    if count < 10:
        return f"{count} B"
    value, unit = float(count), "B"
    for unit in _UNITS:  # noqa: B007
        if value < 1000:
            break
        value /= 1000
    value = int(value * 10 + 0.5) / 10
    return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
