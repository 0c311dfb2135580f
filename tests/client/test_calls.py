"""The calls of a client, while endpoints come and go, tokens expire and servers answer anything."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from kvorum.api.errors import Code
from kvorum.api.pb.etcdserverpb import AuthenticateResponse
from kvorum.client import rpcs
from kvorum.client.core import (
    ENDED_KEPT_MAX,
    TIMEOUT_SECONDS_MAX,
    ClientCall,
    ClientStreamCall,
    Core,
    CoreSettings,
    Credentials,
    OnAnswer,
)
from kvorum.client.endpoints import parse_endpoint
from kvorum.client.errors import (
    CallError,
    ClosedError,
    DeadlineError,
    KvorumError,
    OutcomeUnknownError,
    UnavailableError,
)
from kvorum.client.grpc.wire import End, Metadata
from kvorum.client.rpcs import Rpc

INVALID_TOKEN = "etcdserver: invalid auth token"
USER_EMPTY = "etcdserver: user name is empty"
LEARNER = "etcdserver: rpc not supported for learner"
NO_LEADER = "etcdserver: no leader"
NOT_ENABLED = "etcdserver: authentication is not enabled"
LOST = End(Code.UNAVAILABLE, "the connection is lost")


@dataclass
class Sent:
    """A call as a server sees it."""

    endpoint: int
    path: str
    token: str
    message: bytes


class ModelTransport:
    """What the core asks of sockets, written down."""

    def __init__(self) -> None:
        self.core: Core
        self.connecting: set[int] = set()
        self.connected: set[int] = set()
        self.closing: set[int] = set()
        """Connections that take nothing new, which the core was not told yet."""
        self.sent: dict[int, Sent] = {}
        self.attempts: dict[bytes, int] = {}

    def connect(self, endpoint: int) -> None:
        assert endpoint not in self.connecting | self.connected
        assert self.core.closed is None, "a closed client connects"
        self.connecting.add(endpoint)

    def disconnect(self, endpoint: int) -> None:
        self.connected.discard(endpoint)
        self.end_all(endpoint)

    def end_all(self, endpoint: int) -> None:
        for number in [n for n, each in self.sent.items() if each.endpoint == endpoint]:
            self.end(number, LOST)

    def start(
        self,
        call: int,
        endpoint: int,
        path: str,
        metadata: Metadata,
        message: bytes,
        ends: bool,  # noqa: ARG002
    ) -> None:
        assert endpoint in self.connected, "a call at an endpoint that is not connected"
        assert call not in self.sent
        if endpoint in self.closing:
            self.core.take_end(call, End(Code.UNAVAILABLE, "the connection is closing", True))
            return
        self.sent[call] = Sent(endpoint, path, dict(metadata).get("token", ""), message)
        self.attempts[message] = self.attempts.get(message, 0) + 1

    def send(self, call: int, message: bytes) -> None:  # noqa: ARG002
        assert call in self.sent

    def cancel(self, call: int) -> None:
        self.sent.pop(call, None)

    def end(self, call: int, end: End) -> None:
        if self.sent.pop(call, None) is not None:
            self.core.take_end(call, end)


class Asked:
    """A call of a user: how it began, and how it ended."""

    def __init__(self, rpc: Rpc, message: bytes, deadline: float) -> None:
        self.rpc = rpc
        self.message = message
        self.deadline = deadline
        self.call: ClientCall | None = None
        self.answers: list[bytes | KvorumError] = []
        self.is_cancelled = False
        self.may_have_happened = False
        """Whether a server has looked at it and nobody knows what it did."""

    def answered(self, answer: bytes | KvorumError) -> None:
        assert self.call is not None, "an end is told before the call has begun"
        assert not self.is_cancelled, "an end is told of a call that nobody waits for"
        assert not self.answers, "a call ends twice"
        self.answers.append(answer)


ENDS = st.sampled_from(
    [
        End(Code.UNAVAILABLE, "the server refused the call", True),
        End(Code.UNAVAILABLE, NO_LEADER),
        End(Code.UNAVAILABLE, "etcdserver: request timed out"),
        End(Code.UNAVAILABLE, LEARNER),
        End(Code.DEADLINE_EXCEEDED, "context deadline exceeded"),
        End(Code.CANCELLED, "context canceled"),
        End(Code.INTERNAL, "broken"),
        End(Code.INVALID_ARGUMENT, "etcdserver: key is not provided"),
        End(Code.UNAUTHENTICATED, INVALID_TOKEN),
        End(Code.INVALID_ARGUMENT, USER_EMPTY),
        End(77, "a code that nobody knows"),
    ]
)
CHANGES_NOTHING = (
    LEARNER,
    NO_LEADER,
    INVALID_TOKEN,
    USER_EMPTY,
    "etcdserver: key is not provided",
)
RPCS = st.sampled_from([rpcs.RANGE, rpcs.PUT, rpcs.TXN])


class Calls(RuleBasedStateMachine):
    """A client with up to three endpoints, with and without a user."""

    asked: Bundle[Asked] = Bundle("asked")

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Asked] = []
        self.streams: list[tuple[ClientStreamCall, list[KvorumError | None]]] = []
        self.tokens = 0
        self.valid_token = ""
        self.needs_token = False

    @initialize(count=st.integers(1, 3), has_user=st.booleans())
    def begin(self, count: int, has_user: bool) -> None:
        addresses = [parse_endpoint(f"127.0.0.1:{port}") for port in range(1, count + 1)]
        credentials = Credentials("root", "secret") if has_user else None
        self.core = Core(addresses, CoreSettings(credentials=credentials, login_seconds_max=3.0))
        self.transport = ModelTransport()
        self.transport.core = self.core
        self.core.transport = self.transport
        self.needs_token = has_user

    # What users do.

    @rule(target=asked, rpc=RPCS, seconds=st.sampled_from([0.01, 1.0, 5.0, float("inf")]))
    def start(self, rpc: Rpc, seconds: float) -> Asked:
        message = f"message {len(self.all)}".encode()
        asked = Asked(rpc, message, self.core.now + seconds)
        self.all.append(asked)
        asked.call = None
        asked.call = self.core.start(rpc, message, seconds, asked.answered)
        return asked

    @rule(asked=consumes(asked))
    def cancel(self, asked: Asked) -> None:
        assert asked.call is not None
        self.core.cancel(asked.call)
        asked.is_cancelled = not asked.answers

    @rule()
    def open_stream(self) -> None:
        ends: list[KvorumError | None] = []
        is_told = False

        def on_end(error: KvorumError | None) -> None:
            assert is_told, "the end of a stream is told before it is opened"
            assert not ends, "a stream ends twice"
            ends.append(error)

        stream = self.core.open_stream(rpcs.WATCH, b"watch", lambda _: None, on_end)
        is_told = True
        if stream is not None:
            self.streams.append((stream, ends))

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def close_stream(self, data: st.DataObject) -> None:
        stream, _ = self.streams.pop(data.draw(st.integers(0, len(self.streams) - 1)))
        self.core.close_stream(stream)
        assert stream.number not in self.transport.sent

    @rule()
    def close(self) -> None:
        self.core.close()
        assert all(ends for _, ends in self.streams)

    # What happens to endpoints.

    @precondition(lambda self: self.transport.connecting)
    @rule(data=st.data(), succeeds=st.booleans())
    def connect(self, data: st.DataObject, succeeds: bool) -> None:
        endpoint = data.draw(st.sampled_from(sorted(self.transport.connecting)))
        self.transport.connecting.discard(endpoint)
        if succeeds:
            self.transport.connected.add(endpoint)
            self.core.note_connected(endpoint)
        else:
            self.core.note_disconnected(endpoint, "connection refused")

    @precondition(lambda self: self.transport.connected)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        endpoint = data.draw(st.sampled_from(sorted(self.transport.connected)))
        lost = {n for n, each in self.transport.sent.items() if each.endpoint == endpoint}
        self._note_unknown(lost)
        self.transport.connected.discard(endpoint)
        self.transport.closing.discard(endpoint)
        self.core.note_disconnected(endpoint, "the connection is lost")
        for number in lost:
            self.transport.end(number, LOST)

    @precondition(lambda self: self.transport.connected)
    @rule(data=st.data())
    def go_away(self, data: st.DataObject) -> None:
        self.transport.closing.add(data.draw(st.sampled_from(sorted(self.transport.connected))))

    # What servers answer.

    @precondition(lambda self: self.transport.sent)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        self._answer(data.draw(st.sampled_from(sorted(self.transport.sent))))

    def _answer(self, number: int) -> None:
        sent = self.transport.sent[number]
        if sent.path == rpcs.AUTHENTICATE.path:
            self.tokens += 1
            self.valid_token = f"token {self.tokens}"
            answer = AuthenticateResponse(token=self.valid_token).SerializeToString()
        elif self.needs_token and sent.token != self.valid_token:
            self.transport.end(number, End(Code.UNAUTHENTICATED, INVALID_TOKEN))
            return
        elif sent.path == rpcs.WATCH.path:
            self.core.take_message(number, b"event")
            return
        else:
            answer = b"answer to " + sent.message
        self.core.take_message(number, answer)
        self.transport.end(number, End(Code.OK, ""))

    @precondition(lambda self: self.transport.sent)
    @rule(data=st.data(), end=ENDS)
    def fail(self, data: st.DataObject, end: End) -> None:
        number = data.draw(st.sampled_from(sorted(self.transport.sent)))
        if not end.is_unprocessed and end.text not in CHANGES_NOTHING:
            self._note_unknown({number})
        self.transport.end(number, end)

    def _note_unknown(self, numbers: set[int]) -> None:
        messages = {self.transport.sent[number].message for number in numbers}
        for asked in self.all:
            if asked.message in messages and not asked.rpc.is_repeatable:
                asked.may_have_happened = True
                self.transport.attempts[asked.message] = 0

    @rule()
    def expire_token(self) -> None:
        self.valid_token = "another"

    # Time.

    @rule(seconds=st.sampled_from([0.001, 0.03, 1.0, 6.0]))
    def pass_time(self, seconds: float) -> None:
        self.core.pass_time(self.core.now + seconds)
        for asked in self.all:
            is_due = asked.deadline <= self.core.now or self.core.closed is not None
            assert not is_due or asked.answers or asked.is_cancelled, "a call outlives its time"

    @rule()
    def wake(self) -> None:
        """Whoever sleeps until there is something to do does not sleep in vain, nor for ever."""
        moment = self.core.wake_at()
        if moment < float("inf"):
            self.core.pass_time(max(moment, self.core.now))
            assert self.core.wake_at() > self.core.now, "it wakes for nothing, again and again"

    # What holds always.

    @invariant()
    def writes_that_may_have_happened_are_not_made_again(self) -> None:
        for asked in self.all:
            if asked.may_have_happened:
                assert self.transport.attempts.get(asked.message, 0) == 0
                if not asked.is_cancelled:
                    assert asked.answers
                    assert not isinstance(asked.answers[0], bytes | DeadlineError)

    @invariant()
    def answers_are_the_ones_asked_for(self) -> None:
        for asked in self.all:
            for answer in asked.answers:
                assert not isinstance(answer, bytes) or answer == b"answer to " + asked.message

    @invariant()
    def there_is_one_login_at_a_time(self) -> None:
        if hasattr(self, "transport"):
            paths = [each.path for each in self.transport.sent.values()]
            assert paths.count(rpcs.AUTHENTICATE.path) <= 1

    def teardown(self) -> None:
        """Everything works again: what has begun is answered, and then nothing is left."""
        if not hasattr(self, "core"):
            return
        core, transport = self.core, self.transport
        if core.closed is None:
            self._settle()
            late = Asked(rpcs.PUT, b"late", core.now + 60)
            late.call = core.start(rpcs.PUT, b"late", 60, late.answered)
            self._settle()
            assert late.answers == [b"answer to late"]
        core.close()
        core.pass_time(core.now)
        assert all(asked.answers or asked.is_cancelled for asked in self.all)
        core.wake_at()
        tables = (core._calls, core._waiting, core._without_token, core._delayed, core._streams)
        assert not any(tables)
        assert not core._deadlines
        assert not transport.sent

    def _settle(self) -> None:
        core, transport = self.core, self.transport
        for endpoint in sorted(transport.closing & transport.connected):
            transport.connected.discard(endpoint)
            core.note_disconnected(endpoint, "the server is going away")
            transport.end_all(endpoint)
        transport.closing.clear()
        for _ in range(60):
            for endpoint in sorted(transport.connecting):
                transport.connecting.discard(endpoint)
                transport.connected.add(endpoint)
                core.note_connected(endpoint)
            for number, sent in list(transport.sent.items()):
                if sent.path != rpcs.WATCH.path and number in transport.sent:
                    self._answer(number)
            core.pass_time(core.now + 0.1)


TestCalls = Calls.TestCase
TestCalls.settings = settings(stateful_step_count=40)


# What a machine would seldom come across.


def core_with(count: int) -> tuple[Core, ModelTransport]:
    addresses = [parse_endpoint(f"127.0.0.1:{port}") for port in range(1, count + 1)]
    core, transport = Core(addresses, CoreSettings()), ModelTransport()
    transport.core = core
    core.transport = transport
    return core, transport


def taking(answers: list[bytes | KvorumError]) -> OnAnswer:
    return answers.append


def connect(core: Core, transport: ModelTransport) -> int:
    (endpoint,) = transport.connecting
    transport.connecting.clear()
    transport.connected.add(endpoint)
    core.note_connected(endpoint)
    return endpoint


def test_an_endpoint_that_lost_many_calls_at_once_has_failed_once() -> None:
    core, transport = core_with(1)
    answers: list[bytes | KvorumError] = []
    for _ in range(100):
        core.start(rpcs.RANGE, b"read", 5.0, taking(answers))
    endpoint = connect(core, transport)
    transport.connected.clear()
    core.note_disconnected(endpoint, "lost")
    transport.end_all(endpoint)
    core.pass_time(0.1)
    assert transport.connecting, "it is tried again soon"


def test_an_endpoint_that_does_not_answer_in_time_is_left() -> None:
    core, transport = core_with(2)
    answers: list[bytes | KvorumError] = []
    core.start(rpcs.RANGE, b"first", 1.0, taking(answers))
    silent = connect(core, transport)
    core.pass_time(1.0)
    assert isinstance(answers[0], DeadlineError)
    core.start(rpcs.RANGE, b"second", 1.0, taking(answers))
    assert connect(core, transport) != silent
    assert transport.attempts == {b"first": 1, b"second": 1}


def test_an_endpoint_that_is_slow_to_connect_does_not_keep_a_call_from_others() -> None:
    core, transport = core_with(3)
    answers: list[bytes | KvorumError] = []
    core.start(rpcs.RANGE, b"read", 5.0, taking(answers))
    slow = set(transport.connecting)
    core.pass_time(core.wake_at())
    (other,) = transport.connecting - slow
    transport.connecting.discard(other)
    transport.connected.add(other)
    core.note_connected(other)
    assert transport.attempts == {b"read": 1}


def test_calls_that_have_ended_are_not_kept_until_their_time_is_over() -> None:
    core, transport = core_with(1)
    answers: list[bytes | KvorumError] = []
    core.start(rpcs.RANGE, b"forever", float("inf"), taking(answers))
    connect(core, transport)
    for _ in range(ENDED_KEPT_MAX * 3):
        call = core.start(rpcs.RANGE, b"read", float("inf"), taking(answers))
        core.take_message(call.number, b"found")
        transport.end(call.number, End(Code.OK, ""))
    assert len(core._deadlines) <= ENDED_KEPT_MAX + 2


def test_the_kind_of_error_shows_the_reason() -> None:
    core, transport = core_with(1)
    answers: list[bytes | KvorumError] = []
    core.start(rpcs.PUT, b"unreachable", 1.0, taking(answers))
    (endpoint,) = transport.connecting
    transport.connecting.clear()
    core.note_disconnected(endpoint, "connection refused")
    core.pass_time(1.0)
    core.start(rpcs.PUT, b"unanswered", 1.0, taking(answers))
    connect(core, transport)
    core.pass_time(2.0)
    core.start(rpcs.RANGE, b"unanswered read", 1.0, taking(answers))
    core.pass_time(3.0)
    call = core.start(rpcs.PUT, b"refused", TIMEOUT_SECONDS_MAX, taking(answers))
    transport.end(call.number, End(Code.INVALID_ARGUMENT, "etcdserver: key is not provided"))
    core.close()
    core.start(rpcs.PUT, b"closed", 1.0, taking(answers))
    core.pass_time(3.0)
    kinds = (UnavailableError, OutcomeUnknownError, DeadlineError, CallError, ClosedError)
    assert tuple(type(answer) for answer in answers[:3]) == kinds[:3]
    assert [isinstance(a, k) for a, k in zip(answers, kinds, strict=True)] == [True] * 5
    unknown = answers[1]
    assert isinstance(unknown, OutcomeUnknownError)
    assert isinstance(unknown.__cause__, DeadlineError)
