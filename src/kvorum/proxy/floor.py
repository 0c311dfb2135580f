"""The floor: the newest revision in answers that clients of this proxy have received.

Calls go to members in turn, and some members lag behind others. The floor is parsed from the
headers of answers, but only when a read needs it: few writes are followed by a read at once.
"""

from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from kvorum.api.codec import read_varint
from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs

HEADER_BYTES_MAX: Final = 64
"""Longer than any answer's header: four numbers and the field that encloses them."""
UNREAD_MAX: Final = 512
WRITES: Final = (
    rpcs.PUT.path,
    rpcs.DELETE_RANGE.path,
    rpcs.TXN.path,
    rpcs.LEASE_REVOKE.path,
    "/v3lockpb.Lock/Lock",
    "/v3lockpb.Lock/Unlock",
    "/v3electionpb.Election/Campaign",
    "/v3electionpb.Election/Proclaim",
    "/v3electionpb.Election/Resign",
)
"""The calls that may change keys; the header is the first field of each of their answers."""


def revision_of(answer: bytes) -> int:
    """Return the revision in the header that begins an answer; 0 if there is none."""
    try:
        if answer[:1] != b"\x0a":
            return 0
        length, at = read_varint(answer, 1)
        header = pb.ResponseHeader.FromString(answer[at : at + length])
    except (DecodeError, IndexError, ValueError):
        return 0
    revision: int = header.revision
    return revision


class Floor:
    """Tracks the newest revision that clients have received."""

    __slots__ = ("_revision", "_unread", "take_relayed")

    def __init__(self) -> None:
        self._revision = 0
        self.take_relayed: Callable[[], int] | None = None
        """Returns the newest revision in relayed answers since its last call; these pass `note`
        by."""
        self._unread: list[bytes] = []

    def note(self, answer: bytes) -> None:
        """Record the header of an answer that a client gets."""
        self._unread.append(answer[:HEADER_BYTES_MAX])
        if len(self._unread) >= UNREAD_MAX:
            self._read()

    def restart_from(self, revision: int) -> None:
        """Restart from a revision after a linearizable read returned less than the floor.

        The store must then be another one: the cluster was restored from a snapshot.
        """
        self._unread.clear()
        if self.take_relayed is not None:
            self.take_relayed()
        self._revision = revision

    @property
    def revision(self) -> int:
        """The newest revision that clients have received."""
        if self._unread:
            self._read()
        if self.take_relayed is not None:
            self._revision = max(self._revision, self.take_relayed())
        return self._revision

    def _read(self) -> None:
        self._revision = max(self._revision, *map(revision_of, self._unread))
        self._unread.clear()
