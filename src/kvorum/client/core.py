"""The calls of a client: where they go, when they are repeated, how they end.

The core has no socket, thread or clock: a transport carries calls, and the shell passes in the
time. Rules:

- The core repeats reads and other idempotent calls until their timeout. It repeats a write only if
  no server has processed it; otherwise the write ends with OutcomeUnknownError. A call that needs
  a leader asks its member to refuse it if the member knows none.
- One login at a time fetches the user's token, and calls wait for it. A call that a server refuses
  because of its token has changed nothing, so the core repeats it with a new token.
- The core reports the end of each call exactly once, unless the call is cancelled, and never before
  `start` has returned.
"""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

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
from kvorum.client.grpc.wire import End, Metadata
from kvorum.client.rpcs import Rpc

if TYPE_CHECKING:
    from kvorum.client.interface import ClientTransport

RETRY_SECONDS: Final = 0.025
"""How long a call waits after it has tried all endpoints."""
SYNC_SECONDS_MAX: Final = 5.0
"""The timeout of the request for the member list."""
CONNECT_SECONDS_SLOW: Final = 1.0
"""If connecting takes longer, the client tries another endpoint as well."""
LOGINS_MAX: Final = 3
"""How many new tokens a call waits for before it ends with the refusal."""
TIMEOUT_TEXTS_KEPT: Final = 64
ENDED_KEPT_MAX: Final = 1000
"""Up to this many ended calls may stay in the heap of deadlines until their deadline."""
TIMEOUT_SECONDS_MAX: Final = 99_999.0
"""Longer timeouts exceed the digits of `grpc-timeout`; the core does not send them."""
HAS_LEADER: Final = ("hasleader", "true")
VERSION: Final = ("client-api-version", "3.7")

_NOTHING: Final = Rpc("", False, False)
"""The method of a call that has ended."""
_UNKNOWN_OUTCOMES: Final = (Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.UNKNOWN, Code.INTERNAL)
"""Codes that do not say whether a write took effect, unless the text is one of etcd's."""

OnAnswer = Callable[[bytes | KvorumError], None]
TakeMessage = Callable[[bytes], None]


class Credentials(NamedTuple):
    """The name and password of the user as which a client logs in."""

    user: str
    password: str


class CoreSettings(NamedTuple):
    """The settings of a client's core, which do not change."""

    credentials: Credentials | None = None
    token: str = ""
    """A token from elsewhere, which the client never renews."""
    login_seconds_max: float = 5.0
    sync_seconds: float = float("inf")
    """How often the client replaces its endpoints by those in the cluster's member list."""


class ClientCall:
    """A call as its user sees it; the transport may carry several attempts."""

    __slots__ = (
        "attempts",
        "deadline",
        "endpoint",
        "is_sent",
        "logins",
        "message",
        "number",
        "on_answer",
        "on_message",
        "pinned",
        "problem",
        "received",
        "request_metadata",
        "rpc",
        "token",
    )

    def __init__(
        self, number: int, rpc: Rpc, message: bytes, deadline: float, on_answer: OnAnswer
    ) -> None:
        self.number: int = number
        self.rpc: Rpc = rpc
        self.message: bytes = message
        self.deadline: float = deadline
        self.on_answer: OnAnswer = on_answer
        self.endpoint: Endpoint | None = None
        """The endpoint of the current attempt; None while the call waits."""
        self.pinned: Endpoint | None = None
        """The only endpoint that the call may go to."""
        self.attempts: int = 0
        self.logins: int = 0
        self.is_sent: bool = False
        """Whether a server may have processed the call."""
        self.received: bytes | None = None
        self.on_message: TakeMessage | None = None
        """Receives each message, if the server answers the call with several."""
        self.problem: KvorumError | None = None
        """The error of the last attempt."""
        self.request_metadata: Metadata = ()
        self.token: str = ""


class ClientStreamCall:
    """A call with messages in both directions, which the core never repeats."""

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
    """Ignore the end of a stream that `open_stream` has not returned yet."""


