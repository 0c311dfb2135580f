"""The newest revision that clients of this proxy have been told of.

Members are asked in turn, and some lag behind others. What was told is read from the headers of
answers, but only when somebody wants to know: most answers are to writes that nobody reads at once.
"""

from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from kvorum.api.codec import read_varint
from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs

HEADER_BYTES_MAX: Final = 64
"""Longer than every header of an answer: four numbers, and the field that they are in."""
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
"""The calls that may change keys; the first field of each answer is its header."""


def revision_of(answer: bytes) -> int:
    """Return the revision in the header of an answer that begins with it; 0 if there is none."""
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
    """What clients have been told."""

    __slots__ = ("_revision", "_unread", "take_relayed")

    def __init__(self) -> None:
        self._revision = 0
        self.take_relayed: Callable[[], int] | None = None
        """Returns what they were told past `note`, since it was last called."""
        self._unread: list[bytes] = []

    def note(self, answer: bytes) -> None:
        """Note an answer that a client gets."""
        self._unread.append(answer[:HEADER_BYTES_MAX])
        if len(self._unread) >= UNREAD_MAX:
            self._read()

    def begin_anew(self, revision: int) -> None:
        """Forget what was told before: the newest state is older, so that the store is another.

        That is so where a cluster was restored from a snapshot.
        """
        self._unread.clear()
        if self.take_relayed is not None:
            self.take_relayed()
        self._revision = revision

    @property
    def revision(self) -> int:
        """The newest revision."""
        if self._unread:
            self._read()
        if self.take_relayed is not None:
            self._revision = max(self._revision, self.take_relayed())
        return self._revision

    def _read(self) -> None:
        self._revision = max(self._revision, *map(revision_of, self._unread))
        self._unread.clear()
