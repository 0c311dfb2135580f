"""The watches of a client, which resume where they were when their stream is lost.

- A watch from now on first reads the store's revision and starts after it, so that no event falls
  between a lost stream and the next.
- The client returns all events of a revision together. It drops the fragments of a revision with
  their stream, and receives the whole revision again.
- A watch that must not resume ends with its stream, as the next stream may show another store.
- When a watch has buffered its share, the client cancels it at the server, and creates it again
  after the user has taken the events: the watch delays no other and loses no event.
- Every end has its reason.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final

from kvorum.api.errors import Code
from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.client.backoff import BackOff
from kvorum.client.core import HAS_LEADER, ClientStreamCall, Core, OnAnswer
from kvorum.client.errors import (
    CallError,
    ClosedError,
    KvorumError,
    LearnerUnsupportedError,
    NoLeaderError,
    RevisionWentBackError,
    WatchCanceledError,
    WatchCompactedError,
    WatchLostError,
    error_of,
)
from kvorum.client.values import Changes, event

KEPT_EVENTS_MAX: Final = 10_000
KEPT_BYTES_MAX: Final = 16 << 20
"""How much a watch buffers for its user; it also keeps the response that exceeds the limit."""
BACK_OFF_SECONDS: Final = 0.01
BACK_OFF_SECONDS_MAX: Final = 1.0
READ_SECONDS_MAX: Final = 5.0
"""The timeout of a read of the store's revision, which is then repeated."""
_LOST: Final = "the stream of the watch was lost, and the watch was not to be resumed on another"


class WatchState(Enum):
    """The states of a watch."""

    ASKING = "asks for the revision to begin with"
    LOST = "waits for a stream"
    OPEN = "is at the server"
    PARKED = "has kept its share, and waits for it to be taken"
    ENDED = "has ended"


class Watch:
    """One watch. It calls `ready` when it has changes to take, or when its state has changed."""

    __slots__ = (
        "changes",
        "error",
        "is_created",
        "is_plain",
        "kept_bytes",
        "kept_events",
        "number",
        "options",
        "parts",
        "ready",
        "refusal",
        "resumes",
        "revision",
        "seen",
        "state",
        "was_created",
    )

    def __init__(
        self, number: int, options: "pb.WatchCreateRequest", ready: Callable[[], None]
    ) -> None:
        self.number: int = number
        """The watch id, the same on every stream; a cancellation at the server replaces it."""
        self.options: pb.WatchCreateRequest = options
        self.ready: Callable[[], None] = ready
        self.revision: int = options.start_revision
        """The first revision that the watch has not received; 0 until its start is known."""
        self.seen: int = 0
        """The newest revision that the store is known to have had."""
        self.state: WatchState = WatchState.LOST
        self.is_created: bool = False
        """Whether the server has created the watch on this stream, so that progress includes it."""
        self.changes: deque[Changes] = deque()
        self.error: KvorumError | None = None
        self.refusal: pb.WatchResponse | None = None
        """The response with which the server ended the watch, if it did."""
        self.is_plain: bool = False
        """Whether the watch starts at its member's revision, and ends if that has no leader."""
        self.resumes: bool = True
        """Whether the watch continues on another stream when its own is lost."""
        self.was_created: bool = False
        """Whether a server has ever created the watch."""
        self.parts: list[pb.WatchResponse] = []
        """The fragments of an incomplete revision."""
        self.kept_events: int = 0
        self.kept_bytes: int = 0

    @property
    def is_started(self) -> bool:
        """Whether the start revision is known."""
        return self.revision != 0 and (self.is_created or not self.is_plain)


