"""The Watch service of the proxy: clients' streams behave as they would at a member.

Rules:

* The service handles the requests of one stream in order, whatever each waits for.
* A watcher's `created` comes before its events, and nothing comes after `canceled`.
* A stream whose client does not read gets no events. Its watchers keep only the revision they need
  next, and catch up through watches of their own once the client reads. The same holds for every
  stream while all clients together have more than `PENDING_BYTES_MAX` unread.
* Header revisions on a stream never decrease, though its events may come from several members in
  turn.

Clients share a stream to a member (see `watch_sessions`) only if they show the same credentials and
both or neither require a leader.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice, repeat
from math import inf

from google.protobuf.message import DecodeError

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import WatchCreateRequest, WatchRequest
from kvorum.api.responses import CANCELED, CREATED, NO_WATCHER, watch_refused
from kvorum.api.wire import parse_message
from kvorum.client.namespacing import prefix_range_end
from kvorum.network.edge.interface import Limits, Metadata
from kvorum.proxy.broadcasts import (
    NO_DELETE,
    NO_PUT,
    PREV_KV,
    PROGRESS,
    BroadcastState,
    ClientWatcher,
    Creation,
)
from kvorum.proxy.counters import ProxyCounters
from kvorum.proxy.interface import ProxyEdge
from kvorum.proxy.routes import Routes
from kvorum.proxy.watch_sessions import WatchSession
from kvorum.proxy.watch_wire import ParsedResponse, header_at

FIRST_KEY = b"\0"
"""The key that an empty key in a request stands for."""

STREAM_PENDING_BYTES_MAX = 1024 * 1024
"""A stream with this many unread bytes gets no events. `Outgoing` checks unread bytes whenever it
has sent this many to all clients together, so that no stream reaches twice the limit."""

PENDING_BYTES_MAX = 128 * 1024 * 1024
"""With this many unread bytes on all streams, no stream gets events, and streams with at least
`_LITTLE_BYTES` unread count as full."""

UNSENT_BYTES_MAX = 256 * 1024
"""Bytes gathered before a flush to the edge; only the edge knows how much clients have read."""

REQUESTS_WAITING_MAX = 100_000
"""Requests of one stream that wait for a member's answer; one more ends the stream."""

RESUMED_PER_TURN_MAX = 64
"""Watchers of a stream that start to catch up in one turn."""

CONGESTED_SECONDS = 0.01
"""Interval of the checks of unread bytes while all clients together have too many."""

_LITTLE_BYTES = Limits().stream_writable_bytes
_IDENTITY_KEYS = ("token", "authorization")
_FILTERS = {WatchCreateRequest.NOPUT: NO_PUT, WatchCreateRequest.NODELETE: NO_DELETE}


