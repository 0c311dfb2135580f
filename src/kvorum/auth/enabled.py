"""Data of a cluster whose authentication is enabled: this version has none, and must not serve it.

Data protected by passwords would be open to everybody. So it is refused wherever it may come in: a
restored snapshot, a migrated directory, a leader's snapshot, a start. Users and roles of a cluster
that does not use them are kept, and no reason to refuse.
"""

from collections.abc import Iterable
from typing import Final, Protocol

from kvorum.backend.buckets import AUTH, AUTH_ENABLED

REASON: Final = (
    "authentication is enabled in it, which this version does not have, and its keys would be open "
    "to everybody"
)

_ENABLED: Final = b"\x01"


class Source(Protocol):
    """A database in any form: an image, a view, a backend."""

    def items(self, bucket: bytes, /) -> Iterable[tuple[bytes, bytes]]:
        """Return the entries of a bucket."""


def is_enabled(source: Source) -> bool:
    """Return whether only authenticated users may use what a database holds.

    In an image this uses up the one walk through that bucket: a caller that copies the image opens
    another.
    """
    return dict(source.items(AUTH)).get(AUTH_ENABLED) == _ENABLED


# Requests of the log by the numbers of their fields. The first ones only read, or disable what is
# not enabled: etcd sends them through its log all the same.
WITHOUT_EFFECT: Final = frozenset((1011, 1012, 1013, 1102, 1106, 1107, 1202))
_FIRST: Final = 1000
_LAST: Final = 1299


def is_change(kind: int) -> bool:
    """Return whether a request of the log changes users, roles, or whether they are used."""
    return _FIRST <= kind <= _LAST and kind not in WITHOUT_EFFECT
