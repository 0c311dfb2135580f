"""The core's rules about endpoints and streams, on a transport that only writes down."""

import pytest

from kvorum.api.errors import Code
from kvorum.client import rpcs
from kvorum.client.core import Core, CoreSettings
from kvorum.client.endpoints import parse_endpoint
from kvorum.client.errors import CallError, KvorumError, UnavailableError
from kvorum.client.grpc.wire import End, Metadata

FOREVER = float("inf")


class Recorder:
    """A transport without a network."""

    def __init__(self) -> None:
        self.connecting: list[int] = []
        self.given_up: list[int] = []
        self.started: list[tuple[int, int]] = []
        """Calls and the endpoints at which they are."""

    def connect(self, endpoint: int) -> None:
        self.connecting.append(endpoint)

    def disconnect(self, endpoint: int) -> None:
        self.given_up.append(endpoint)

    def start(
        self, call: int, endpoint: int, path: str, metadata: Metadata, message: bytes, ends: bool
    ) -> None:
        del path, metadata, message, ends
        self.started.append((call, endpoint))

    def send(self, call: int, message: bytes) -> None: ...

    def cancel(self, call: int) -> None: ...


class RecordedAnswers:
    """Records the messages and ends that a call reports."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.ends: list[bytes | KvorumError] = []


def core_of(*endpoints: str) -> tuple[Core, Recorder]:
    core, transport = Core([parse_endpoint(each) for each in endpoints], CoreSettings()), Recorder()
    core.transport = transport
    return core, transport


def connected(core: Core, transport: Recorder) -> None:
    for number in transport.connecting:
        core.note_connected(number)
    transport.connecting.clear()


def test_the_members_are_asked_for_again_only_after_an_answer() -> None:
    core, transport = Core([parse_endpoint("a:1")], CoreSettings(sync_seconds=1.0)), Recorder()
    core.transport = transport
    core.pass_time(0.0)
    connected(core, transport)
    for second in range(1, 5):
        core.pass_time(float(second))
    assert len(transport.started) == 1
    call, _ = transport.started[0]
    core.take_end(call, End(Code.PERMISSION_DENIED, "no"))
    core.pass_time(core.wake_at())
    assert len(transport.started) == 2


def test_an_endpoint_that_is_given_up_finishes_its_calls() -> None:
    core, transport = core_of("a:1")
    told = RecordedAnswers()
    core.start(rpcs.PUT, b"", FOREVER, told.ends.append)
    connected(core, transport)
    ((call, first),) = transport.started
    core.set_endpoints([parse_endpoint("b:1")])
    assert transport.given_up == []
    core.start(rpcs.PUT, b"", FOREVER, told.ends.append)
    connected(core, transport)
    assert transport.started[1][1] != first
    core.take_message(call, b"done")
    core.take_end(call, End(Code.OK, ""))
    assert told.ends == [b"done"]
    assert transport.given_up == [first]


def test_an_endpoint_that_comes_back_is_not_given_up() -> None:
    core, transport = core_of("a:1")
    core.start(rpcs.PUT, b"", FOREVER, RecordedAnswers().ends.append)
    connected(core, transport)
    core.set_endpoints([parse_endpoint("b:1")])
    core.set_endpoints([parse_endpoint("a:1")])
    ((call, first),) = transport.started
    core.take_end(call, End(Code.UNKNOWN, ""))
    assert first not in transport.given_up


def test_a_connection_that_comes_too_late_is_given_up() -> None:
    core, transport = core_of("a:1")
    core.start(rpcs.PUT, b"", FOREVER, RecordedAnswers().ends.append)
    core.set_endpoints([parse_endpoint("b:1")])
    first, second = transport.connecting
    transport.given_up.clear()
    core.note_connected(first)
    assert transport.given_up == [first] and transport.started == []
    core.note_connected(second)
    assert [endpoint for _, endpoint in transport.started] == [second]


def test_a_call_by_name_waits_for_its_endpoint_alone() -> None:
    core, transport = core_of("a:1")
    told = RecordedAnswers()
    named = core.endpoints.pin_endpoint(parse_endpoint("b:1")).number
    core.start(rpcs.STATUS, b"", 10.0, told.ends.append, named)
    assert transport.connecting == [named]
    # There is nothing to do before it is connected: whoever waits need not look again at once.
    assert core.wake_at() == 10.0
    core.note_disconnected(named, "refused")
    again = core.wake_at()
    assert 0.0 < again < 10.0
    core.pass_time(again)
    assert transport.connecting == [named, named]
    core.pass_time(10.0)
    (error,) = told.ends
    assert isinstance(error, UnavailableError) and "b:1: refused" in str(error)


@pytest.mark.parametrize("has_message", [False, True])
def test_a_stream_is_opened_again_until_its_first_message(has_message: bool) -> None:
    core, transport = core_of("a:1", "b:1")
    told = RecordedAnswers()
    core.start(rpcs.SNAPSHOT, b"", FOREVER, told.ends.append, None, told.messages.append)
    connected(core, transport)
    call, first = transport.started[0]
    if has_message:
        core.take_message(call, b"part")
    core.take_end(call, End(Code.UNAVAILABLE, "lost"))
    connected(core, transport)
    if has_message:
        (error,) = told.ends
        assert isinstance(error, CallError) and told.messages == [b"part"]
        assert len(transport.started) == 1
        return
    (_, _), (call, second) = transport.started
    assert second != first
    for part in (b"1", b"2"):
        core.take_message(call, part)
    core.take_end(call, End(Code.OK, ""))
    assert told.messages == [b"1", b"2"] and told.ends == [b""]