class Outgoing:
    """Gathers messages for clients, and tracks the bytes that clients have not read."""

    def __init__(self, edge: ProxyEdge, streams: "dict[int, ClientStream]") -> None:
        self._edge = edge
        self._streams = streams
        self.messages: list[tuple[int, bytes]] = []
        """Messages to be sent, with their calls."""
        self.room = self._whole_room = UNSENT_BYTES_MAX
        """Bytes that may still be gathered; code that uses them up calls `flush`."""
        # The calls that were sent messages since the last check of unread bytes (values unused).
        self._unchecked: dict[int, bytes] = {}
        self._unchecked_bytes = 0
        self._pending: dict[int, int] = {}
        self._pending_bytes = 0
        self.is_full = False
        """Whether all clients together have so many bytes unread that none gets events."""
        self.times_full = 0
        """How often a check found a client with too many bytes unread."""

    def add(self, call: int, message: bytes) -> None:
        """Send a message."""
        self.messages.append((call, message))
        self.room -= len(message)
        if self.room <= 0:
            self.flush()

    def add_all(self, call: int, messages: list[bytes]) -> None:
        """Send messages."""
        for message in messages:
            self.add(call, message)

    def send_to_all(self, calls: Sequence[int], message: bytes) -> None:
        """Send a message to many streams without checking whether their clients read."""
        self.messages.extend(zip(calls, repeat(message)))
        self.room -= len(calls) * len(message)
        if self.room <= 0:
            self.flush()

    def flush(self) -> None:
        """Pass all messages to the edge, and from time to time check which clients are slow."""
        messages = self.messages
        if not messages:
            return
        self._edge.send(messages)
        self._unchecked.update(messages)
        self._unchecked_bytes += self._whole_room - self.room
        self.messages = []
        self.room = self._whole_room = UNSENT_BYTES_MAX
        if self._unchecked_bytes >= STREAM_PENDING_BYTES_MAX:
            calls, self._unchecked, self._unchecked_bytes = self._unchecked, {}, 0
            self._check_streams(calls)

    def forget(self, call: int) -> None:
        """Drop a stream's unread bytes from the total: it has ended, or its client has read."""
        self._pending_bytes -= self._pending.pop(call, 0)

    def recount_unread(self) -> None:
        """Recount all unread bytes, and allow events again once they fall below half the limit."""
        self._check_streams(tuple(self._pending))
        if self._pending_bytes < PENDING_BYTES_MAX // 2:
            self.is_full = False

    def _check_streams(self, calls: Iterable[int]) -> None:
        pending, pending_bytes = self._pending, self._edge.pending_bytes
        for call in calls:
            stream = self._streams.get(call)
            if stream is None:
                continue
            size = pending_bytes(call)
            self._pending_bytes += size - pending.get(call, 0)
            if size:
                pending[call] = size
            else:
                pending.pop(call, None)
            if size >= STREAM_PENDING_BYTES_MAX or (self.is_full and size >= _LITTLE_BYTES):
                stream.is_full = True
                self.times_full += 1
        if self._pending_bytes >= PENDING_BYTES_MAX and not self.is_full:
            # Clients may have read some of the bytes since they were counted.
            self.is_full = True
            self.recount_unread()


