"""Conversion of HTTP headers between bytes on the wire and latin-1 text for the loop."""

import re
from collections.abc import Iterable, Sequence

from kvorum.network.edge.interface import Headers
from kvorum.network.edge.pure.frames import Fields

BAD_VALUE = re.compile(rb"[\0-\x08\x0a-\x1f\x7f]")
"""Characters forbidden in values: control characters other than tabs."""


class Wanted:
    """Names of subscribed headers; a star at the end of a name matches any suffix."""

    __slots__ = ("_names", "_prefixes")

    def __init__(self, subscribed: Sequence[str]) -> None:
        self._names = {name.encode(): name for name in subscribed if not name.endswith("*")}
        self._prefixes = tuple(name[:-1].encode() for name in subscribed if name.endswith("*"))

    def name(self, name: bytes) -> str:
        """Return a name as text, or "" if it is not subscribed."""
        known = self._names.get(name, "")
        return known or (name.decode("latin-1") if name.startswith(self._prefixes) else "")

    def of(self, fields: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
        """Return those of a request's headers that are subscribed."""
        return [
            (known, value.decode("latin-1")) for name, value in fields if (known := self.name(name))
        ]


def encoded(headers: Headers) -> Fields:
    """Return an answer's headers as bytes, without those that HTTP cannot carry."""
    fields: Fields = []
    for name, value in headers:
        try:
            field = (name.lower().encode("ascii"), value.encode("latin-1"))
        except UnicodeEncodeError:
            continue
        if not BAD_VALUE.search(field[1]):
            fields.append(field)
    return fields
