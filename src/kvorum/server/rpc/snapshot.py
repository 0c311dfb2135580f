"""The Snapshot call: sends this member's database in etcd's format, while the member keeps serving.

The helper process writes the newest commit to a temporary file. The member sends the file in blobs,
and removes it however the call ends; after a crash, the next start removes it. The last blob is the
SHA-256 of all others. The loop only passes pieces on: the thread pool reads and hashes each piece
while the client receives the one before.
"""

from hashlib import sha256

from kvorum.api import errors
from kvorum.api.durations import seconds_text
from kvorum.api.errors import Code, Status, StatusError
from kvorum.api.pb.etcdserverpb import SnapshotRequest
from kvorum.api.responses import snapshot_response
from kvorum.api.wire import parse_message
from kvorum.member.images import BuildImage, ImageFacts, ReadImage, RemoveImage
from kvorum.member.jobs import ExecutorKind, Job, ignore
from kvorum.member.log_lines import size_text
from kvorum.member.member import Member
from kvorum.member.parts import Part, run_job
from kvorum.member.waits import FlushedTo, Send, Signal, Signalled, Steps
from kvorum.raft.logger import log_fields
from kvorum.server.rpc.interface import OK
from kvorum.state.apply.callers import Caller

BLOB_BYTES = 256 * 1024
"""Larger than etcd's, and well below the 4 MiB that clients accept by default."""
PIECE_BYTES = 4 * BLOB_BYTES
"""The size of one read; the loop sends it all before it does anything else."""
IMAGES_MAX = 2
"""How many images may exist at a time: each takes as much of the disk as the database."""
WAITING_MAX = 16
"""How many calls may wait for their turn; more are refused. While one waits, a stream whose client
reads nothing for `AWAITED_SECONDS_MAX` ends."""
PROGRESS_SECONDS = 5.0
"""The interval of progress lines in the log."""


class SnapshotService:
    """Serves Snapshot."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._count = 0
        self._waiting = 0
        self._under_way = 0

    @property
    def is_awaited(self) -> bool:
        """Whether a call waits for another snapshot to end."""
        return self._waiting > 0

    def begin(self, _caller: Caller, payload: bytes) -> Steps | Status:
        """Return the procedure that sends an image."""
        parse_message(SnapshotRequest, payload)
        return self._serve()

    def _serve(self) -> Steps:
        member = self._member
        if self._under_way >= IMAGES_MAX:
            if self._waiting >= WAITING_MAX:
                return errors.REQUEST_TOO_MANY_REQUESTS
            self._waiting += 1
            try:
                while self._under_way >= IMAGES_MAX:
                    yield Signalled(Signal.SENT)
            finally:
                self._waiting -= 1
        self._under_way += 1
        self._count += 1
        try:
            path = "/".join((member.replica.snap_directory, f"tmp.snapshot.{self._count}"))
            return (yield from _snapshot(member, path))
        finally:
            self._under_way -= 1
            member.procedures.signal(Signal.SENT)


class _Piece:
    """A piece of an image that the pool reads ahead."""

    __slots__ = ("_error", "_member", "_piece")

    def __init__(self, member: Member, work: ReadImage) -> None:
        self._member = member
        self._piece: bytes | None = None
        self._error: Exception | None = None
        member.out.jobs.append(Job(ExecutorKind.POOL, work, self._was_read, self._not_read))

    def _was_read(self, piece: bytes) -> None:
        self._piece = piece
        self._member.procedures.signal(Signal.READ)

    def _not_read(self, error: Exception) -> None:
        self._error = error
        self._member.procedures.signal(Signal.READ)

    def read(self) -> Part[bytes]:
        """Wait for the piece and return it; raise StatusError if the read failed."""
        while self._piece is None and self._error is None:
            yield Signalled(Signal.READ)
        if self._piece is None:
            raise StatusError(Status(Code.UNKNOWN, str(self._error)))
        return self._piece


def _snapshot(member: Member, path: str) -> Steps:
    began = member.counters.stopwatch()
    yield FlushedTo(member.state.applied)
    storage = member.state.cluster.storage_version
    version = "" if storage is None else str(storage)
    try:
        work = BuildImage.of(member.state.backend.directory, path, member.config.limits)
        facts: ImageFacts = yield from run_job(ExecutorKind.HELPER, work)
        total = facts.length
        described = {"total_bytes": total, "size": size_text(total), "storage_version": version}
        began_at, logger = member.now, member.logger
        log_fields(logger, "info", "sending database snapshot to client", **described)
        digest = sha256()
        sent = 0
        tell_at = member.now + PROGRESS_SECONDS
        ahead = _Piece(member, ReadImage(path, 0, PIECE_BYTES, digest))
        while sent < total:
            piece: bytes = yield from ahead.read()
            if sent + len(piece) < total:
                offset = sent + len(piece)
                ahead = _Piece(member, ReadImage(path, offset, PIECE_BYTES, digest))
            for start in range(0, len(piece), BLOB_BYTES):
                blob = piece[start : start + BLOB_BYTES]
                sent += len(blob)
                yield Send(snapshot_response(total - sent, blob, version))
            if member.now >= tell_at:
                tell_at = member.now + PROGRESS_SECONDS
                message = "sending database snapshot to client"
                log_fields(logger, "info", message, sent_bytes=sent, total_bytes=total)
        yield Send(snapshot_response(0, digest.digest(), version))
        message, took = "successfully sent database snapshot to client", member.now - began_at
        log_fields(logger, "info", message, **described, took=seconds_text(took))
        return OK
    except StatusError as error:
        member.logger.error(f"cannot send a database snapshot: {error.status.text}")
        return Status(Code.UNKNOWN, f"cannot make a snapshot of the database: {error.status.text}")
    finally:
        member.counters.image_seconds.observe(member.counters.stopwatch() - began)
        # The helper removes the file, because it may still be writing it for a client that is gone.
        # If the removal fails, the next start repeats it.
        member.out.jobs.append(Job(ExecutorKind.HELPER, RemoveImage(path), on_failure=ignore))