class Core:
    """The calls of one client."""

    def __init__(
        self, addresses: Sequence[Address], settings: CoreSettings, *, start: int = 0
    ) -> None:
        self.transport: ClientTransport
        self.endpoints: Endpoints = Endpoints(addresses, start)
        self.now: float = 0.0
        self.closed: KvorumError | None = None
        self._settings = settings
        self._token = settings.token if settings.credentials is None else None
        """Empty if the client needs no token, None if it must log in for one."""
        self._next_number = 1
        self._calls: dict[int, ClientCall] = {}
        """Calls that are at a server."""
        self._waiting: deque[ClientCall] = deque()
        """Calls that wait for an endpoint."""
        self._waiting_pinned: deque[ClientCall] = deque()
        """Calls that wait for the one endpoint that they may go to, which is being connected."""
        self._without_token: list[ClientCall] = []
        self._delayed: list[tuple[float, int, ClientCall]] = []
        """Calls that wait a moment before they are repeated."""
        self._deadlines: list[tuple[float, int, ClientCall]] = []
        self._ended_count = 0
        """How many calls among the deadlines may have ended already."""
        self._streams: dict[int, ClientStreamCall] = {}
        self._timeouts: dict[float, Metadata] = {}
        self._timeouts_alone: dict[float, Metadata] = {}
        """The metadata of calls by timeout: of those that need a leader, and of the others."""
        self._is_logging_in = False
        self._problems: dict[int, str] = {}
        """Why each endpoint could not be reached."""
        self._unusable: set[int] = set()
        """Endpoints that cannot be used as configured, so that retries are useless."""
        self._former: set[Endpoint] = set()
        """Former endpoints that still have calls to finish."""
        self._sync_at = 0.0 if settings.sync_seconds < float("inf") else float("inf")

    def copy(self) -> "Core":
        """Return an independent core with the same endpoints and the same user."""
        addresses = [each.address for each in self.endpoints.all.values()]
        return Core(addresses, self._settings)

    # Requests of the client's users.

    def start(
        self,
        rpc: Rpc,
        message: bytes,
        seconds_max: float,
        on_answer: OnAnswer,
        at: int | None = None,
        on_message: TakeMessage | None = None,
    ) -> ClientCall:
        """Start a call; `on_answer` gets the answer's message or an error, once.

        With `at`, the call goes to that endpoint alone. With `on_message`, that function gets every
        message of the answer, and `on_answer` an empty one; after the first message the core does
        not repeat the call.
        """
        self._next_number += 1
        call = ClientCall(self._next_number, rpc, message, self.now + seconds_max, on_answer)
        known = self._timeouts if rpc.needs_leader else self._timeouts_alone
        call.request_metadata = known.get(seconds_max) or self._timeout_metadata(rpc, seconds_max)
        if at is not None:
            call.pinned = self.endpoints.known[at]
        call.on_message = on_message
        if self.closed is not None:
            # The next `pass_time` reports the end: `start` returns before `on_answer` is called.
            call.deadline = self.now
        heappush(self._deadlines, (call.deadline, call.number, call))
        if self.closed is None:
            self._attempt(call)
        return call

    def cancel(self, call: ClientCall) -> None:
        """Cancel a call; `on_answer` is then never called."""
        if self._forget(call) and call.endpoint is not None:
            self.transport.cancel(call.number)
            self._disconnect_former()

    def open_stream(
        self,
        rpc: Rpc,
        message: bytes,
        on_message: Callable[[bytes], None],
        on_end: Callable[[KvorumError | None], None],
        metadata: Metadata = (),
        at: int | None = None,
    ) -> ClientStreamCall | None:
        """Open a stream with its first message; return None if no endpoint is ready."""
        endpoint = self.endpoints.pick(self.now) if at is None else self.endpoints.known[at]
        if self.closed is not None or not self._is_ready(endpoint) or not self._has_token():
            return None
        self._next_number += 1
        stream = ClientStreamCall(self._next_number, endpoint, on_message, _ignore)
        stream.token = self._token or ""
        self._streams[stream.number] = stream
        fields = (*metadata, VERSION, *self._token_field())
        self.transport.start(stream.number, endpoint.number, rpc.path, fields, message, False)
        if stream.number not in self._streams:
            # The connection is closing, so the stream has ended already.
            return None
        stream.on_end = on_end
        return stream

    def send(self, stream: ClientStreamCall, message: bytes) -> None:
        """Send another message on a stream."""
        self.transport.send(stream.number, message)

    def close_stream(self, stream: ClientStreamCall) -> None:
        """Cancel a stream; its callbacks are then never called."""
        if self._streams.pop(stream.number, None) is not None:
            self.transport.cancel(stream.number)
            self._disconnect_former()

    def close(self) -> None:
        """End all calls and streams with ClosedError; later calls end with it, too."""
        if self.closed is not None:
            return
        self.closed = ClosedError("the client is closed")
        self._sync_at = float("inf")
        waiting = [*self._waiting, *self._waiting_pinned, *self._without_token]
        for call in [*self._calls.values(), *waiting]:
            self._finish(call, self.closed)
        for _, _, call in self._delayed:
            self._finish(call, self.closed)
        self._delayed.clear()
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
        """Use other endpoints; the former ones finish the calls that they have."""
        self._former.update(self.endpoints.replace(addresses))
        self._former.difference_update(self.endpoints.all.values())
        self._disconnect_former()
        self._serve_waiting()

    def _disconnect_former(self) -> None:
        """Close the connections to former endpoints whose calls have all ended."""
        if self._former:
            used = {each.endpoint for each in self._calls.values()}
            used.update(each.endpoint for each in self._streams.values())
            for endpoint in sorted(self._former - used, key=lambda each: each.number):
                self._former.discard(endpoint)
                endpoint.is_connected = False
                self.transport.disconnect(endpoint.number)

    # Reports of the transport.

    def note_connected(self, number: int) -> None:
        """Record that an endpoint is connected."""
        endpoint = self.endpoints.known[number]
        endpoint.is_connecting = False
        if number not in self.endpoints.all and not endpoint.is_pinned:
            self.transport.disconnect(number)
            return
        endpoint.is_connected = True
        self._problems.pop(number, None)
        self._serve_waiting()

    def note_disconnected(self, number: int, reason: str, *, is_unusable: bool = False) -> None:
        """Record that an endpoint could not be reached, was lost, or takes no new calls.

        An endpoint is unusable if it speaks another protocol, or if its TLS cannot work as
        configured. Calls then wait for it no longer.
        """
        endpoint = self.endpoints.known[number]
        endpoint.is_connecting = endpoint.is_connected = False
        self._problems[number] = reason
        if not is_unusable:
            self._unusable.discard(number)
        else:
            self._unusable.add(number)
        self.endpoints.avoid(endpoint, self.now)
        self._serve_waiting()
        for call in [*self._waiting, *self._waiting_pinned] if is_unusable else ():
            if self._is_hopeless(call):
                self._finish(call, self._unreachable_error(call))

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
            self._disconnect_former()
            return
        endpoint = call.endpoint
        assert endpoint is not None
        if end.code == Code.OK:
            if endpoint.failures:
                self.endpoints.note_success(endpoint)
            received = call.received if call.on_message is None else b""
            if received is None:
                received_error = CallError(Code.INTERNAL, "the server answered without a message")
                self._finish(call, received_error)
            else:
                self._finish(call, received)
        else:
            call.endpoint = None
            self._take_failure(call, endpoint, end)
        if self._former:
            self._disconnect_former()

    # Time.

    def wake_at(self) -> float:
        """Return when to call `pass_time` next if nothing happens before."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][2].rpc is _NOTHING:
            heappop(deadlines)
        moment = deadlines[0][0] if deadlines else float("inf")
        if self._delayed:
            moment = min(moment, self._delayed[0][0])
        if self._waiting:
            picked = self.endpoints.pick(self.now)
            if not picked.is_connecting:
                moment = min(moment, picked.avoided_until)
            elif len(self.endpoints.all) > 1:
                slow_at = picked.connecting_since + CONNECT_SECONDS_SLOW
                moment = min(moment, max(slow_at, picked.avoided_until))
        return min(moment, self._sync_at)

    def pass_time(self, now: float) -> None:
        """Repeat calls that have waited long enough, and end those whose timeout has expired."""
        self.now = now
        deadlines, resting = self._deadlines, self._delayed
        while deadlines and deadlines[0][0] <= now:
            _, _, call = heappop(deadlines)
            if call.rpc is not _NOTHING and call.deadline <= now:
                self._expire(call)
        while resting and resting[0][0] <= now:
            _, _, call = heappop(resting)
            if call.rpc is not _NOTHING:
                self._attempt(call)
        if self._waiting:
            for endpoint in self.endpoints.all.values():
                # A firewall may drop all packets to this endpoint; try another one as well.
                slow_at = endpoint.connecting_since + CONNECT_SECONDS_SLOW
                if endpoint.is_connecting and slow_at <= now:
                    self.endpoints.avoid(endpoint, now)
            self._serve_waiting()
        if self._sync_at <= now:
            self._synchronize()

    def _synchronize(self) -> None:
        """Request the member list, and use the endpoints in it from then on."""
        from kvorum.client.finding import member_addresses, members_request

        # One at a time: requests would pile up at a member that does not answer.
        self._sync_at = float("inf")

        def take_answer(answer: bytes | KvorumError) -> None:
            if self.closed is None:
                self._sync_at = self.now + self._settings.sync_seconds
            # After a failure the endpoints stay as they are until the next request.
            if isinstance(answer, bytes) and (found := member_addresses(answer)):
                self.set_endpoints(found)

        self.start(rpcs.MEMBER_LIST, members_request(), SYNC_SECONDS_MAX, take_answer)

    # Attempts.

    def _attempt(self, call: ClientCall) -> None:
        endpoint = call.pinned or self.endpoints.pick(self.now)
        if not self._is_ready(endpoint):
            if call.pinned is None:
                self._waiting.append(call)
            elif endpoint.is_connecting:
                self._waiting_pinned.append(call)
            else:
                heappush(self._delayed, (endpoint.avoided_until, call.number, call))
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

    def _take_failure(self, call: ClientCall, endpoint: Endpoint, end: End) -> None:
        error = error_of(end.code, end.text)
        call.problem = error
        if call.on_message is not None and call.received is not None:
            # The user has a part of the answer, and must not get that part twice.
            self._finish(call, error)
            return
        call.received = None
        # A member without a leader refuses calls before it processes them.
        is_untouched = end.is_unprocessed or isinstance(error, NoLeaderError)
        may_repeat = is_untouched or call.rpc.is_repeatable
        call.is_sent = call.is_sent or not is_untouched
        if isinstance(error, UserEmptyError | InvalidTokenError | AuthOutdatedError):
            self._take_token_refusal(call, error)
        elif isinstance(error, LearnerUnsupportedError) and len(self.endpoints.all) > 1:
            call.is_sent = False
            self.endpoints.avoid(endpoint, self.now)
            self._repeat(call)
        elif end.code == Code.UNAVAILABLE:
            self.endpoints.avoid(endpoint, self.now)
            if may_repeat and self.closed is None:
                self._repeat(call)
            else:
                self._finish_unknown(call, error)
        elif end.code in (Code.CANCELLED, Code.DEADLINE_EXCEEDED) and call.rpc.is_repeatable:
            # The server's timeout was shorter than the caller's.
            self._repeat(call)
        elif end.code in _UNKNOWN_OUTCOMES and error.status is None:
            self._finish_unknown(call, error)
        else:
            self._finish(call, error)

    def _repeat(self, call: ClientCall) -> None:
        """Repeat a call: at once at another endpoint, or after a pause if it has tried all."""
        if self._unusable and self._is_hopeless(call):
            self._finish(call, self._unreachable_error(call))
        elif call.pinned is None and call.attempts % len(self.endpoints.all):
            self._attempt(call)
        else:
            heappush(self._delayed, (self.now + RETRY_SECONDS, call.number, call))

    def _eligible_endpoints(self, call: ClientCall) -> list[Endpoint]:
        """Return the endpoints that a call may go to."""
        return [*self.endpoints.all.values()] if call.pinned is None else [call.pinned]

    def _is_hopeless(self, call: ClientCall) -> bool:
        """Return whether none of a call's endpoints can be used as configured."""
        asked = self._eligible_endpoints(call)
        return all(each.number in self._unusable and not each.is_connected for each in asked)

    def _unreachable_error(self, call: ClientCall) -> UnavailableError:
        reasons = ", ".join(
            f"{each.address.text}: {self._problems[each.number]}"
            for each in self._eligible_endpoints(call)
            if each.number in self._problems
        )
        return UnavailableError(f"no endpoint could be reached: {reasons}")

    def _finish_unknown(self, call: ClientCall, error: KvorumError) -> None:
        if call.rpc.is_repeatable or not call.is_sent:
            self._finish(call, error)
            return
        unknown = OutcomeUnknownError(f"{call.rpc.path} may have taken effect, or not: {error}")
        unknown.__cause__ = error
        self._finish(call, unknown)

    def _expire(self, call: ClientCall) -> None:
        if self.closed is not None:
            self._finish(call, self.closed)
            return
        was_sent = call.endpoint is not None
        if call.endpoint is not None:
            self._calls.pop(call.number, None)
            self.transport.cancel(call.number)
            # The endpoint may hang; another one, if there is any, may answer.
            self.endpoints.avoid(call.endpoint, self.now)
        problem = f"; {call.problem}" if call.problem is not None else ""
        late = DeadlineError(f"{call.rpc.path} was not answered in time{problem}")
        if (was_sent or call.is_sent) and not call.rpc.is_repeatable:
            call.is_sent = True
            self._finish_unknown(call, late)
        elif not was_sent and call.problem is None and self._problems:
            self._finish(call, self._unreachable_error(call))
        else:
            self._finish(call, late)

    def _finish(self, call: ClientCall, answer: bytes | KvorumError) -> None:
        if self._forget(call):
            call.on_answer(answer)

    def _forget(self, call: ClientCall) -> bool:
        """Mark a call as ended; return False if it had ended before."""
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
        """Remove ended calls from the deadlines."""
        self._deadlines[:] = [each for each in self._deadlines if each[2].rpc is not _NOTHING]
        heapify(self._deadlines)
        self._ended_count = 0

    def _end_stream(self, stream: ClientStreamCall, end: End) -> None:
        if end.code == Code.OK:
            stream.on_end(None)
            return
        error = error_of(end.code, end.text)
        if end.code == Code.UNAVAILABLE or isinstance(error, LearnerUnsupportedError):
            self.endpoints.avoid(stream.endpoint, self.now)
        if isinstance(error, UserEmptyError | InvalidTokenError | AuthOutdatedError):
            self._forget_token(stream.token)
        stream.on_end(error)

    # Authentication.

    def is_fixed_by_login(self, error: KvorumError) -> bool:
        """Return whether a new token would cure an error, and this client can get one."""
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

    def _take_token_refusal(self, call: ClientCall, error: KvorumError) -> None:
        """Repeat a refused call, which has changed nothing, if the client can get a new token."""
        self._forget_token(call.token)
        call.logins += 1
        call.is_sent = False
        if self._settings.credentials is None or call.logins > LOGINS_MAX:
            if isinstance(error, AuthOutdatedError) and call.logins <= LOGINS_MAX:
                # The user of a certificate needs no token; the retry sees the new auth revision.
                self._repeat(call)
            else:
                self._finish(call, error)
        else:
            self._attempt(call)

    def reject_token(self, stream: ClientStreamCall) -> None:
        """Record that a server rejects the token with which a stream was opened."""
        self._forget_token(stream.token)

    def _forget_token(self, token: str) -> None:
        if self._settings.credentials is not None and token == self._token:
            self._token = None

    def login_message(self) -> bytes | None:
        """Return the request of a login; None if this client does not log in."""
        credentials = self._settings.credentials
        if credentials is None:
            return None
        request = pb.AuthenticateRequest(name=credentials.user, password=credentials.password)
        return request.SerializeToString()

    def _log_in(self) -> None:
        message = self.login_message()
        assert message is not None
        self._is_logging_in = True
        self.start(
            rpcs.AUTHENTICATE, message, self._settings.login_seconds_max, self.take_login_answer
        )

    def take_login_answer(self, answer: bytes | KvorumError) -> None:
        """Take the answer of a login: start the calls that waited for it, or fail them."""
        self._is_logging_in = False
        waiting, self._without_token = self._without_token, []
        if isinstance(answer, bytes):
            self._token = pb.AuthenticateResponse.FromString(answer).token
        elif isinstance(answer, AuthNotEnabledError):
            # Once authentication is enabled, a server refuses the next call, which then logs in.
            self._token = ""
        else:
            answer.is_of_login = True
            for call in waiting:
                self._finish(call, answer)
            return
        for call in waiting:
            if call.rpc is not _NOTHING:
                self._attempt(call)

    def _timeout_metadata(self, rpc: Rpc, seconds: float) -> Metadata:
        """Return the metadata of calls with a timeout, which lets the server stop working then."""
        known = self._timeouts if rpc.needs_leader else self._timeouts_alone
        if len(known) >= TIMEOUT_TEXTS_KEPT:
            known.clear()
        fields: Metadata = (VERSION, HAS_LEADER) if rpc.needs_leader else (VERSION,)
        if seconds < TIMEOUT_SECONDS_MAX:
            fields = (("grpc-timeout", f"{max(1, int(seconds * 1000))}m"), *fields)
        known[seconds] = fields
        return fields
