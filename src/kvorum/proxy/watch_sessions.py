"""Watch sessions: one Watch stream to a member for all clients with the same credentials.

Rules:

* The session sends every client's create request to the member, because the member decides who may
  watch what; equal requests of one turn are sent once. The answer holds a revision that the member
  had after the clients asked, as it would on a stream of their own.
* The watch created for such a request is kept only if no older broadcast serves the watcher.
  Broadcasts of one range merge as soon as a synced one will deliver every event that the other
  still needs.
* When the stream is lost, the session resumes each broadcast at another member from its position.
  If the position was compacted, the session cancels the watchers; if the member refuses the watch,
  it ends their clients' streams as a broken connection would: clients retry, and get the member's
  reason.

A watch that starts in the history has caught up once the member answers a progress request sent
after the watch was created. Members answer progress requests only if every watch of the stream is
up to date, and otherwise drop them, so the session resends them while a client or a watch waits.
Nor do members answer while a watch starts in the future; a resumed watch therefore starts with the
last revision that it already had, and drops the events of that revision.
"""

from collections import deque
from math import inf
from typing import TYPE_CHECKING, Final

from kvorum.api import errors
from kvorum.api.errors import Code, Status
from kvorum.api.pb.etcdserverpb import (
    WatchCancelRequest,
    WatchCreateRequest,
    WatchProgressRequest,
    WatchRequest,
)
from kvorum.api.responses import watch_compacted
from kvorum.client.backoff import BackOff
from kvorum.network.edge.upstream import End, Metadata
from kvorum.proxy.broadcasts import (
    NO_DELETE,
    NO_PUT,
    PREV_KV,
    PROGRESS,
    Broadcast,
    BroadcastState,
    ClientWatcher,
    Creation,
    covers,
)
from kvorum.proxy.interface import status_of
from kvorum.proxy.watch_wire import ParsedResponse, Reader, header_at

if TYPE_CHECKING:
    from kvorum.proxy.watch import ClientStream, WatchService

PATH: Final = "/etcdserverpb.Watch/Watch"
BACK_OFF_SECONDS: Final = 0.05
BACK_OFF_SECONDS_MAX: Final = 1.0
LEADERLESS_SECONDS_MAX: Final = 3.0
"""How long clients that require a leader keep their streams while no member is connected."""
GATHERED_BYTES_MAX: Final = 64 << 10
"""Events up to this size are merged into one message, because each message costs work for every
client."""
RETRY_SECONDS: Final = 0.1
"""Time after which an unanswered progress request is sent again, if a client or a watch waits."""
PROGRESS_SECONDS: Final = 10.0
"""Interval of progress requests in any case, so that a watch on a range that seldom changes does
not resume at a revision that was compacted long ago."""
PROGRESS_ANSWERS_MAX: Final = 1000
"""Progress requests that a client's stream may have unanswered; further ones get no answer."""

_TRANSIENT: Final = frozenset(
    (
        Code.OK,
        Code.CANCELLED,
        Code.UNKNOWN,
        Code.DEADLINE_EXCEEDED,
        Code.RESOURCE_EXHAUSTED,
        Code.ABORTED,
        Code.INTERNAL,
        Code.UNAVAILABLE,
    )
)
"""Status codes after which the session opens another stream; any other code ends the clients'
streams."""


class WatchedRange:
    """The broadcasts of one range, the oldest first."""

    __slots__ = ("broadcasts", "key", "range_end")

    def __init__(self, key: bytes, range_end: bytes) -> None:
        self.key = key
        self.range_end = range_end
        self.broadcasts: list[Broadcast] = []


