"""The calls of a client: where they go, when they are made again, how they end.

No socket, no thread and no clock: the transport carries calls, time is passed in. Rules:

- A call that reads, or that does no more if it is made twice, is made again until its time is over.
  A write is made again only if no server has looked at it; otherwise its outcome is unknown, and
  the caller is told so. Whatever needs a leader asks the member to refuse it if it knows none.
- A user's token is fetched by one login at a time; calls wait for it. A call that is refused
  because of its token has changed nothing, so it waits for a new one and is made again.
- Whoever starts a call hears of its end exactly once, unless they cancel it; never before `start`
  has returned.
"""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from kvorum.api.errors import Code
from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.client.endpoints import Address, Endpoint, Endpoints
from kvorum.client.errors import (
    AuthNotEnabledError,
    AuthOutdatedError,
    CallError,
    ClosedError,
    DeadlineError,
    InvalidTokenError,
    KvorumError,
    LearnerUnsupportedError,
    NoLeaderError,
    OutcomeUnknownError,
    UnavailableError,
    UserEmptyError,
    error_of,
)
from kvorum.client.interface import End, Metadata, Transport
from kvorum.client.rpcs import Rpc

RETRY_SECONDS: Final = 0.025
"""How long to wait after all endpoints were tried."""
SYNC_SECONDS_MAX: Final = 5.0
"""How long the question for the members may take."""
CONNECT_SECONDS_SLOW: Final = 1.0
"""After so long another endpoint is connected to as well."""
LOGINS_MAX: Final = 3
"""How often a call waits for a new token before the refusal is its end."""
TIMEOUT_TEXTS_KEPT: Final = 64
ENDED_KEPT_MAX: Final = 1000
"""So many calls that have ended may be kept until their time would have been over."""
TIMEOUT_SECONDS_MAX: Final = 99_999.0
"""More milliseconds than gRPC can write; such calls wait as long as it takes."""
HAS_LEADER: Final = ("hasleader", "true")
VERSION: Final = ("client-api-version", "3.7")

_NOTHING: Final = Rpc("", False, False)
"""What a call is of that has ended."""
_UNKNOWN_OUTCOMES: Final = (Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.UNKNOWN, Code.INTERNAL)
"""Codes that do not say whether a write took effect, unless the text is one of etcd's."""

Answered = Callable[[bytes | KvorumError], None]
TakeMessage = Callable[[bytes], None]


class Credentials(NamedTuple):
    """Who the client is, if it logs in."""

    user: str
    password: str


class Settings(NamedTuple):
    """What a client's core is told once."""

    credentials: Credentials | None = None
    token: str = ""
    """A token that was made elsewhere, and is never renewed."""
    login_seconds_max: float = 5.0
    sync_seconds: float = float("inf")
    """How often the endpoints are replaced by what the cluster says they are."""


class Call:
    """A call as its user sees it; the transport may see several in its place."""

    __slots__ = (
        "answered",
        "attempts",
        "deadline",
        "endpoint",
        "is_sent",
        "logins",
        "message",
        "number",
        "on_message",
        "pinned",
        "problem",
        "received",
        "request_metadata",
        "rpc",
        "token",
    )

    def __init__(
        self, number: int, rpc: Rpc, message: bytes, deadline: float, answered: Answered
    ) -> None:
        self.number: int = number
        self.rpc: Rpc = rpc
        self.message: bytes = message
        self.deadline: float = deadline
        self.answered: Answered = answered
        self.endpoint: Endpoint | None = None
        """Where it is now; None while it waits."""
        self.pinned: Endpoint | None = None
        """The only endpoint that it may go to."""
        self.attempts: int = 0
        self.logins: int = 0
        self.is_sent: bool = False
        """Whether a server may have looked at it."""
        self.received: bytes | None = None
        self.on_message: TakeMessage | None = None
        """Gets each message of a call that is answered with several."""
        self.problem: KvorumError | None = None
        """Why it was not answered so far."""
        self.request_metadata: Metadata = ()
        self.token: str = ""