class ClientStream:
    """One client's Watch stream."""

    __slots__ = (
        "_next_id",
        "_requests",
        "_service",
        "behind",
        "call",
        "compacted",
        "floor",
        "is_ended",
        "is_full",
        "session",
        "watchers",
    )

    def __init__(self, service: "WatchService", call: int, session: WatchSession) -> None:
        self._service = service
        self.call = call
        self.session = session
        self.watchers: dict[int, ClientWatcher] = {}
        self._next_id = 0
        # In order of arrival: watchers to create, ids to cancel, None for a progress request.
        self._requests: deque[Creation | int | None] = deque()
        self.floor = 0
        """The newest revision that a lost member may have reported on this stream."""
        self.is_full = False
        """Whether the client has too many bytes unread to get events."""
        self.is_ended = False
        self.behind: dict[ClientWatcher, None] = {}
        """Watchers in no broadcast that have to catch up."""
        self.compacted = 0
        """How many of the watchers a compaction has ended."""

    def take(self, data: bytes) -> None:
        """Process a request of the client; raise DecodeError if it is malformed."""
        message = parse_message(WatchRequest, data)
        kind = message.WhichOneof("request_union")
        if kind == "create_request":
            creation = self._parse_creation(message.create_request)
            self._requests.append(creation)
            self.session.request_creation(creation)
        elif kind == "cancel_request":
            self._requests.append(message.cancel_request.watch_id)
        elif kind == "progress_request":
            self._requests.append(None)
        self._serve()
        if len(self._requests) > REQUESTS_WAITING_MAX:
            self._service.finish(self, errors.REQUEST_TOO_MANY_REQUESTS)

    def _parse_creation(self, create: WatchCreateRequest) -> Creation:
        selection = (PREV_KV if create.prev_kv else 0) | (PROGRESS if create.progress_notify else 0)
        # A request may name a million filters.
        for kind in set(create.filters):
            selection |= _FILTERS.get(kind, 0)
        key, range_end = create.key or FIRST_KEY, create.range_end
        namespace = self._service.namespace
        if namespace:
            key, range_end = namespace + key, prefix_range_end(namespace, range_end)
        return Creation(
            self,
            key,
            range_end,
            create.start_revision,
            create.watch_id,
            selection,
            create.fragment,
        )

    # Called by the session.

    def take_answer(self, creation: Creation, response: ParsedResponse) -> None:
        """Continue with a request that a member has answered."""
        creation.is_answered = True
        creation.header, creation.revision = response.header, response.revision
        if not self.is_ended:
            self._serve()

    def fall_behind(self, watcher: ClientWatcher) -> None:
        """Keep a watcher that gets no events until its client has read some."""
        self.behind[watcher] = None
        if not self.is_full:
            self._service.resume(self)

    def cancel_compacted(self, watcher: ClientWatcher, response: bytes) -> None:
        """Send the client the cancellation of a watcher whose next revision is compacted."""
        watcher.is_compacted = True
        self.compacted += 1
        self._service.outgoing.add(self.call, response)

    def send_progress(self, header: bytes, revision: int, id_field: bytes) -> None:
        """Send a watcher's progress: it has had every event up to a revision."""
        if revision >= self.floor and not self.is_full:
            self._service.outgoing.add(self.call, header + id_field)

    def answer_progress(self, header: bytes, revision: int, times: int) -> bool:
        """Answer progress requests, or drop them as a member would.

        Return False if the requests must wait because some watcher still lacks events, or because
        the stream has already shown a newer revision.
        """
        if not self._is_answering():
            return True
        if revision < self.floor:
            return False
        is_complete = True
        for watcher in self.watchers.values():
            if watcher.start_revision > revision:
                return True
            broadcast = watcher.broadcast
            if broadcast is None or broadcast.state is not BroadcastState.SYNCED:
                is_complete = False
        if not is_complete:
            return False
        self._service.outgoing.add_all(self.call, [header + NO_WATCHER] * times)
        return True

    # Serving.

    def _serve(self) -> None:
        """Handle requests in order, up to the first that waits for a member."""
        requests = self._requests
        while requests:
            request = requests[0]
            if isinstance(request, Creation):
                if not request.is_answered:
                    return
                requests.popleft()
                self._create(request)
            else:
                requests.popleft()
                if request is not None:
                    self._cancel(request)
                elif self._is_answering():
                    self.session.want_progress(self)

    def _is_answering(self) -> bool:
        """Return whether a member would answer progress requests on this stream at all."""
        return bool(self.watchers) and not self.compacted

    def _create(self, creation: Creation) -> None:
        outgoing = self._service.outgoing
        revision, header = creation.revision, creation.header
        if revision < self.floor:
            revision = self.floor
            header = header_at(header, revision)
        if creation.refusal:
            outgoing.add(self.call, watch_refused(header, creation.refusal))
            return
        watch_id = creation.watch_id
        if watch_id and watch_id in self.watchers:
            outgoing.add(self.call, watch_refused(header, errors.WATCH_ID_DUPLICATE.text))
            return
        if not watch_id:
            while self._next_id in self.watchers:
                self._next_id += 1
            watch_id = self._next_id
            self._next_id += 1
        watcher = ClientWatcher(creation, watch_id, creation.start_revision or revision + 1)
        self.watchers[watch_id] = watcher
        outgoing.add(self.call, header + watcher.id_field + CREATED)
        self.session.place(watcher)

    def _cancel(self, watch_id: int) -> None:
        watcher = self.watchers.pop(watch_id, None)
        if watcher is not None:
            self._forget(watcher)
            header = self.session.header(self.floor)
            self._service.outgoing.add(self.call, header + watcher.id_field + CANCELED)

    def _forget(self, watcher: ClientWatcher) -> None:
        self.compacted -= watcher.is_compacted
        self.behind.pop(watcher, None)
        self.session.remove(watcher)

    def catch_up(self) -> bool:
        """Resume some of the watchers that fell behind; return whether none is left."""
        for watcher in tuple(islice(self.behind, RESUMED_PER_TURN_MAX)):
            del self.behind[watcher]
            self.session.place(watcher)
        return not self.behind

    def end(self) -> None:
        """Forget all watchers and requests of a call that has ended."""
        self.is_ended = True
        self._requests.clear()
        for watcher in self.watchers.values():
            self._forget(watcher)
        self.watchers = {}
        self.session.forget(self)


