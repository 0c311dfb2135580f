"""Puts together a range that comes in pieces, as its client does.

Pieces come in the order of keys, and only the last one has the header and the count. All of them
together are the answer that a plain range would get, and are judged as such; the rules for single
pieces are checked when each arrives, since a stream may be broken off.
"""

from collections.abc import Callable

from kvorum.api.errors import COMPACTED, Code, Status
from kvorum.api.pb.etcdserverpb import RangeResponse, RangeStreamResponse
from kvorum.sim.history import History, Record
from kvorum.sim.violation import Violation

STREAM_PATH = "/etcdserverpb.KV/RangeStream"
GUARANTEE = "a range in pieces is one answer"


class Pieces:
    """The pieces of one answer."""

    __slots__ = ("_answered", "_history", "_is_complete", "_last", "_merged", "_newest", "_record")

    def __init__(
        self, history: History, record: Record, answered: Callable[[bytes | Status | None], None]
    ) -> None:
        self._history = history
        self._record = record
        self._answered = answered
        self._merged = RangeResponse()
        self._is_complete = False
        self._last = b""
        # The newest revision in any piece: the read is of this revision, or of a later one.
        self._newest = 0

    def _violate(self, text: str) -> None:
        record = self._record
        raise Violation(GUARANTEE, f"{record.kind} #{record.invoked} at m{record.member}: {text}")

    def take(self, data: bytes) -> None:
        """Take a piece."""
        piece = RangeStreamResponse.FromString(data).range_response
        if self._is_complete:
            self._violate(f"another piece after the last: {piece!r}")
        for kv in piece.kvs:
            if kv.key <= self._last:
                self._violate(f"{kv.key!r} after {self._last!r}")
            self._last = kv.key
            self._newest = max(self._newest, kv.mod_revision)
        self._is_complete = piece.HasField("header")
        if not self._is_complete and (piece.more or piece.count or not piece.kvs):
            self._violate(f"not the last piece, but {piece!r}")
        self._merged.MergeFrom(piece)

    def ended(self, result: bytes | Status | None) -> None:
        """Take the end of the stream."""
        if isinstance(result, Status) and result.code == Code.OK:
            if not self._is_complete:
                self._violate("ended without its last piece")
            self._answered(self._merged.SerializeToString())
            return
        if result == COMPACTED and self._newest and self._history.compacted <= self._newest:
            self._violate(
                f"revision {self._newest} is said to be compacted, and nobody is beyond "
                f"{self._history.compacted}"
            )
        self._answered(result)