class WatchSet:
    """The watches of one client, on one stream."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._stream: ClientStreamCall | None = None
        self._watches: dict[int, Watch] = {}
        self._creating: deque[int] = deque()
        """The watches of this stream that the server has not created or refused yet, in order."""
        self._next_number = 1
        self._unanswered: list[Watch] = []
        """Watches that must read the store's revision again."""
        self._back_off = BackOff(BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX)

    # Requests of users.

    def begin(
        self,
        options: "pb.WatchCreateRequest",
        ready: Callable[[], None],
        seen: int = 0,
        *,
        is_plain: bool = False,
        resumes: bool = True,
    ) -> Watch:
        """Start a watch; from now on, if the options name no revision.

        `seen` is a revision that the store is known to have had: if the store is older now, the
        watch ends with RevisionWentBackError. A plain watch does not read the store's revision: it
        starts when its member receives it. A watch that does not resume ends with WatchLostError
        when the stream that created it is lost.
        """
        number = self._next_number
        self._next_number += 1
        options.watch_id = number
        # Let the server split long revisions, which could exceed the longest message.
        options.fragment = True
        watch = Watch(number, options, ready)
        watch.seen = seen
        watch.is_plain = is_plain
        watch.resumes = resumes
        if self._core.closed is not None:
            watch.state, watch.error = WatchState.ENDED, self._core.closed
            return watch
        self._watches[number] = watch
        if watch.revision or is_plain:
            self._create(watch)
        else:
            self._ask_revision(watch)
        return watch

    def take(self, watch: Watch) -> Changes | None:
        """Return the next changes, if there are any."""
        if not watch.changes:
            return None
        changes = watch.changes.popleft()
        watch.kept_events -= len(changes.events)
        watch.kept_bytes -= _size(changes)
        if watch.state is WatchState.PARKED and not watch.changes:
            watch.state = WatchState.LOST
            self._create(watch)
        return changes

    def cancel(self, watch: Watch) -> None:
        """End a watch that its user does not want any more."""
        if watch.state is WatchState.OPEN and self._stream is not None:
            self._send_cancel(watch)
        watch.error = watch.error or ClosedError("the watch is closed")
        self._forget(watch)

    def close(self) -> None:
        """End all watches, because the client is closed."""
        for watch in list(self._watches.values()):
            self._end(watch, ClosedError("the client is closed"))

    def request_progress(self) -> None:
        """Request a progress notification for all watches."""
        if self._stream is not None:
            request = pb.WatchRequest(progress_request=pb.WatchProgressRequest())
            self._core.send(self._stream, request.SerializeToString())

    # Time.

    def wake_at(self) -> float:
        """Return when to call `pass_time` next if nothing happens before."""
        if self._unanswered or (self._stream is None and self._needs_stream()):
            return self._back_off.until
        return float("inf")

    def pass_time(self, now: float) -> None:
        """After a back-off, open a stream again and repeat failed reads of the revision."""
        if now < self._back_off.until:
            return
        if self._stream is None and self._needs_stream():
            self._open()
        unanswered, self._unanswered = self._unanswered, []
        for watch in unanswered:
            if watch.state is WatchState.ASKING:
                self._ask_revision(watch)

    def _needs_stream(self) -> bool:
        watches = self._watches
        return bool(watches) and any(each.state is WatchState.LOST for each in watches.values())

    # Starting.

    def _ask_revision(self, watch: Watch) -> None:
        watch.state = WatchState.ASKING

        def take_answer(answer: bytes | KvorumError) -> None:
            if watch.state is WatchState.ENDED:
                return
            if isinstance(answer, bytes):
                watch.seen = pb.RangeResponse.FromString(answer).header.revision
                watch.revision = watch.seen + 1
                watch.state = WatchState.LOST
                self._create(watch)
                watch.ready()
            elif self._is_transient(answer, watch):
                self._back_off.note_failure(self._core.now)
                self._unanswered.append(watch)
            elif isinstance(answer, CallError | ClosedError):
                self._end(watch, answer)
            else:
                self._ask_revision(watch)

        self._read_revision(watch, take_answer)

    def _read_revision(self, watch: Watch, on_answer: OnAnswer) -> None:
        """Read the store's revision, with a range of a key that the watch may read."""
        request = pb.RangeRequest(key=watch.options.key or b"\0", count_only=True, limit=1)
        message = request.SerializeToString()
        self._core.start(rpcs.RANGE, message, READ_SECONDS_MAX, on_answer)

    def _create(self, watch: Watch) -> None:
        if self._stream is None:
            if self._core.now >= self._back_off.until:
                self._open()
            return
        self._core.send(self._stream, self._create_request(watch))
        watch.state = WatchState.OPEN

    def _create_request(self, watch: Watch) -> bytes:
        watch.options.start_revision = watch.revision
        watch.is_created = False
        watch.parts.clear()
        self._creating.append(watch.number)
        return pb.WatchRequest(create_request=watch.options).SerializeToString()

    def _open(self) -> None:
        """Open a stream, and create on it all watches that have none."""
        lost = [each for each in self._watches.values() if each.state is WatchState.LOST]
        if not lost:
            return
        first = lost[0]
        self._creating.clear()
        self._stream = self._core.open_stream(
            rpcs.WATCH,
            self._create_request(first),
            self._take_message,
            self._take_end,
            # A member without a leader gets no new events, and must end the stream instead.
            (HAS_LEADER,),
        )
        if self._stream is None:
            self._back_off.note_failure(self._core.now)
            return
        first.state = WatchState.OPEN
        for watch in lost[1:]:
            self._create(watch)

    # Responses.

    def _take_message(self, message: bytes) -> None:
        self._back_off.note_success()
        response = pb.WatchResponse.FromString(message)
        if response.watch_id == -1 and not response.created and not response.canceled:
            # A progress notification for all watches of this stream.
            for watch in list(self._watches.values()):
                # Skip watches that the server has not created yet, or that wait for fragments.
                if watch.state is WatchState.OPEN and watch.is_created and not watch.parts:
                    self._queue_changes(watch, response)
            return
        number = response.watch_id
        if response.created:
            if number in self._creating:
                self._creating.remove(number)
            elif number == -1 and self._creating:
                # A refusal has no watch id; the server answers create requests in order.
                number = self._creating.popleft()
        found = self._watches.get(number)
        if found is None or found.state is not WatchState.OPEN:
            return
        if response.canceled:
            self._take_cancellation(found, response)
        elif response.created:
            self._take_creation(found, response)
        elif response.fragment:
            found.parts.append(response)
        else:
            self._queue_changes(found, response)

    def _take_creation(self, watch: Watch, response: "pb.WatchResponse") -> None:
        watch.is_created = watch.was_created = True
        if not watch.revision:
            watch.seen = response.header.revision
            watch.revision = watch.seen + 1
        if watch.is_plain:
            watch.ready()
        if response.header.revision < watch.seen:
            # The member lags, or the store was restored: a linearizable read finds out which.
            self._check_revision(watch)

    def _check_revision(self, watch: Watch) -> None:
        seen = watch.seen

        def take_answer(answer: bytes | KvorumError) -> None:
            if watch.state is not WatchState.OPEN:
                # The next stream repeats the check.
                return
            if isinstance(answer, bytes):
                found = pb.RangeResponse.FromString(answer).header.revision
                if found < seen:
                    self._send_cancel(watch)
                    self._end(watch, RevisionWentBackError(seen, found))
            elif not isinstance(answer, CallError | ClosedError):
                self._check_revision(watch)

        self._read_revision(watch, take_answer)

    def _take_cancellation(self, watch: Watch, response: "pb.WatchResponse") -> None:
        watch.refusal = response
        if response.compact_revision:
            self._end(watch, WatchCompactedError(watch.revision, response.compact_revision))
            return
        reason = _unwrapped(response.cancel_reason)
        error = error_of(Code.UNKNOWN, reason)
        if error.status is None:
            self._end(watch, WatchCanceledError(f"the server ended the watch: {reason}"))
        elif self._core.is_fixed_by_login(error):
            # A stream keeps the token with which it was opened, so a new token needs a new stream.
            if self._stream is not None:
                self._core.reject_token(self._stream)
            self._lose_stream()
        else:
            self._end(watch, error)

    def _queue_changes(self, watch: Watch, response: "pb.WatchResponse") -> None:
        """Queue the events of a response, or its progress, for the user of a watch."""
        messages = [*watch.parts, response] if watch.parts else [response]
        watch.parts.clear()
        first = watch.revision
        found = [each for message in messages for each in message.events]
        if found and found[0].kv.mod_revision < first:
            # Events are in the order of their revisions, so the first shows whether any is too old.
            found = [each for each in found if each.kv.mod_revision >= first]
        events = list(map(event, found))
        if events:
            revision = events[-1].kv.mod_revision
        elif any(each.events for each in messages):
            return
        elif response.header.revision >= first - 1 or watch.is_plain:
            # Progress; that of a lagging member is of no use.
            revision = response.header.revision
        else:
            return
        watch.revision = max(first, revision + 1)
        watch.seen = max(watch.seen, revision)
        changes = Changes(events, revision, response.header)
        watch.changes.append(changes)
        watch.kept_events += len(events)
        watch.kept_bytes += _size(changes)
        if watch.kept_events >= KEPT_EVENTS_MAX or watch.kept_bytes >= KEPT_BYTES_MAX:
            self._send_cancel(watch)
            watch.state = WatchState.PARKED
        watch.ready()

    def _take_end(self, error: KvorumError | None) -> None:
        self._stream = None
        for watch in list(self._watches.values()):
            if watch.state is WatchState.PARKED and not watch.resumes:
                self._end(watch, WatchLostError(_LOST))
            if watch.state is not WatchState.OPEN:
                continue
            watch.parts.clear()
            if error is None or self._is_transient(error, watch):
                if watch.resumes or not watch.was_created:
                    watch.state = WatchState.LOST
                else:
                    self._end(watch, WatchLostError(_LOST))
            else:
                self._end(watch, error)
        if self._needs_stream():
            self._back_off.note_failure(self._core.now)

    def _lose_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            self._core.close_stream(stream)
        self._take_end(None)

    def _send_cancel(self, watch: Watch) -> None:
        """Cancel a watch at the server, and give it a new id, which late responses do not have."""
        assert self._stream is not None
        request = pb.WatchRequest(cancel_request=pb.WatchCancelRequest(watch_id=watch.number))
        self._core.send(self._stream, request.SerializeToString())
        del self._watches[watch.number]
        watch.number = self._next_number
        self._next_number += 1
        watch.options.watch_id = watch.number
        self._watches[watch.number] = watch

    def _end(self, watch: Watch, error: KvorumError) -> None:
        watch.error = error
        self._forget(watch)
        watch.ready()

    def _forget(self, watch: Watch) -> None:
        watch.state = WatchState.ENDED
        self._watches.pop(watch.number, None)
        if not self._watches and self._stream is not None:
            self._core.close_stream(self._stream)
            self._stream = None

    def _is_transient(self, error: KvorumError, watch: Watch) -> bool:
        """Return whether an error is transient, so that another stream may work."""
        if watch.is_plain and isinstance(error, NoLeaderError):
            return False
        if self._core.is_fixed_by_login(error) or isinstance(error, LearnerUnsupportedError):
            return True
        return isinstance(error, CallError) and error.code in (Code.UNAVAILABLE, Code.INTERNAL)


def _size(changes: Changes) -> int:
    return sum(len(each.kv.key) + len(each.kv.value) for each in changes.events)


def _unwrapped(reason: str) -> str:
    """Return a reason without the prefix that Go puts before a gRPC error."""
    return reason.rpartition(" desc = ")[2] if reason.startswith("rpc error: ") else reason