class WatchService:
    """Serves all Watch streams of the proxy's clients."""

    def __init__(
        self, edge: ProxyEdge, routes: Routes, namespace: bytes, counters: ProxyCounters
    ) -> None:
        """Serve watches on keys in a namespace, which clients do not see."""
        self._edge = edge
        self.routes = routes
        self.namespace = namespace
        self.counters = counters
        self._streams: dict[int, ClientStream] = {}
        self._sessions: dict[tuple[bytes | None, ...], WatchSession] = {}
        self.outgoing = Outgoing(edge, self._streams)
        self.has_requests: dict[WatchSession, None] = {}
        """Sessions with requests to send to a member."""
        self.has_gathered: dict[WatchSession, None] = {}
        """Sessions with gathered events that no watcher has had yet."""
        self._resuming: dict[ClientStream, None] = {}
        self._due_at = inf

    # Called by the proxy.

    def __contains__(self, call: object) -> bool:
        return call in self._streams

    def open(self, call: int, metadata: Metadata | None, now: float) -> None:
        """Open a client's stream."""
        found = metadata or {}
        requires_leader = found.get("hasleader") == b"true"
        tokens = tuple(found.get(key) for key in _IDENTITY_KEYS)
        identity = (*tokens, b"true" if requires_leader else None)
        session = self._sessions.get(identity)
        if session is None:
            upstream = [
                (key, value)
                for key, value in zip((*_IDENTITY_KEYS, "hasleader"), identity, strict=True)
                if value is not None
            ]
            session = WatchSession(self, identity, upstream, requires_leader=requires_leader)
            self._sessions[identity] = session
            self.has_requests[session] = None
            self.schedule(session, now)
        stream = self._streams[call] = ClientStream(self, call, session)
        session.streams[stream] = None

    def take_message(self, call: int, data: bytes, now: float) -> None:
        """Process a client's request."""
        del now
        stream = self._streams.get(call)
        if stream is None:
            return
        try:
            stream.take(data)
        except DecodeError as error:
            self.finish(stream, errors.unparsable_message(str(error)))

    def take_half_close(self, call: int) -> None:
        """Do nothing: watchers outlive their client's last request."""

    def take_end(self, call: int) -> None:
        """Forget a stream and its watchers."""
        stream = self._streams.pop(call, None)
        if stream is not None:
            self._forget(stream)

    def take_writable(self, call: int) -> None:
        """Resume a stream whose client has read."""
        stream = self._streams.get(call)
        if stream is not None:
            stream.is_full = False
            self.outgoing.forget(call)
            self.resume(stream)

    def stop(self, status: Status) -> None:
        """End every stream."""
        for stream in tuple(self._streams.values()):
            self.finish(stream, status)

    def flush(self) -> None:
        """Send gathered requests to members and messages to clients; called after `pass_time`."""
        if self.has_requests:
            sessions, self.has_requests = self.has_requests, {}
            for session in sessions:
                if session.streams:
                    session.flush()
        self.outgoing.flush()

    def pass_time(self, now: float) -> float:
        """Run the timers that are due; return when the next one is."""
        if self.has_gathered:
            sessions, self.has_gathered = self.has_gathered, {}
            for session in sessions:
                session.deliver_gathered()
        if self.outgoing.is_full:
            self.outgoing.recount_unread()
        if self._resuming:
            self._resume()
        if now >= self._due_at:
            self._due_at = inf
            for session in tuple(self._sessions.values()):
                self.schedule(session, session.pass_time(now))
        if self.outgoing.is_full:
            return min(self._due_at, now + CONGESTED_SECONDS)
        return now if self._resuming else self._due_at

    # Called by sessions and streams.

    def schedule(self, session: WatchSession, moment: float) -> None:
        """Schedule a session for a moment: its `flush` if that is now, else its `pass_time`."""
        if moment <= self.routes.now:
            self.has_requests[session] = None
        else:
            self._due_at = min(self._due_at, moment)

    def resume(self, stream: ClientStream) -> None:
        """Let a stream's watchers catch up as soon as the client and the total allow it."""
        if stream.behind:
            self._resuming[stream] = None

    def finish(self, stream: ClientStream, status: Status) -> None:
        """End a stream after the messages gathered for it."""
        if self._streams.pop(stream.call, None) is not None:
            self.outgoing.flush()
            self._edge.finish(stream.call, status)
            self._forget(stream)

    def _forget(self, stream: ClientStream) -> None:
        stream.end()
        self.outgoing.forget(stream.call)
        self._resuming.pop(stream, None)
        session = stream.session
        if not session.streams:
            self._sessions.pop(session.identity, None)
            self.has_requests.pop(session, None)
            self.has_gathered.pop(session, None)

    def _resume(self) -> None:
        if self.outgoing.is_full:
            return
        for stream in tuple(self._resuming):
            if stream.is_full or stream.catch_up():
                del self._resuming[stream]
