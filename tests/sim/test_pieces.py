"""What a client requires of a range in pieces, and of the blobs of a snapshot."""

from hashlib import sha256

import pytest

from kvorum.api.errors import COMPACTED, Code, Status
from kvorum.api.pb.etcdserverpb import (
    RangeRequest,
    RangeResponse,
    RangeStreamResponse,
    ResponseHeader,
    SnapshotResponse,
)
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.sim.history import History, Record
from kvorum.sim.images import Blobs
from kvorum.sim.pieces import Pieces
from kvorum.sim.violation import Violation

OK = Status(Code.OK, "")


def _piece(*keys: bytes, last: bool = False) -> bytes:
    response = RangeResponse(kvs=[KeyValue(key=key, mod_revision=7) for key in keys])
    if last:
        response.header.CopyFrom(ResponseHeader(revision=9))
        response.count = 3
    return RangeStreamResponse(range_response=response).SerializeToString()


def _pieces(history: History | None = None) -> tuple[Pieces, list[object]]:
    answers: list[object] = []
    record = Record(1, "stream", 1, RangeRequest(), 1, 0.0)
    return Pieces(history or History(), record, answers.append), answers


def _read(taken: list[bytes]) -> list[object]:
    pieces, answers = _pieces()
    for piece in taken:
        pieces.take(piece)
    pieces.ended(OK)
    return answers


def test_pieces_are_put_together() -> None:
    (answer,) = _read([_piece(b"a", b"b"), _piece(b"c", last=True)])
    assert isinstance(answer, bytes)
    merged = RangeResponse.FromString(answer)
    assert [kv.key for kv in merged.kvs] == [b"a", b"b", b"c"]
    assert (merged.count, merged.header.revision) == (3, 9)


@pytest.mark.parametrize(
    "taken",
    [
        [_piece(b"a", b"b"), _piece(b"b", last=True)],
        [_piece(b"a", last=True), _piece(b"b", last=True)],
        [_piece()],
        [_piece(b"a")],
    ],
    ids=["twice", "after the last", "empty", "without the last"],
)
def test_pieces_that_do_not_fit(taken: list[bytes]) -> None:
    with pytest.raises(Violation):
        _read(taken)


def test_a_range_is_compacted_midway_only_if_it_was() -> None:
    history = History()
    history.compacted = 8
    pieces, answers = _pieces(history)
    pieces.take(_piece(b"a"))
    pieces.ended(COMPACTED)
    assert answers == [COMPACTED]
    history.compacted = 7
    pieces, _ = _pieces(history)
    pieces.take(_piece(b"a"))
    with pytest.raises(Violation):
        pieces.ended(COMPACTED)


def _blob(blob: bytes, remaining: int) -> bytes:
    return SnapshotResponse(blob=blob, remaining_bytes=remaining).SerializeToString()


def test_remaining_bytes_go_down_to_nothing() -> None:
    blobs = Blobs("a snapshot")
    blobs.take(_blob(b"ab", 2))
    with pytest.raises(Violation, match="bytes left"):
        blobs.take(_blob(b"cd", 1))


def test_a_snapshot_fits_its_checksum() -> None:
    blobs = Blobs("a snapshot")
    blobs.take(_blob(b"abcd", 0))
    blobs.take(_blob(sha256(b"abce").digest(), 0))
    with pytest.raises(Violation, match="checksum"):
        blobs.content()


def test_a_snapshot_can_be_read() -> None:
    blobs = Blobs("a snapshot")
    blobs.take(_blob(b"\0" * 512, 0))
    blobs.take(_blob(sha256(b"\0" * 512).digest(), 0))
    with pytest.raises(Violation, match="cannot be read"):
        blobs.content()
