"""The Watch service of the proxy: clients' streams, each as it would be at a member.

Rules: * Requests of one stream are served in their order, whatever they wait for. * A watcher's
`created` comes before its events, and nothing after `canceled`. * A stream whose client takes
nothing gets no events: its watchers keep only the revision that they need next, and catch up by
watches of their own when it takes what was sent. The same holds if all clients together have not
taken more than is good for the memory. * Revisions told to a stream never go back, though its
events may come from one member after another.

Clients share a stream to a member (see `watch_sessions`) if they show the same credentials and both
or neither require a leader; with no others.
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
from kvorum.client.namespacing import end_into
from kvorum.edge.interface import Limits, Metadata
from kvorum.proxy.broadcasts import (
    NO_DELETE,
    NO_PUT,
    PREV_KV,
    PROGRESS,
    Creation,
    Standing,
    Watcher,
)
from kvorum.proxy.figures import Figures
from kvorum.proxy.interface import ProxyEdge
from kvorum.proxy.routes import Routes
from kvorum.proxy.watch_sessions import Session
from kvorum.proxy.watch_wire import Told, header_at

FIRST_KEY = b"\0"
"""What an empty key stands for."""

STREAM_PENDING_BYTES_MAX = 1024 * 1024
"""A stream with so many bytes not yet taken by its client gets no events. What clients take is
looked at whenever as much was sent to all of them together, so that none has twice as much."""

PENDING_BYTES_MAX = 128 * 1024 * 1024
"""With so many on all streams, no stream gets events, and those with more than a little of it are
treated as if they had reached their limit."""

UNSENT_BYTES_MAX = 256 * 1024
"""How much is made before it is handed to the edge, which knows what clients take."""

REQUESTS_WAITING_MAX = 100_000
"""Requests of one stream that wait for a member's answer; one more ends the stream."""

RESUMED_PER_TURN_MAX = 64
"""Watchers of a stream that begin to catch up in one turn."""

CONGESTED_SECONDS = 0.01
"""How often clients are looked at while they have taken too little."""

_LITTLE_BYTES = Limits().stream_writable_bytes
_IDENTITY_KEYS = ("token", "authorization")
_FILTERS = {WatchCreateRequest.NOPUT: NO_PUT, WatchCreateRequest.NODELETE: NO_DELETE}


