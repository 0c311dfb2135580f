"""Keys and ranges of keys as users write them, and as requests hold them."""

from typing import Final, NamedTuple, TypeAlias

from kvorum.api.ranges import prefix_end

Text: TypeAlias = bytes | str
"""A key or a value: text is encoded as UTF-8."""

ALL: Final = b"\0"
"""As the end of a range: no upper bound."""


class KeyRange(NamedTuple):
    """One key, or with an end the keys from `key` up to, but not including, `end`."""

    key: bytes
    end: bytes


def as_bytes(text: Text, name: str = "key") -> bytes:
    """Return an argument as bytes; raises TypeError with its name if it is not bytes or text."""
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, bytes):
        return text
    if isinstance(text, bytearray | memoryview):
        return bytes(text)
    raise TypeError(f"{name} is {text!r}, of type {type(text).__name__}; expected bytes or str")


def as_number(number: int, name: str) -> int:
    """Return an argument; raises TypeError with its name if it is not a whole number."""
    if isinstance(number, int):
        return number
    hint = f"; expected its id: {name}.id" if hasattr(number, "id") else "; expected an int"
    raise TypeError(f"{name} is {number!r}, of type {type(number).__name__}{hint}")


def key_range(
    key: Text | None = None,
    *,
    prefix: Text | None = None,
    end: Text | None = None,
    from_key: Text | None = None,
) -> KeyRange:
    """Return the range for a key, a key and an end, a prefix, or all keys from one on."""
    given = [name for name, value in _named(key, prefix, from_key) if value is not None]
    if len(given) != 1:
        raise ValueError(
            f"{', '.join(given) or 'nothing'} was given; expected one of key, prefix, from_key"
        )
    if end is not None and key is None:
        raise ValueError(f"an end was given with {given[0]}; it goes with key alone")
    if prefix is not None:
        start = as_bytes(prefix, "prefix")
        return KeyRange(start or ALL, prefix_end(start))
    if from_key is not None:
        return KeyRange(as_bytes(from_key, "from_key") or ALL, ALL)
    assert key is not None
    return KeyRange(as_bytes(key), b"" if end is None else as_bytes(end, "end"))


def _named(
    key: Text | None, prefix: Text | None, from_key: Text | None
) -> tuple[tuple[str, Text | None], ...]:
    return ("key", key), ("prefix", prefix), ("from_key", from_key)