class Stream:
    """A call with several messages; it is never made again by itself."""

    __slots__ = ("endpoint", "number", "on_end", "on_message", "token")

    def __init__(
        self,
        number: int,
        endpoint: Endpoint,
        on_message: Callable[[bytes], None],
        on_end: Callable[[KvorumError | None], None],
    ) -> None:
        self.number: int = number
        self.endpoint: Endpoint = endpoint
        self.on_message: Callable[[bytes], None] = on_message
        self.on_end: Callable[[KvorumError | None], None] = on_end
        self.token: str = ""


def _ignore(_: KvorumError | None) -> None:
    """Take the end of a stream that nobody knows of yet."""


class Core:
    """The calls of one client."""

    def __init__(self, addresses: Sequence[Address], settings: Settings, *, start: int = 0) -> None:
        self.transport: Transport
        self.endpoints: Endpoints = Endpoints(addresses, start)
        self.now: float = 0.0
        self.closed: KvorumError | None = None
        self._settings = settings
        self._token = settings.token if settings.credentials is None else None
        """Empty if none is needed, None if it is to be fetched."""
        self._next_number = 1
        self._calls: dict[int, Call] = {}
        """Those that are at a server."""
        self._waiting: deque[Call] = deque()
        """Those that wait for an endpoint."""
        self._waiting_pinned: deque[Call] = deque()
        """Those that wait for one that is being connected, and for no other."""
        self._without_token: list[Call] = []
        self._resting: list[tuple[float, int, Call]] = []
        """Those that wait a moment before they are made again."""
        self._deadlines: list[tuple[float, int, Call]] = []
        self._ended_count = 0
        """How many of those may have ended already."""
        self._streams: dict[int, Stream] = {}
        self._timeouts: dict[float, Metadata] = {}
        self._timeouts_alone: dict[float, Metadata] = {}
        """The metadata of calls that may take so long, with a leader and without."""
        self._is_logging_in = False
        self._problems: dict[int, str] = {}
        """Why each endpoint could not be reached."""
        self._unusable: set[int] = set()
        """Those of them that it would be of no use to ask again, as they were given."""
        self._leaving: set[Endpoint] = set()
        """Those that were given up, and have calls to finish."""
        self._sync_at = 0.0 if settings.sync_seconds < float("inf") else float("inf")

    def copy(self) -> "Core":
        """Return a core of its own with the same endpoints and the same user."""
        addresses = [each.address for each in self.endpoints.all.values()]
        return Core(addresses, self._settings)

    # What the client's users do.

    def start(
        self,
        rpc: Rpc,
        message: bytes,
        seconds_max: float,
        answered: Answered,
        at: int | None = None,
        on_message: TakeMessage | None = None,
    ) -> Call:
        """Begin a call; `answered` gets the answer's message or an error, once.

        With `at`, it goes to that endpoint alone. With `on_message`, that gets every message of the
        answer, and `answered` none; after the first of them the call is not made again.
        """
        self._next_number += 1
        call = Call(self._next_number, rpc, message, self.now + seconds_max, answered)
        known = self._timeouts if rpc.needs_leader else self._timeouts_alone
        call.request_metadata = known.get(seconds_max) or self._timeout(rpc, seconds_max)
        if at is not None:
            call.pinned = self.endpoints.known[at]
        call.on_message = on_message
        if self.closed is not None:
            # Told when time is passed next, because nothing is told before this returns.
            call.deadline = self.now
        heappush(self._deadlines, (call.deadline, call.number, call))
        if self.closed is None:
            self._attempt(call)
        return call

    def cancel(self, call: Call) -> None:
        """Wait no longer for a call; its end is not told."""
        if self._forget(call) and call.endpoint is not None:
            self.transport.cancel(call.number)
            self._leave()

    def open_stream(
        self,
        rpc: Rpc,
        message: bytes,
        on_message: Callable[[bytes], None],
        on_end: Callable[[KvorumError | None], None],
        metadata: Metadata = (),
        at: int | None = None,
    ) -> Stream | None:
        """Open a stream with its first message; None if no endpoint can be asked at once."""
        endpoint = self.endpoints.pick(self.now) if at is None else self.endpoints.known[at]
        if self.closed is not None or not self._is_ready(endpoint) or not self._has_token():
            return None
        self._next_number += 1
        stream = Stream(self._next_number, endpoint, on_message, _ignore)
        stream.token = self._token or ""
        self._streams[stream.number] = stream
        fields = (*metadata, VERSION, *self._token_field())
        self.transport.start(stream.number, endpoint.number, rpc.path, fields, message, False)
        if stream.number not in self._streams:
            # The connection is closing: nothing is told before this returns.
            return None
        stream.on_end = on_end
        return stream

    def send(self, stream: Stream, message: bytes) -> None:
        """Send a message more on a stream."""
        self.transport.send(stream.number, message)

    def close_stream(self, stream: Stream) -> None:
        """Break a stream off; nothing more is told of it."""
        if self._streams.pop(stream.number, None) is not None:
            self.transport.cancel(stream.number)
            self._leave()

    def close(self) -> None:
        """End everything: calls in flight get an error, and so does what begins later."""
        if self.closed is not None:
            return
        self.closed = ClosedError("the client is closed")
        self._sync_at = float("inf")
        waiting = [*self._waiting, *self._waiting_pinned, *self._without_token]
        for call in [*self._calls.values(), *waiting]:
            self._finish(call, self.closed)
        for _, _, call in self._resting:
            self._finish(call, self.closed)
        self._resting.clear()
        self._waiting.clear()
        self._waiting_pinned.clear()
        self._without_token.clear()
        self._forget_deadlines()
        for stream in list(self._streams.values()):
            self._streams.pop(stream.number, None)
            stream.on_end(self.closed)
        for endpoint in self.endpoints.known.values():
            self.transport.disconnect(endpoint.number)

    def set_endpoints(self, addresses: Sequence[Address]) -> None:
        """Use other endpoints; those that are given up finish the calls that they have."""
        self._leaving.update(self.endpoints.replace(addresses))
        self._leaving.difference_update(self.endpoints.all.values())
        self._leave()
        self._serve_waiting()

    def _leave(self) -> None:
        """Give up the connections that were only kept for calls that have ended."""
        if self._leaving:
            used = {each.endpoint for each in self._calls.values()}
            used.update(each.endpoint for each in self._streams.values())
            for endpoint in sorted(self._leaving - used, key=lambda each: each.number):
                self._leaving.discard(endpoint)
                endpoint.is_connected = False
                self.transport.disconnect(endpoint.number)

    # What the transport tells.

    def connected(self, number: int) -> None:
        """Note that an endpoint can be asked."""
        endpoint = self.endpoints.known[number]
        endpoint.is_connecting = False
        if number not in self.endpoints.all and not endpoint.is_named:
            self.transport.disconnect(number)
            return
        endpoint.is_connected = True
        self._problems.pop(number, None)
        self._serve_waiting()

    def disconnected(self, number: int, reason: str, *, is_unusable: bool = False) -> None:
        """Note that an endpoint could not be reached, or was lost; its calls have ended.

        One is unusable if it speaks something else, or if its TLS cannot work as it was given.
        Calls then wait for it no longer.
        """
        endpoint = self.endpoints.known[number]
        endpoint.is_connecting = endpoint.is_connected = False
        self._problems[number] = reason
        if not is_unusable:
            self._unusable.discard(number)
        else:
            self._unusable.add(number)
        self.endpoints.fails(endpoint, self.now)
        self._serve_waiting()
        for call in [*self._waiting, *self._waiting_pinned] if is_unusable else ():
            if self._is_hopeless(call):
                self._finish(call, self._unreachable(call))

    def take_message(self, number: int, message: bytes) -> None:
        """Take a message of a call or a stream."""
        call = self._calls.get(number)
        if call is not None:
            call.received = message
            if call.on_message is not None:
                call.on_message(message)
        elif (stream := self._streams.get(number)) is not None:
            stream.on_message(message)

    def take_end(self, number: int, end: End) -> None:
        """Take the end of a call or a stream."""
        call = self._calls.pop(number, None)
        if call is None:
            stream = self._streams.pop(number, None)
            if stream is not None:
                self._end_stream(stream, end)
            self._leave()
            return
        endpoint = call.endpoint
        assert endpoint is not None
        if end.code == Code.OK:
            if endpoint.failures:
                self.endpoints.works(endpoint)
            received = call.received if call.on_message is None else b""
            if received is None:
                received_error = CallError(Code.INTERNAL, "the server answered without a message")
                self._finish(call, received_error)
            else:
                self._finish(call, received)
        else:
            call.endpoint = None
            self._failed(call, endpoint, end)
        if self._leaving:
            self._leave()

    # Time.

    def wake_at(self) -> float:
        """Return when there is something to do even if nothing happens before."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][2].rpc is _NOTHING:
            heappop(deadlines)
        moment = deadlines[0][0] if deadlines else float("inf")
        if self._resting:
            moment = min(moment, self._resting[0][0])
        if self._waiting:
            picked = self.endpoints.pick(self.now)
            if not picked.is_connecting:
                moment = min(moment, picked.avoided_until)
            elif len(self.endpoints.all) > 1:
                slow_at = picked.connecting_since + CONNECT_SECONDS_SLOW
                moment = min(moment, max(slow_at, picked.avoided_until))
        return min(moment, self._sync_at)

    def pass_time(self, now: float) -> None:
        """Make again what has waited long enough, and end what has waited too long."""
        self.now = now
        deadlines, resting = self._deadlines, self._resting
        while deadlines and deadlines[0][0] <= now:
            _, _, call = heappop(deadlines)
            if call.rpc is not _NOTHING and call.deadline <= now:
                self._overdue(call)
        while resting and resting[0][0] <= now:
            _, _, call = heappop(resting)
            if call.rpc is not _NOTHING:
                self._attempt(call)
        if self._waiting:
            for endpoint in self.endpoints.all.values():
                # It may be behind something that drops all packets; another may be reached.
                slow_at = endpoint.connecting_since + CONNECT_SECONDS_SLOW
                if endpoint.is_connecting and slow_at <= now:
                    self.endpoints.fails(endpoint, now)
            self._serve_waiting()
        if self._sync_at <= now:
            self._synchronize()

    def _synchronize(self) -> None:
        """Ask for the members, and use those that serve from then on."""
        from kvorum.client.finding import member_addresses, members_request

        # One at a time: a member that does not answer would be asked ever more.
        self._sync_at = float("inf")

        def answered(answer: bytes | KvorumError) -> None:
            if self.closed is None:
                self._sync_at = self.now + self._settings.sync_seconds
            # One that fails is made again when the next is due; the endpoints stay as they are.
            if isinstance(answer, bytes) and (found := member_addresses(answer)):
                self.set_endpoints(found)

        self.start(rpcs.MEMBER_LIST, members_request(), SYNC_SECONDS_MAX, answered)

    # Attempts.

    def _attempt(self, call: Call) -> None:
        endpoint = call.pinned or self.endpoints.pick(self.now)
        if not self._is_ready(endpoint):
            if call.pinned is None:
                self._waiting.append(call)
            elif endpoint.is_connecting:
                self._waiting_pinned.append(call)
            else:
                heappush(self._resting, (endpoint.avoided_until, call.number, call))
            return
        if call.rpc is not rpcs.AUTHENTICATE and not self._has_token():
            self._without_token.append(call)
            return
        call.endpoint = endpoint
        call.attempts += 1
        call.token = self._token or ""
        self._calls[call.number] = call
        metadata = call.request_metadata
        if self._token:
            metadata = (*metadata, *self._token_field())
        self.transport.start(
            call.number, endpoint.number, call.rpc.path, metadata, call.message, True
        )

    def _is_ready(self, endpoint: Endpoint) -> bool:
        if endpoint.is_connected:
            return True
        if not endpoint.is_connecting and endpoint.avoided_until <= self.now:
            endpoint.is_connecting = True
            endpoint.connecting_since = self.now
            self.transport.connect(endpoint.number)
        return endpoint.is_connected

    def _serve_waiting(self) -> None:
        waiting = (*self._waiting, *self._waiting_pinned)
        self._waiting.clear()
        self._waiting_pinned.clear()
        for call in waiting:
            if call.rpc is not _NOTHING:
                self._attempt(call)

    def _failed(self, call: Call, endpoint: Endpoint, end: End) -> None:
        error = error_of(end.code, end.text)
        call.problem = error
        if call.on_message is not None and call.received is not None:
            # Its user has some of the answer, and must not get it twice.
            self._finish(call, error)
            return
        call.received = None
        # A member without a leader refuses calls before it looks at them.
        is_untouched = end.is_unprocessed or isinstance(error, NoLeaderError)
        may_repeat = is_untouched or call.rpc.is_repeatable
        call.is_sent = call.is_sent or not is_untouched
        if isinstance(error, UserEmptyError | InvalidTokenError | AuthOutdatedError):
            self._refused(call, error)
        elif isinstance(error, LearnerUnsupportedError) and len(self.endpoints.all) > 1:
            call.is_sent = False
            self.endpoints.fails(endpoint, self.now)
            self._again(call)
        elif end.code == Code.UNAVAILABLE:
            self.endpoints.fails(endpoint, self.now)
            if may_repeat and self.closed is None:
                self._again(call)
            else:
                self._finish_unknown(call, error)
        elif end.code in (Code.CANCELLED, Code.DEADLINE_EXCEEDED) and call.rpc.is_repeatable:
            # The server's patience was shorter than the caller's.
            self._again(call)
        elif end.code in _UNKNOWN_OUTCOMES and error.status is None:
            self._finish_unknown(call, error)
        else:
            self._finish(call, error)

    def _again(self, call: Call) -> None:
        """Make a call again: at once at another endpoint, after a rest if all were tried."""
        if self._unusable and self._is_hopeless(call):
            self._finish(call, self._unreachable(call))
        elif call.pinned is None and call.attempts % len(self.endpoints.all):
            self._attempt(call)
        else:
            heappush(self._resting, (self.now + RETRY_SECONDS, call.number, call))

    def _asked(self, call: Call) -> list[Endpoint]:
        """Return the endpoints that a call may go to."""
        return [*self.endpoints.all.values()] if call.pinned is None else [call.pinned]

    def _is_hopeless(self, call: Call) -> bool:
        """Return whether no endpoint can be used as it was given, however long a call waits."""
        asked = self._asked(call)
        return all(each.number in self._unusable and not each.is_connected for each in asked)

    def _unreachable(self, call: Call) -> UnavailableError:
        reasons = ", ".join(
            f"{each.address.text}: {self._problems[each.number]}"
            for each in self._asked(call)
            if each.number in self._problems
        )
        return UnavailableError(f"no endpoint could be reached: {reasons}")

    def _finish_unknown(self, call: Call, error: KvorumError) -> None:
        if call.rpc.is_repeatable or not call.is_sent:
            self._finish(call, error)
            return
        unknown = OutcomeUnknownError(f"{call.rpc.path} may have taken effect, or not: {error}")
        unknown.__cause__ = error
        self._finish(call, unknown)

    def _overdue(self, call: Call) -> None:
        if self.closed is not None:
            self._finish(call, self.closed)
            return
        was_sent = call.endpoint is not None
        if call.endpoint is not None:
            self._calls.pop(call.number, None)
            self.transport.cancel(call.number)
            # It may have stopped; others, if there are any, may fare better.
            self.endpoints.fails(call.endpoint, self.now)
        problem = f"; {call.problem}" if call.problem is not None else ""
        late = DeadlineError(f"{call.rpc.path} was not answered in time{problem}")
        if (was_sent or call.is_sent) and not call.rpc.is_repeatable:
            call.is_sent = True
            self._finish_unknown(call, late)
        elif not was_sent and call.problem is None and self._problems:
            self._finish(call, self._unreachable(call))
        else:
            self._finish(call, late)

    def _finish(self, call: Call, answer: bytes | KvorumError) -> None:
        if self._forget(call):
            call.answered(answer)

    def _forget(self, call: Call) -> bool:
        """Let nothing more happen to a call; return whether something still could."""
        if call.rpc is _NOTHING:
            return False
        call.rpc = _NOTHING
        self._calls.pop(call.number, None)
        call.message = b""
        self._ended_count += 1
        if self._ended_count > ENDED_KEPT_MAX and self._ended_count * 2 > len(self._deadlines):
            self._forget_deadlines()
        return True

    def _forget_deadlines(self) -> None:
        """Let go of calls that have ended before their time was over."""
        self._deadlines[:] = [each for each in self._deadlines if each[2].rpc is not _NOTHING]
        heapify(self._deadlines)
        self._ended_count = 0

    def _end_stream(self, stream: Stream, end: End) -> None:
        if end.code == Code.OK:
            stream.on_end(None)
            return
        error = error_of(end.code, end.text)
        if end.code == Code.UNAVAILABLE or isinstance(error, LearnerUnsupportedError):
            self.endpoints.fails(stream.endpoint, self.now)
        if isinstance(error, UserEmptyError | InvalidTokenError | AuthOutdatedError):
            self._forget_token(stream.token)
        stream.on_end(error)

    # Who calls.

    def renews(self, error: KvorumError) -> bool:
        """Return whether an error is cured by a new token, which this client can get."""
        is_refusal = isinstance(error, UserEmptyError | InvalidTokenError | AuthOutdatedError)
        return is_refusal and self._settings.credentials is not None

    def _has_token(self) -> bool:
        """Return whether a call may be sent; if not, a login is under way."""
        if self._token is not None:
            return True
        if not self._is_logging_in:
            self._log_in()
        return False

    def _token_field(self) -> Metadata:
        return (("token", self._token),) if self._token else ()

    def _refused(self, call: Call, error: KvorumError) -> None:
        """Make a call again with a new token, if it can be had: a refused one changed nothing."""
        self._forget_token(call.token)
        call.logins += 1
        call.is_sent = False
        if self._settings.credentials is None or call.logins > LOGINS_MAX:
            if isinstance(error, AuthOutdatedError) and call.logins <= LOGINS_MAX:
                # A certificate's user: the next look at the store is a new one.
                self._again(call)
            else:
                self._finish(call, error)
        else:
            self._attempt(call)

    def refuse(self, stream: Stream) -> None:
        """Note that a server does not take the token that a stream was opened with."""
        self._forget_token(stream.token)

    def _forget_token(self, token: str) -> None:
        if self._settings.credentials is not None and token == self._token:
            self._token = None

    def login_message(self) -> bytes | None:
        """Return what a login asks; None if this client does not log in."""
        credentials = self._settings.credentials
        if credentials is None:
            return None
        request = pb.AuthenticateRequest(name=credentials.user, password=credentials.password)
        return request.SerializeToString()

    def _log_in(self) -> None:
        message = self.login_message()
        assert message is not None
        self._is_logging_in = True
        self.start(rpcs.AUTHENTICATE, message, self._settings.login_seconds_max, self.logged_in)

    def logged_in(self, answer: bytes | KvorumError) -> None:
        """Take the answer of a login: calls that waited for it are made, or fail with it."""
        self._is_logging_in = False
        waiting, self._without_token = self._without_token, []
        if isinstance(answer, bytes):
            self._token = pb.AuthenticateResponse.FromString(answer).token
        elif isinstance(answer, AuthNotEnabledError):
            # Once a token is needed, the first call without one is refused, and fetches it.
            self._token = ""
        else:
            answer.is_of_login = True
            for call in waiting:
                self._finish(call, answer)
            return
        for call in waiting:
            if call.rpc is not _NOTHING:
                self._attempt(call)

    def _timeout(self, rpc: Rpc, seconds: float) -> Metadata:
        """Return the metadata of calls that may take so long; a server need not work longer."""
        known = self._timeouts if rpc.needs_leader else self._timeouts_alone
        if len(known) >= TIMEOUT_TEXTS_KEPT:
            known.clear()
        fields: Metadata = (VERSION, HAS_LEADER) if rpc.needs_leader else (VERSION,)
        if seconds < TIMEOUT_SECONDS_MAX:
            fields = (("grpc-timeout", f"{max(1, int(seconds * 1000))}m"), *fields)
        known[seconds] = fields
        return fields