class Outgoing:
    """What is sent to clients, gathered, and what they have not taken of it."""

    def __init__(self, edge: ProxyEdge, streams: "dict[int, ClientStream]") -> None:
        self._edge = edge
        self._streams = streams
        self.messages: list[tuple[int, bytes]] = []
        """What is to be sent."""
        self.room = self._whole_room = UNSENT_BYTES_MAX
        """How many more bytes may be gathered; whoever has used it up calls `flush`."""
        # Who was sent something since clients were looked at, and the last of it.
        self._unlooked: dict[int, bytes] = {}
        self._unlooked_bytes = 0
        self._pending: dict[int, int] = {}
        self._pending_bytes = 0
        self.is_full = False
        """Whether all clients together have taken too little for any to be sent events."""
        self.times_full = 0
        """How often a client was found to take too little."""

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

    def spread(self, calls: Sequence[int], message: bytes) -> None:
        """Send a message to many streams, whether their clients take it or not."""
        self.messages.extend(zip(calls, repeat(message)))
        self.room -= len(calls) * len(message)
        if self.room <= 0:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the edge, and from time to time find out which clients are slow."""
        messages = self.messages
        if not messages:
            return
        self._edge.send(messages)
        self._unlooked.update(messages)
        self._unlooked_bytes += self._whole_room - self.room
        self.messages = []
        self.room = self._whole_room = UNSENT_BYTES_MAX
        if self._unlooked_bytes >= STREAM_PENDING_BYTES_MAX:
            calls, self._unlooked, self._unlooked_bytes = self._unlooked, {}, 0
            self._look(calls)

    def forget(self, call: int) -> None:
        """Forget what a stream has not taken: it has ended."""
        self._pending_bytes -= self._pending.pop(call, 0)

    def look_again(self) -> None:
        """Look at everything that was not taken; events are sent again if that has become less."""
        self._look(tuple(self._pending))
        if self._pending_bytes < PENDING_BYTES_MAX // 2:
            self.is_full = False

    def _look(self, calls: Iterable[int]) -> None:
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
            # Some of it may have been taken since it was looked at.
            self.is_full = True
            self.look_again()


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

    def __init__(self, service: "WatchService", call: int, session: Session) -> None:
        self._service = service
        self.call = call
        self.session = session
        self.watchers: dict[int, Watcher] = {}
        self._next_id = 0
        # In their order: watchers to be created, ids to be cancelled, None where progress is asked
        # for.
        self._requests: deque[Creation | int | None] = deque()
        self.floor = 0
        """A revision that may have been told by a member that was lost."""
        self.is_full = False
        """Whether the client does not take what was sent, so that it gets no events."""
        self.is_ended = False
        self.behind: dict[Watcher, None] = {}
        """Watchers that are to catch up."""
        self.compacted = 0
        """How many of the watchers were ended by a compaction."""

    def take(self, data: bytes) -> None:
        """Take a request of the client; raises DecodeError."""
        message = parse_message(WatchRequest, data)
        kind = message.WhichOneof("request_union")
        if kind == "create_request":
            creation = self._creation(message.create_request)
            self._requests.append(creation)
            self.session.ask(creation)
        elif kind == "cancel_request":
            self._requests.append(message.cancel_request.watch_id)
        elif kind == "progress_request":
            self._requests.append(None)
        self._serve()
        if len(self._requests) > REQUESTS_WAITING_MAX:
            self._service.finish(self, errors.REQUEST_TOO_MANY_REQUESTS)

    def _creation(self, create: WatchCreateRequest) -> Creation:
        selection = (PREV_KV if create.prev_kv else 0) | (PROGRESS if create.progress_notify else 0)
        # A request may name a million filters.
        for kind in set(create.filters):
            selection |= _FILTERS.get(kind, 0)
        key, range_end = create.key or FIRST_KEY, create.range_end
        namespace = self._service.namespace
        if namespace:
            key, range_end = namespace + key, end_into(namespace, range_end)
        return Creation(
            self,
            key,
            range_end,
            create.start_revision,
            create.watch_id,
            selection,
            create.fragment,
        )

    # What the session calls.

    def answered(self, creation: Creation, told: Told) -> None:
        """Go on with a request to which a member has answered."""
        creation.is_answered = True
        creation.header, creation.revision = told.header, told.revision
        if not self.is_ended:
            self._serve()

    def fall_behind(self, watcher: Watcher) -> None:
        """Keep a watcher that gets no events until its client takes some."""
        self.behind[watcher] = None
        if not self.is_full:
            self._service.resume(self)

    def end_compacted(self, watcher: Watcher, response: bytes) -> None:
        """Tell the client that a watcher cannot go on."""
        watcher.is_compacted = True
        self.compacted += 1
        self._service.outgoing.add(self.call, response)

    def tell_progress(self, header: bytes, revision: int, id_field: bytes) -> None:
        """Tell that a watcher has had everything up to a revision."""
        if revision >= self.floor and not self.is_full:
            self._service.outgoing.add(self.call, header + id_field)

    def take_progress(self, header: bytes, revision: int, times: int) -> bool:
        """Answer requests for progress; False if some watcher has not had everything yet."""
        if not self._is_answering():
            return True
        if revision < self.floor:
            return False
        is_complete = True
        for watcher in self.watchers.values():
            if watcher.start_revision > revision:
                return True
            broadcast = watcher.broadcast
            if broadcast is None or broadcast.standing is not Standing.SYNCED:
                is_complete = False
        if not is_complete:
            return False
        self._service.outgoing.add_all(self.call, [header + NO_WATCHER] * times)
        return True

    # Serving.

    def _serve(self) -> None:
        """Serve requests in their order, up to one that waits."""
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
        """Return whether progress may be told at all, as members do it."""
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
        watcher = Watcher(creation, watch_id, creation.start_revision or revision + 1)
        self.watchers[watch_id] = watcher
        outgoing.add(self.call, header + watcher.id_field + CREATED)
        self.session.place(watcher)

    def _cancel(self, watch_id: int) -> None:
        watcher = self.watchers.pop(watch_id, None)
        if watcher is not None:
            self._forget(watcher)
            header = self.session.header(self.floor)
            self._service.outgoing.add(self.call, header + watcher.id_field + CANCELED)

    def _forget(self, watcher: Watcher) -> None:
        self.compacted -= watcher.is_compacted
        self.behind.pop(watcher, None)
        self.session.remove(watcher)

    def catch_up(self) -> bool:
        """Let some of the watchers that fell behind go on; return whether that is all of them."""
        for watcher in tuple(islice(self.behind, RESUMED_PER_TURN_MAX)):
            del self.behind[watcher]
            self.session.place(watcher)
        return not self.behind

    def end(self) -> None:
        """Forget everything: the call has ended."""
        self.is_ended = True
        self._requests.clear()
        for watcher in self.watchers.values():
            self._forget(watcher)
        self.watchers = {}
        self.session.forget(self)


class WatchService:
    """All Watch streams of the proxy's clients."""

    def __init__(self, edge: ProxyEdge, routes: Routes, namespace: bytes, figures: Figures) -> None:
        """Serve watches; the keys of all of them are in a namespace, which clients do not see."""
        self._edge = edge
        self.routes = routes
        self.namespace = namespace
        self.figures = figures
        self._streams: dict[int, ClientStream] = {}
        self._sessions: dict[tuple[bytes | None, ...], Session] = {}
        self.outgoing = Outgoing(edge, self._streams)
        self.has_requests: dict[Session, None] = {}
        """Those with something to send to a member."""
        self.has_gathered: dict[Session, None] = {}
        """Those with events that are not told yet."""
        self._resuming: dict[ClientStream, None] = {}
        self._due_at = inf

    # What the proxy calls.

    def __contains__(self, call: object) -> bool:
        return call in self._streams

    def open(self, call: int, metadata: Metadata | None, now: float) -> None:
        """Begin a stream."""
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
            session = Session(self, identity, upstream, requires_leader=requires_leader)
            self._sessions[identity] = session
            self.has_requests[session] = None
            self.expect(session, now)
        stream = self._streams[call] = ClientStream(self, call, session)
        session.streams[stream] = None

    def message(self, call: int, data: bytes, now: float) -> None:
        """Take a request of a client."""
        del now
        stream = self._streams.get(call)
        if stream is None:
            return
        try:
            stream.take(data)
        except DecodeError as error:
            self.finish(stream, errors.unparsable_message(str(error)))

    def half_closed(self, call: int) -> None:
        """Go on: watchers outlive their client's last request."""

    def ended(self, call: int) -> None:
        """Forget a stream and its watchers."""
        stream = self._streams.pop(call, None)
        if stream is not None:
            self._forget(stream)

    def writable(self, call: int) -> None:
        """Let a stream go on whose client has taken what was sent."""
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
        """Send what was gathered, to members and to clients; called after `pass_time`."""
        if self.has_requests:
            sessions, self.has_requests = self.has_requests, {}
            for session in sessions:
                if session.streams:
                    session.flush()
        self.outgoing.flush()

    def pass_time(self, now: float) -> float:
        """Do what is due; return when something will be due next."""
        if self.has_gathered:
            sessions, self.has_gathered = self.has_gathered, {}
            for session in sessions:
                session.tell_gathered()
        if self.outgoing.is_full:
            self.outgoing.look_again()
        if self._resuming:
            self._resume()
        if now >= self._due_at:
            self._due_at = inf
            for session in tuple(self._sessions.values()):
                self.expect(session, session.pass_time(now))
        if self.outgoing.is_full:
            return min(self._due_at, now + CONGESTED_SECONDS)
        return now if self._resuming else self._due_at

    # What sessions and streams call.

    def expect(self, session: Session, moment: float) -> None:
        """Give a session a turn at a moment."""
        if moment <= self.routes.now:
            self.has_requests[session] = None
        else:
            self._due_at = min(self._due_at, moment)

    def resume(self, stream: ClientStream) -> None:
        """Let a stream's watchers catch up, as soon as that is possible."""
        if stream.behind:
            self._resuming[stream] = None

    def finish(self, stream: ClientStream, status: Status) -> None:
        """End a stream after what was sent."""
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
