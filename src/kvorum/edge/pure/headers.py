"""Headers of HTTP as bytes on the wire and as text for the loop, each byte a character."""

import re
from collections.abc import Iterable, Sequence

from kvorum.edge.interface import Headers
from kvorum.edge.pure.frames import Fields

BAD_VALUE = re.compile(rb"[\0-\x08\x0a-\x1f\x7f]")
"""What no value may have: control characters other than tabs."""


class Wanted:
    """Subscribed names; one that ends in a star stands for all that begin with what precedes it."""

    __slots__ = ("_names", "_prefixes")

    def __init__(self, subscribed: Sequence[str]) -> None:
        self._names = {name.encode(): name for name in subscribed if not name.endswith("*")}
        self._prefixes = tuple(name[:-1].encode() for name in subscribed if name.endswith("*"))

    def name(self, name: bytes) -> str:
        """Return a name as text, or "" if it is not subscribed."""
        known = self._names.get(name, "")
        return known or (name.decode("latin-1") if name.startswith(self._prefixes) else "")

    def of(self, fields: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
        """Return the subscribed ones of a request's headers."""
        return [
            (known, value.decode("latin-1")) for name, value in fields if (known := self.name(name))
        ]


def encoded(headers: Headers) -> Fields:
    """Return an answer's headers as bytes; those that HTTP cannot carry are left out."""
    fields: Fields = []
    for name, value in headers:
        try:
            field = (name.lower().encode("ascii"), value.encode("latin-1"))
        except UnicodeEncodeError:
            continue
        if not BAD_VALUE.search(field[1]):
            fields.append(field)
    return fields
