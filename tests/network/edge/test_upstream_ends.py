"""How calls and connections end: a server that answers as the test says, frame by frame."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hyperframe.frame import DataFrame, Frame, PingFrame, RstStreamFrame

from kvorum.api.errors import Code
from kvorum.network.edge.upstream import UpstreamEventKind
from tests.network.edge.caller import Caller
from tests.network.edge.conftest import OpenCaller
from tests.network.edge.raw_server import OK_HEADERS, OK_TRAILERS, STREAMS_MAX, RawServer, connected
from tests.network.edge.service import ECHO
from tests.network.edge.wire import message
from tests.waiting import until

REFUSED = (Code.UNAVAILABLE, "the server refused the call", True)
CLOSING = (Code.UNAVAILABLE, "the connection is closing", True)


@pytest.fixture
def server() -> Iterator[RawServer]:
    with RawServer() as running:
        yield running


def begun(
    caller: Caller, server: RawServer, endpoint: int, message: bytes = b""
) -> tuple[int, int]:
    """Begin a unary call; return it and its stream."""
    call = caller.begin(endpoint, ECHO, message)
    caller.turn()
    return call, server.expect_call()[0]


def test_what_a_call_begins_with(caller: Caller, server: RawServer) -> None:
    endpoint = connected(caller, server)
    metadata = (("key", b"value"), ("data-bin", b"\xff\xfe\xfd\0"))
    caller.begin(endpoint, ECHO, b"message", metadata)
    caller.turn()
    stream, headers = server.expect_call()
    assert headers.pop("user-agent")
    assert headers == {
        ":method": "POST",
        ":scheme": "http",
        ":path": ECHO,
        ":authority": "test",
        "te": "trailers",
        "content-type": "application/grpc",
        "key": "value",
        "data-bin": "//79AA",
    }
    frame = server.expect(DataFrame)
    assert isinstance(frame, DataFrame)
    assert (frame.stream_id, frame.data) == (stream, message(b"message"))
    assert "END_STREAM" in frame.flags


ENDS = [
    ([("grpc-status", "5"), ("grpc-message", "not%20here %e2%98%83")], (5, "not here \N{SNOWMAN}")),
    ([("grpc-status", "x")], (Code.UNKNOWN, "")),
    ([("grpc-status", "")], (Code.UNKNOWN, "")),
    ([("grpc-status", "999")], (999, "")),
    ([("other", "x")], (Code.UNKNOWN, "the server ended the call without a status")),
    ([("grpc-status", "0")], (Code.INTERNAL, "the server answered without a message")),
]


@pytest.mark.parametrize(("fields", "expected"), ENDS)
@pytest.mark.parametrize("only", [True, False], ids=["trailers-only", "trailers"])
def test_statuses(
    caller: Caller,
    server: RawServer,
    fields: list[tuple[str, str]],
    expected: tuple[int, str],
    only: bool,
) -> None:
    endpoint = connected(caller, server)
    call, stream = begun(caller, server, endpoint)
    if only:
        server.send(server.headers(stream, *OK_HEADERS, *fields, ends=True))
    else:
        server.send(server.headers(stream, *OK_HEADERS), server.headers(stream, *fields, ends=True))
    assert caller.end(call) == (*expected, False)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("400", Code.INTERNAL),
        ("401", Code.UNAUTHENTICATED),
        ("403", Code.PERMISSION_DENIED),
        ("404", Code.UNIMPLEMENTED),
        ("418", Code.UNKNOWN),
        ("429", Code.UNAVAILABLE),
        ("502", Code.UNAVAILABLE),
        ("503", Code.UNAVAILABLE),
        ("504", Code.UNAVAILABLE),
    ],
)
def test_an_answer_that_is_none_of_grpc_s(
    caller: Caller, server: RawServer, status: str, code: Code
) -> None:
    endpoint = connected(caller, server)
    call, stream = begun(caller, server, endpoint)
    page = DataFrame(stream, b"<html>", flags=["END_STREAM"])
    server.send(server.headers(stream, (":status", status), ("content-type", "text/html")), page)
    text = f"the server answered with HTTP status {status}: is this a gRPC port?"
    assert caller.end(call) == (code, text, False)


def test_messages_that_contradict_the_status(caller: Caller, server: RawServer) -> None:
    endpoint = connected(caller, server)
    call, stream = begun(caller, server, endpoint)
    server.answer(stream, b"one", b"two")
    text = "the server answered with several messages"
    assert caller.end(call) == (Code.INTERNAL, text, False)
    call, stream = begun(caller, server, endpoint)
    server.send(
        server.headers(stream, *OK_HEADERS),
        DataFrame(stream, message(b"cut off")[:-1]),
        server.headers(stream, *OK_TRAILERS, ends=True),
    )
    text = "the server ended the call in the middle of a message"
    assert caller.end(call) == (Code.INTERNAL, text, False)


def test_a_message_before_an_error_is_no_answer(caller: Caller, server: RawServer) -> None:
    endpoint = connected(caller, server)
    call, stream = begun(caller, server, endpoint)
    server.send(
        server.headers(stream, *OK_HEADERS),
        DataFrame(stream, message(b"never mind")),
        server.headers(stream, ("grpc-status", "10"), ends=True),
    )
    assert caller.end(call) == (Code.ABORTED, "", False)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (0, Code.INTERNAL),
        (2, Code.INTERNAL),
        (8, Code.CANCELLED),
        (11, Code.RESOURCE_EXHAUSTED),
        (12, Code.PERMISSION_DENIED),
    ],
)
def test_resets(caller: Caller, server: RawServer, error: int, code: Code) -> None:
    endpoint = connected(caller, server)
    call, stream = begun(caller, server, endpoint)
    server.reset(stream, error)
    text = f"the server reset the call with HTTP/2's error {error}"
    assert caller.end(call) == (code, text, False)


def test_a_refused_call_is_known_to_be_unprocessed(caller: Caller, server: RawServer) -> None:
    endpoint = connected(caller, server)
    call, stream = begun(caller, server, endpoint)
    server.reset(stream, 7)
    assert caller.end(call) == REFUSED
    call, stream = begun(caller, server, endpoint)
    server.answer(stream, b"accepted")
    assert caller.last(call) == (UpstreamEventKind.ANSWERED, b"accepted")


def test_a_server_that_leaves_answers_what_it_took(caller: Caller, server: RawServer) -> None:
    endpoint = connected(caller, server, {STREAMS_MAX: 2})
    taken, stream = begun(caller, server, endpoint)
    beyond, _ = begun(caller, server, endpoint)
    waiting = caller.begin(endpoint, ECHO, b"")
    caller.turn()
    server.go_away(stream)
    assert caller.next_of_endpoint(endpoint, 1) == (UpstreamEventKind.LEAVING, None)
    assert caller.end(beyond) == REFUSED
    assert caller.end(waiting) in (CLOSING, REFUSED)
    assert caller.end(caller.begin(endpoint, ECHO, b"")) == CLOSING
    server.answer(stream, b"answer")
    assert caller.last(taken) == (UpstreamEventKind.ANSWERED, b"answer")
    left = "the server asked for no more calls"
    assert caller.next_of_endpoint(endpoint, 2) == (UpstreamEventKind.DISCONNECTED, left)


def test_a_lost_connection_ends_its_calls_first(caller: Caller, server: RawServer) -> None:
    endpoint = connected(caller, server, {STREAMS_MAX: 1})
    answered, stream = begun(caller, server, endpoint)
    server.answer(stream, b"in time")
    caller.last(answered)
    lost, _ = begun(caller, server, endpoint)
    waiting = caller.begin(endpoint, ECHO, b"")
    caller.turn()
    server.close()
    kind, reason = caller.next_of_endpoint(endpoint, 1)
    assert kind == UpstreamEventKind.DISCONNECTED and reason
    # They were told before.
    assert caller.of_calls[lost][-1][1][::2] == (Code.UNAVAILABLE, False)
    assert caller.of_calls[waiting][-1][1][0] == Code.UNAVAILABLE
    assert len(caller.of_endpoints[endpoint]) == 2


def test_an_answer_before_the_end_of_the_connection_counts(
    caller: Caller, server: RawServer
) -> None:
    endpoint = connected(caller, server)
    call, stream = begun(caller, server, endpoint)
    server.answer(stream, b"last words")
    server.socket.shutdown(1)
    assert caller.last(call) == (UpstreamEventKind.ANSWERED, b"last words")
    assert caller.next_of_endpoint(endpoint, 1)[0] == UpstreamEventKind.DISCONNECTED


def test_a_cancelled_call_is_reset(caller: Caller, server: RawServer) -> None:
    endpoint = connected(caller, server)
    call, stream = begun(caller, server, endpoint)
    caller.upstream.cancel(call)
    caller.turn()
    frame = server.expect(RstStreamFrame)
    assert isinstance(frame, RstStreamFrame)
    assert (frame.stream_id, frame.error_code) == (stream, 8)
    # What the server had sent before it heard of that does no harm.
    server.answer(stream, b"too late")
    call, stream = begun(caller, server, endpoint)
    server.answer(stream, b"answer")
    assert caller.last(call) == (UpstreamEventKind.ANSWERED, b"answer")


def test_nonsense_ends_the_connection(caller: Caller, server: RawServer) -> None:
    endpoint = connected(caller, server)
    call, stream = begun(caller, server, endpoint)
    server.socket.sendall(b"\0\0\4\x09\4" + stream.to_bytes(4, "big") + b"what")
    assert caller.next_of_endpoint(endpoint, 1)[0] == UpstreamEventKind.DISCONNECTED
    assert caller.end(call)[0] == Code.UNAVAILABLE


def test_no_http2_at_all(caller: Caller, server: RawServer) -> None:
    endpoint = caller.dial(server.address)
    caller.turn()
    server.accept(greets=False)
    server.socket.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    server.socket.shutdown(1)
    assert caller.failure(endpoint)


# Pings.


def next_ping(caller: Caller, server: RawServer) -> Frame:
    """Let the caller go on until it pings; raises EOFError if it closes the connection instead."""
    with ThreadPoolExecutor(1) as thread:
        ping = thread.submit(server.expect, PingFrame)
        caller.until(ping.done)
        return ping.result()


def test_a_silent_server_is_pinged_and_given_up(open_caller: OpenCaller) -> None:
    gone = "the server does not answer any more"

    def is_given_up() -> bool:
        caller = open_caller(ping_seconds=0.1, pong_seconds_max=0.3)
        with RawServer() as server:
            endpoint = connected(caller, server)
            call, _ = begun(caller, server, endpoint)
            try:
                server.pong(next_ping(caller, server))
                # There is another one only because the answer to the first one came in time.
                next_ping(caller, server)
            except (EOFError, ConnectionError):
                # On a busy machine it did not.
                return False
            assert caller.next_of_endpoint(endpoint, 1) == (UpstreamEventKind.DISCONNECTED, gone)
            assert caller.end(call) == (Code.UNAVAILABLE, gone, False)
        return True

    until("a server answers a ping in time, and then no more", is_given_up)


@pytest.mark.parametrize("without_calls", [True, False])
def test_an_idle_server_is_pinged_only_on_request(
    open_caller: OpenCaller, server: RawServer, without_calls: bool
) -> None:
    caller = open_caller(ping_seconds=0.05, pong_seconds_max=0.1, pings_without_calls=without_calls)
    endpoint = connected(caller, server)
    if without_calls:
        assert caller.next_of_endpoint(endpoint, 1)[0] == UpstreamEventKind.DISCONNECTED
    else:
        caller.rest(0.4)
        assert len(caller.of_endpoints[endpoint]) == 1