class WatchSession:
    """One Watch stream to a member, reopened when it is lost."""

    def __init__(
        self,
        service: "WatchService",
        identity: tuple[bytes | None, ...],
        metadata: Metadata,
        *,
        requires_leader: bool,
    ) -> None:
        self._service = service
        self.identity = identity
        """The credentials and the leader requirement that the session's clients share."""
        self._metadata = metadata
        self._requires_leader = requires_leader
        self.streams: dict[ClientStream, None] = {}
        """The clients' streams that share this session."""
        self._ranges: dict[tuple[bytes, bytes], WatchedRange] = {}
        self._crowded: dict[WatchedRange, None] = {}
        """Ranges with more than one broadcast."""
        self._broadcasts: dict[int, Broadcast] = {}
        self._next_number = 1
        # Broadcasts whose creation the member has not answered, in the order of its answers.
        self._unconfirmed: deque[Broadcast] = deque()
        # Broadcasts created in this turn for clients' requests, by (key, range_end, start revision,
        # selection).
        self._created_this_turn: dict[tuple[bytes, bytes, int, int], Broadcast] = {}
        self._behind: dict[Broadcast, None] = {}
        self._call = 0
        self._requests: list[Broadcast | WatchRequest] = []
        self._reader = Reader(len(service.namespace))
        self._header = b""
        # Consecutive events of one broadcast that its watchers have not had yet.
        self._gathered: tuple[Broadcast, ParsedResponse] | None = None
        self._gathered_bytes = 0
        self._revision = 0
        """The newest revision in a header of the current stream."""
        self._complete_revision = 0
        """Every event up to this revision has come to the synced broadcasts."""
        self._back_off = BackOff(BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX)
        self._unreachable_since = inf
        # Clients' streams that wait for progress, with their number of requests: those that came
        # after the last progress request to the member, and those that came before it.
        self._unsent_progress: dict[ClientStream, int] = {}
        self._sent_progress: dict[ClientStream, int] = {}
        self._progress_requests = 0
        self._progress_at = inf

    # Called by clients' streams.

    def request_creation(self, creation: Creation) -> None:
        """Send a create request to the member; `ClientStream.take_answer` gets the result."""
        start = creation.start_revision
        if start > self._revision:
            start = 0
        selection = creation.upstream_selection
        same = (creation.key, creation.range_end, start, selection)
        broadcast = self._created_this_turn.get(same)
        if broadcast is None:
            broadcast = self._begin(creation.key, creation.range_end, start, selection)
            self._created_this_turn[same] = broadcast
        broadcast.waiting.append(creation)

    def place(self, watcher: ClientWatcher, *, is_exact: bool = False) -> None:
        """Add a watcher to a broadcast that serves it, or to a new one.

        `is_exact` starts a new watch at exactly `next_revision`, because the one before it may be
        compacted.
        """
        watched = self._ranges.get((watcher.key, watcher.range_end))
        if watched is not None:
            for broadcast in watched.broadcasts:
                if broadcast.serves(watcher):
                    broadcast.join(watcher)
                    return
        start, selection = watcher.next_revision, watcher.upstream_selection
        broadcast = self._begin(watcher.key, watcher.range_end, start, selection)
        if not is_exact:
            broadcast.start_revision = _resume_revision(start)
        broadcast.join(watcher)

    def remove(self, watcher: ClientWatcher) -> None:
        """Remove a watcher that its client has cancelled or abandoned."""
        broadcast = watcher.broadcast
        if broadcast is not None:
            broadcast.leave(watcher, 0)
            self._drop_unused(broadcast)

    def want_progress(self, stream: "ClientStream") -> None:
        """Answer a stream's progress request with a revision that the member reports after it."""
        self._unsent_progress[stream] = min(
            self._unsent_progress.get(stream, 0) + 1, PROGRESS_ANSWERS_MAX
        )
        if not self._sent_progress:
            self._progress_at = self._service.routes.now
        self._service.schedule(self, self._progress_at)

    def header(self, floor: int) -> bytes:
        """Return a header with the newest known revision, or with `floor` if that is newer."""
        return header_at(self._header, max(self._revision, floor))

    def forget(self, stream: "ClientStream") -> None:
        """Forget a client's stream; the last one ends the stream to the member."""
        del self.streams[stream]
        self._unsent_progress.pop(stream, None)
        self._sent_progress.pop(stream, None)
        if not self.streams and self._call:
            self._service.routes.cancel(self._call)
            self._call = 0

    # Sending.

    def flush(self) -> None:
        """Send the gathered requests; open the stream if there is none."""
        service = self._service
        if not self._call:
            if service.routes.now < self._back_off.until:
                return
            self._call = service.routes.open_stream(PATH, self._metadata, self)
            self._requests = [*self._broadcasts.values()]
            self._unconfirmed = deque(self._broadcasts.values())
            service.schedule(self, self._progress_at)
        self._created_this_turn.clear()
        if service.routes.now >= self._progress_at:
            self._request_progress()
        requests, self._requests = self._requests, []
        for request in requests:
            message = _create_request(request) if isinstance(request, Broadcast) else request
            service.routes.send(self._call, message.SerializeToString())

    def pass_time(self, now: float) -> float:
        """Run the timers that are due; return when the next one is."""
        moment = self._progress_at if self._call else self._back_off.until
        if moment <= now:
            self._service.has_requests[self] = None
            moment = inf
        if self._requires_leader:
            if self._service.routes.is_connected:
                self._unreachable_since = inf
            elif self._unreachable_since == inf:
                self._unreachable_since = now
            until = self._unreachable_since + LEADERLESS_SECONDS_MAX
            if now >= until:
                self._end_all(errors.NO_LEADER)
                return inf
            # No event reports the loss of the last member, so check again later.
            moment = min(moment, until, now + LEADERLESS_SECONDS_MAX)
        return moment

    def _send(self, request: Broadcast | WatchRequest) -> None:
        if self._call:
            self._requests.append(request)
        self._service.has_requests[self] = None

    def _begin(self, key: bytes, range_end: bytes, start: int, selection: int) -> Broadcast:
        watched = self._ranges.get((key, range_end))
        if watched is None:
            watched = self._ranges[key, range_end] = WatchedRange(key, range_end)
        counters = self._service.counters
        broadcast = Broadcast(watched, self._next_number, start, selection, counters)
        self._next_number += 1
        watched.broadcasts.append(broadcast)
        if len(watched.broadcasts) > 1:
            self._crowded[watched] = None
        self._broadcasts[broadcast.number] = broadcast
        if self._call:
            self._unconfirmed.append(broadcast)
        self._send(broadcast)
        return broadcast

    def _drop_unused(self, broadcast: Broadcast) -> None:
        if not broadcast.members and not broadcast.waiting:
            self._drop(broadcast)

    def _drop(self, broadcast: Broadcast) -> None:
        """Forget a broadcast, and cancel its watch at the member."""
        if broadcast.state is BroadcastState.DROPPED:
            return
        broadcast.state = BroadcastState.DROPPED
        del self._broadcasts[broadcast.number]
        self._behind.pop(broadcast, None)
        watched = broadcast.watched
        watched.broadcasts.remove(broadcast)
        if len(watched.broadcasts) == 1:
            self._crowded.pop(watched, None)
        elif not watched.broadcasts:
            del self._ranges[watched.key, watched.range_end]
        if self._call:
            cancel = WatchCancelRequest(watch_id=broadcast.number)
            self._send(WatchRequest(cancel_request=cancel))

    # Events from the member.

    def take_message(self, data: bytes) -> None:
        """Process a message of the member."""
        try:
            response = self._reader.read(data)
        except ValueError:
            self._leave_member()
            return
        self._back_off.note_success()
        if response.header:
            self._header = response.header
            self._revision = max(self._revision, response.revision)
        if response.events and not response.created and not response.canceled:
            self._gather(response, len(data))
            return
        self.deliver_gathered()
        if response.created:
            if not self._unconfirmed or response.watch_id not in (-1, self._unconfirmed[0].number):
                self._leave_member()
                return
            self._take_creation_answer(self._unconfirmed.popleft(), response)
        elif response.watch_id == -1:
            self._take_stream_progress(response)
        else:
            broadcast = self._broadcasts.get(response.watch_id)
            if broadcast is None:
                return
            if response.canceled:
                self._take_cancellation(broadcast, response)
            else:
                self._take_watch_progress(broadcast, response)

    def _gather(self, response: ParsedResponse, size: int) -> None:
        """Keep events until the turn ends or another message comes, to send them as one message."""
        broadcast = self._broadcasts.get(response.watch_id)
        if broadcast is None:
            return
        self._service.counters.events_coalesced += len(broadcast.members) - 1
        if self._gathered is not None:
            other, gathered = self._gathered
            if other is broadcast and self._gathered_bytes + size <= GATHERED_BYTES_MAX:
                gathered.header, gathered.revision = response.header, response.revision
                gathered.events += response.events
                self._gathered_bytes += size
                return
            self.deliver_gathered()
        self._gathered, self._gathered_bytes = (broadcast, response), size
        self._service.has_gathered[self] = None

    def deliver_gathered(self) -> None:
        """Send the gathered events to the watchers."""
        if self._gathered is not None:
            (broadcast, response), self._gathered = self._gathered, None
            if broadcast.state is not BroadcastState.DROPPED:
                self._deliver_events(broadcast, response)

    def take_writable(self) -> None:
        """Do nothing: no request waits for room on the stream."""

    def take_end(self, end: End) -> None:
        """Resume at another member, or end the clients' streams, when the stream ends."""
        self.deliver_gathered()
        status = status_of(end)
        is_leaderless = self._requires_leader and status == errors.NO_LEADER
        if is_leaderless or status.code not in _TRANSIENT:
            self._call = 0
            self._end_all(status)
        else:
            self._prepare_resume()

    def _take_creation_answer(self, broadcast: Broadcast, response: ParsedResponse) -> None:
        """Process the member's answer to the creation of a watch."""
        waiting, broadcast.waiting = broadcast.waiting, []
        if response.canceled:
            if broadcast.state is not BroadcastState.DROPPED:
                members = tuple(broadcast.members)
                self._drop(broadcast)
                self._end_streams_of(members, response.reason)
            for creation in waiting:
                creation.refusal = response.reason
                creation.stream.take_answer(creation, response)
            return
        if broadcast.state is BroadcastState.DROPPED:
            return
        broadcast.created_revision = response.revision
        broadcast.progress_requests = self._progress_requests
        if not broadcast.start_revision:
            broadcast.position = response.revision + 1
        if broadcast.position > response.revision:
            broadcast.state = BroadcastState.SYNCED
        else:
            broadcast.state = BroadcastState.BEHIND
            self._behind[broadcast] = None
            self._schedule_progress_request(RETRY_SECONDS)
        self._schedule_progress_request(PROGRESS_SECONDS)
        for creation in waiting:
            creation.stream.take_answer(creation, response)
        if not broadcast.members:
            self._drop(broadcast)
        self._merge_all(broadcast.watched)

    def _deliver_events(self, broadcast: Broadcast, response: ParsedResponse) -> None:
        broadcast.deliver(response, self._service.outgoing)
        if broadcast.position > response.revision:
            self._mark_synced(broadcast)
        if not broadcast.members:
            self._drop(broadcast)
        elif len(broadcast.watched.broadcasts) > 1:
            self._merge_all(broadcast.watched)

    def _take_watch_progress(self, broadcast: Broadcast, response: ParsedResponse) -> None:
        """Process a watch's progress: the member has no further events for it up to a revision."""
        revision = response.revision
        broadcast.complete_revision = max(broadcast.complete_revision, revision)
        self._mark_synced(broadcast)
        for watcher in broadcast.members:
            if watcher.selection & PROGRESS and watcher.start_revision <= revision:
                watcher.stream.send_progress(response.header, revision, watcher.id_field)
        self._merge_all(broadcast.watched)

    def _take_cancellation(self, broadcast: Broadcast, response: ParsedResponse) -> None:
        """Cancel watchers whose next revision is compacted, and place the others again."""
        members = tuple(broadcast.members)
        done = self._next_revision(broadcast)
        for watcher in members:
            broadcast.leave(watcher, done)
        self._drop(broadcast)
        compacted = response.compact_revision
        if not compacted:
            self._end_streams_of(members, response.reason)
            return
        for watcher in members:
            if watcher.next_revision < compacted:
                watcher.stream.cancel_compacted(
                    watcher, watch_compacted(response.header, watcher.id_field, compacted)
                )
            else:
                self.place(watcher, is_exact=True)

    def _end_streams_of(self, watchers: tuple[ClientWatcher, ...], reason: str) -> None:
        streams = dict.fromkeys(watcher.stream for watcher in watchers)
        for stream in streams:
            self._service.finish(stream, Status(Code.UNAVAILABLE, reason))

    # Progress.

    def _schedule_progress_request(self, seconds: float) -> None:
        self._progress_at = min(self._progress_at, self._service.routes.now + seconds)
        self._service.schedule(self, self._progress_at)

    def _request_progress(self) -> None:
        """Ask the member for progress."""
        self._progress_requests += 1
        self._requests.append(WatchRequest(progress_request=WatchProgressRequest()))
        for stream, times in self._unsent_progress.items():
            self._sent_progress[stream] = self._sent_progress.get(stream, 0) + times
        self._unsent_progress = {}
        self._progress_at = inf
        if self._sent_progress or self._behind:
            self._schedule_progress_request(RETRY_SECONDS)
        elif self._broadcasts:
            self._schedule_progress_request(PROGRESS_SECONDS)

    def _take_stream_progress(self, response: ParsedResponse) -> None:
        """Process the stream's progress: all watches have had every event up to a revision."""
        revision = response.revision
        self._complete_revision = max(self._complete_revision, revision)
        for broadcast in tuple(self._behind):
            if (
                self._progress_requests > broadcast.progress_requests
                and revision >= broadcast.created_revision
            ):
                self._mark_synced(broadcast)
        for watched in tuple(self._crowded):
            self._merge_all(watched)
        awaiting, self._sent_progress = self._sent_progress, {}
        for stream, times in awaiting.items():
            if not stream.answer_progress(response.header, revision, times):
                self._sent_progress[stream] = times
        if not self._sent_progress:
            self._progress_at = inf
            if self._unsent_progress:
                self._schedule_progress_request(0)
            self._schedule_progress_request(RETRY_SECONDS if self._behind else PROGRESS_SECONDS)

    def _mark_synced(self, broadcast: Broadcast) -> None:
        broadcast.state = BroadcastState.SYNCED
        self._behind.pop(broadcast, None)

    def _next_revision(self, broadcast: Broadcast) -> int:
        """Return the revision below which a broadcast has had every event."""
        done = max(broadcast.position, broadcast.complete_revision + 1)
        if broadcast.state is BroadcastState.SYNCED:
            done = max(done, self._complete_revision + 1)
        return done

    def _merge_all(self, watched: WatchedRange) -> None:
        """Merge broadcasts of a range into synced ones that serve their watchers."""
        if len(watched.broadcasts) > 1:
            for broadcast in tuple(watched.broadcasts):
                self._merge(broadcast)

    def _merge(self, broadcast: Broadcast) -> None:
        if broadcast.state is BroadcastState.UNCONFIRMED:
            return
        done = self._next_revision(broadcast)
        for other in broadcast.watched.broadcasts:
            if (
                other is not broadcast
                and other.state is BroadcastState.SYNCED
                and other.position <= done
                and covers(other.selection, broadcast.selection)
            ):
                for watcher in tuple(broadcast.members):
                    broadcast.leave(watcher, done)
                    other.join(watcher)
                self._drop(broadcast)
                return

    # The end of the stream or the session.

    def _leave_member(self) -> None:
        """Leave a member that violates the protocol."""
        self.deliver_gathered()
        self._service.routes.cancel(self._call)
        self._prepare_resume()

    def _prepare_resume(self) -> None:
        """Prepare to resume at another member."""
        service = self._service
        now = service.routes.now
        self._call = 0
        self._requests = []
        self._unconfirmed.clear()
        self._behind.clear()
        for broadcast in self._broadcasts.values():
            if broadcast.state is not BroadcastState.UNCONFIRMED:
                broadcast.position = self._next_revision(broadcast)
                broadcast.start_revision = _resume_revision(broadcast.position)
                broadcast.state = BroadcastState.UNCONFIRMED
        for stream in self.streams:
            stream.floor = max(stream.floor, self._revision)
        self._revision = self._complete_revision = 0
        self._unsent_progress.update(
            (stream, self._unsent_progress.get(stream, 0) + times)
            for stream, times in self._sent_progress.items()
        )
        self._sent_progress = {}
        self._progress_at = now if self._unsent_progress else inf
        self._back_off.note_failure(now)
        service.schedule(self, self._back_off.until)

    def _end_all(self, status: Status) -> None:
        """End all clients' streams, and thereby this session."""
        for stream in tuple(self.streams):
            self._service.finish(stream, status)


def _resume_revision(position: int) -> int:
    """Return the start revision of a watch that resumes at a position: one it already had."""
    return max(1, position - 1)


def _create_request(broadcast: Broadcast) -> WatchRequest:
    selection, watched = broadcast.selection, broadcast.watched
    filters = []
    if selection & NO_PUT:
        filters.append(WatchCreateRequest.NOPUT)
    if selection & NO_DELETE:
        filters.append(WatchCreateRequest.NODELETE)
    create = WatchCreateRequest(
        key=watched.key,
        range_end=watched.range_end,
        start_revision=broadcast.start_revision,
        progress_notify=selection & PROGRESS != 0,
        filters=filters,
        prev_kv=selection & PREV_KV != 0,
        watch_id=broadcast.number,
    )
    return WatchRequest(create_request=create)
