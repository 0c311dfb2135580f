"""How calls end other than by an answer: deadlines, cancellation, connections that break.

Python is told of it for streams, and for unary calls it marked as waiting; for other unary calls it
is not, and its late answer is dropped.
"""

import queue
import socket
import struct
from collections.abc import Callable, Iterator

import grpc
import pytest

from kvorum.api.errors import CONTEXT_DEADLINE_EXCEEDED, Code, Status
from kvorum.api.pb.etcdserverpb import PutRequest
from kvorum.network.edge import EdgeEventKind
from tests.etcd import is_target
from tests.network.edge.client import connect
from tests.network.edge.service import ECHO, HELD, HELD_STREAM, OK, WAIT_SECONDS, Arrived, Service
from tests.network.edge.wire import Answer, Wire, grpc_headers, message
from tests.network.edge.wire import connect as connect_socket
from tests.waiting import until

SOON = ("grpc-timeout", "50m")
HTTP_HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/held"),
    (":authority", "test"),
]


@pytest.fixture
def wire(service: Service) -> Iterator[Wire]:
    with Wire(service.address) as wire:
        yield wire


def catch_up(service: Service, wire: Wire) -> None:
    """Let the loop take everything that has happened: it has answered a later call."""
    assert wire.unary(ECHO, b"barrier").status == (0, "")
    service.do(lambda _: None)


def nothing_more(service: Service, wire: Wire) -> None:
    """Make sure that no event is on its way."""
    catch_up(service, wire)
    with pytest.raises(queue.Empty):
        service.events.get_nowait()


def held_for_a_while(
    service: Service, wire: Wire, path: str = HELD, deadline: tuple[str, str] = SOON
) -> tuple[int, int]:
    """Make a call that has a deadline, and let the loop have it; return its stream and number.

    On a busy machine the deadline may pass before the call is handed out; then make another.
    """

    def hold() -> tuple[int, int] | None:
        stream = wire.call(path, message(b""), deadline)
        catch_up(service, wire)
        while not service.events.empty():
            event = service.events.get()
            if event.kind == EdgeEventKind.OPENED:
                return stream, event.call
        if not service.requests.empty():
            return stream, service.next_request()[0]
        assert wire.answer(stream).status == CONTEXT_DEADLINE_EXCEEDED
        return None

    return until("the loop has a call before its deadline", hold)


def test_the_edge_answers_at_the_deadline(service: Service, wire: Wire) -> None:
    answer = wire.unary(HELD, b"", SOON)
    assert answer.status == CONTEXT_DEADLINE_EXCEEDED
    assert service.remote.counters()["deadlines_exceeded"] == 1


def test_a_reply_after_the_deadline_is_dropped(service: Service, wire: Wire) -> None:
    stream, call = held_for_a_while(service, wire)
    assert wire.answer(stream).status == CONTEXT_DEADLINE_EXCEEDED
    service.remote.reply([(call, b"late")])
    nothing_more(service, wire)
    assert wire.answers[stream].data == b""
    assert service.remote.counters()["calls_open"] == 0


def test_a_reply_before_the_deadline_counts(service: Service, wire: Wire) -> None:
    stream = wire.call(HELD, message(b""), ("grpc-timeout", "10S"))
    call = service.next_request()[0]
    service.remote.reply([(call, b"in time")])
    answer = wire.answer(stream)
    assert answer.status == (0, "")
    assert answer.data == message(b"in time")


def test_a_deadline_before_the_request_is_complete(service: Service, wire: Wire) -> None:
    stream = wire.open(grpc_headers(HELD, SOON))
    wire.data(stream, message(b"abc")[:-1])
    assert wire.answer(stream).status == CONTEXT_DEADLINE_EXCEEDED
    nothing_more(service, wire)
    assert service.requests.empty()


def test_the_deadline_of_a_stream(service: Service, wire: Wire) -> None:

    def events_of_a_stream() -> list[Arrived] | None:
        stream = wire.call(HELD_STREAM, message(b"a"), SOON, end=False)
        assert wire.answer(stream).status == CONTEXT_DEADLINE_EXCEEDED
        catch_up(service, wire)
        events = [service.events.get() for _ in range(service.events.qsize())]
        # On a busy machine it may pass before the message is handed out.
        return events if any(event.kind == EdgeEventKind.MESSAGE for event in events) else None

    heard = until("the loop has a message before the deadline", events_of_a_stream)
    kinds = [EdgeEventKind.OPENED, EdgeEventKind.MESSAGE, EdgeEventKind.ENDED]
    assert [event.kind for event in heard] == kinds
    assert {event.call for event in heard} == {heard[0].call}
    assert heard[1].detail == b"a"


def test_the_deadline_of_a_stream_that_has_sent(service: Service, wire: Wire) -> None:

    def what_is_sent_before() -> bytes:
        stream, call = held_for_a_while(service, wire, HELD_STREAM, ("grpc-timeout", "300m"))
        service.remote.send([(call, b"one")])
        answer = wire.answer(stream)
        assert answer.status == CONTEXT_DEADLINE_EXCEEDED
        # On a busy machine it may pass before something is sent.
        return answer.data

    assert until("a stream has sent before its deadline", what_is_sent_before) == message(b"one")


CANCEL = 8
INITIAL_WINDOW_BYTES = 65_535
LONG = bytes(1 << 20)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_deadline_in_the_middle_of_a_message_resets(service: Service, is_stream: bool) -> None:
    """Trailers behind a part of a message would be INTERNAL to clients, not the deadline."""
    path = HELD_STREAM if is_stream else HELD
    with Wire(service.address, credit=False) as wire:

        def begun_answer() -> Answer | None:
            stream, call = held_for_a_while(service, wire, path, ("grpc-timeout", "300m"))
            if is_stream:
                service.remote.send([(call, LONG)])
            else:
                service.remote.reply([(call, LONG)])
            answer = wire.answer(stream)
            # On a busy machine it may pass before something is sent.
            return answer if answer.data else None

        answer = until("a message has begun before the deadline", begun_answer)
        assert answer.reset == CANCEL
        assert answer.trailers == {}
        assert len(answer.data) < len(LONG)
        wire.give_credit(0, 1 << 20)
        assert wire.unary(ECHO, b"again").data == message(b"again")
    service.until(lambda edge: edge.counters()["calls_open"] == 0)


def test_etcd_resets_in_the_middle_of_an_answer_too(etcd: str) -> None:
    if not is_target():
        pytest.skip("an older one waits for its client to read")
    with Wire(etcd) as wire:
        for number in range(4):
            put = PutRequest(key=b"long%d" % number, value=LONG[:60_000])
            assert wire.unary("/etcdserverpb.KV/Put", put.SerializeToString()).status == (0, "")

    def blocked_answer() -> Answer | None:
        with Wire(etcd, credit=False) as wire:
            answer = wire.unary("/etcdserverpb.Maintenance/Snapshot", b"", ("grpc-timeout", "300m"))
            # On a busy machine it may pass before the client's window is full.
            return answer if len(answer.data) == INITIAL_WINDOW_BYTES else None

    answer = until("an answer fills the window before its deadline", blocked_answer)
    assert (answer.reset, answer.trailers) == (CANCEL, {})


def test_clients_see_the_deadline_whenever_it_passes(service: Service) -> None:
    """A client of the library people use, whose deadlines pass in the middle of long answers."""
    with connect(service.address) as client:
        for milliseconds in range(1, 41):
            code = client.unary_call(ECHO, LONG, milliseconds / 1000).code()
            # gRPC's core compares the time of a reset with a clock that it read a moment before: a
            # thread that had to wait in between takes the reset for a cancellation.
            assert code in (
                grpc.StatusCode.OK,
                grpc.StatusCode.DEADLINE_EXCEEDED,
                grpc.StatusCode.CANCELLED,
            )


def test_a_thousand_deadlines_at_once(service: Service, wire: Wire) -> None:
    streams = [wire.call(HELD, message(b""), ("grpc-timeout", "200m")) for _ in range(1000)]
    for stream in streams:
        assert wire.answer(stream).status == CONTEXT_DEADLINE_EXCEEDED
    service.until(lambda edge: edge.counters()["calls_open"] == 0)


def cancel(wire: Wire, stream: int) -> None:
    wire.reset(stream)


def close(wire: Wire, _: int) -> None:
    wire.socket.shutdown(socket.SHUT_RDWR)


def kill(wire: Wire, _: int) -> None:
    """Break the connection off with a TCP reset."""
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.socket.close()


def break_protocol(wire: Wire, _: int) -> None:
    wire.send_bytes(b"\0\0\x08\x06\0\0\0\0\x01pingpong")


Ending = Callable[[Wire, int], None]
ENDINGS = [cancel, close, kill, break_protocol]


@pytest.mark.parametrize("end", ENDINGS)
def test_a_stream_that_ends_is_reported_once(service: Service, wire: Wire, end: Ending) -> None:
    stream = wire.call(HELD_STREAM, message(b"a"), end=False)
    call = service.next_event(EdgeEventKind.OPENED).call
    assert service.next_event(EdgeEventKind.MESSAGE, call).detail == b"a"
    end(wire, stream)
    service.next_event(EdgeEventKind.ENDED, call)
    # Whatever is sent to it from now on is ignored.
    service.remote.send([(call, b"late")])
    assert service.remote.pending_bytes(call) == 0
    service.remote.finish(call, OK)
    with Wire(service.address) as other:
        nothing_more(service, other)
    service.until(lambda edge: edge.counters()["calls_open"] == 0)


@pytest.mark.parametrize("end", ENDINGS)
def test_a_half_closed_stream_that_ends(service: Service, wire: Wire, end: Ending) -> None:
    stream = wire.call(HELD_STREAM, b"")
    call = service.next_event(EdgeEventKind.OPENED).call
    service.next_event(EdgeEventKind.HALF_CLOSED, call)
    end(wire, stream)
    service.next_event(EdgeEventKind.ENDED, call)


@pytest.mark.parametrize("end", ENDINGS)
def test_a_unary_call_that_ends_is_not_reported(service: Service, wire: Wire, end: Ending) -> None:
    stream = wire.call(HELD, message(b""))
    call = service.next_request()[0]
    end(wire, stream)
    service.until(lambda edge: edge.counters()["calls_open"] == 0)
    service.remote.reply([(call, b"late")])
    with Wire(service.address) as other:
        nothing_more(service, other)


@pytest.mark.parametrize("end", ENDINGS)
def test_a_marked_unary_call_that_ends_is_reported(
    service: Service, wire: Wire, end: Ending
) -> None:
    stream = wire.call(HELD, message(b""))
    call = service.next_request()[0]
    service.remote.mark_waiting(call)
    end(wire, stream)
    service.next_event(EdgeEventKind.ENDED, call)
    service.remote.reply([(call, b"late")])
    with Wire(service.address) as other:
        nothing_more(service, other)


@pytest.mark.parametrize("end", ENDINGS)
def test_a_call_marked_after_it_ended_is_reported(
    service: Service, wire: Wire, end: Ending
) -> None:
    stream = wire.call(HELD, message(b""))
    call = service.next_request()[0]
    end(wire, stream)
    service.until(lambda edge: edge.counters()["calls_open"] == 0)
    service.remote.mark_waiting(call)
    service.next_event(EdgeEventKind.ENDED, call)


def test_a_marked_call_that_meets_its_deadline_is_reported(service: Service, wire: Wire) -> None:
    stream, call = held_for_a_while(service, wire)
    service.remote.mark_waiting(call)
    service.next_event(EdgeEventKind.ENDED, call)
    assert wire.answer(stream).status == CONTEXT_DEADLINE_EXCEEDED
    nothing_more(service, wire)


def test_a_marked_call_that_is_answered_is_not_reported(service: Service, wire: Wire) -> None:
    stream = wire.call(HELD, message(b""))
    call = service.next_request()[0]
    service.remote.mark_waiting(call)
    service.remote.reply([(call, b"answer")])
    assert wire.answer(stream).status == (0, "")
    nothing_more(service, wire)


@pytest.mark.parametrize("end", [cancel, close, kill])
def test_an_http_request_that_ends_is_reported(service: Service, wire: Wire, end: Ending) -> None:
    stream = wire.open(HTTP_HEADERS)
    call = service.next_event(EdgeEventKind.HTTP_OPENED).call
    end(wire, stream)
    service.next_event(EdgeEventKind.ENDED, call)


def test_an_http1_request_whose_connection_breaks(service: Service) -> None:
    with connect_socket(service.address) as plain:
        plain.sendall(b"POST /held HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc")
        call = service.next_event(EdgeEventKind.HTTP_OPENED).call
        assert service.next_event(EdgeEventKind.MESSAGE, call).detail == b"abc"
    service.next_event(EdgeEventKind.ENDED, call)


def test_an_http1_request_abandoned_while_it_is_served(service: Service) -> None:
    with connect_socket(service.address) as plain:
        plain.sendall(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n")
        call = service.next_event(EdgeEventKind.HTTP_OPENED).call
        service.next_event(EdgeEventKind.HALF_CLOSED, call)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    service.next_event(EdgeEventKind.ENDED, call)


@pytest.mark.parametrize(
    "body", [message(b"a", 1), message(b"a", 7), b"\0\xff\xff\xff\xff"], ids=repr
)
def test_a_stream_broken_by_a_bad_message_is_reported(
    service: Service, wire: Wire, body: bytes
) -> None:
    stream = wire.open(grpc_headers(HELD_STREAM))
    call = service.next_event(EdgeEventKind.OPENED).call
    wire.data(stream, message(b"good"))
    assert service.next_event(EdgeEventKind.MESSAGE, call).detail == b"good"
    wire.data(stream, body)
    service.next_event(EdgeEventKind.ENDED, call)
    assert wire.answer(stream).status[0] in (Code.INTERNAL, Code.RESOURCE_EXHAUSTED)


def test_cancelled_before_it_was_polled(service: Service, wire: Wire) -> None:
    with service.paused():
        for path in (HELD, HELD_STREAM):
            stream = wire.call(path, message(b""))
            wire.reset(stream)
    catch_up(service, wire)
    # A stream that was reported opened is reported ended; one that was not need not be either.
    seen = []
    while not service.events.empty():
        seen.append(service.events.get())
    assert (EdgeEventKind.OPENED in [event.kind for event in seen]) == (
        EdgeEventKind.ENDED in [event.kind for event in seen]
    )
    service.until(lambda edge: edge.counters()["calls_open"] == 0)


def test_one_end_after_another_on_one_connection(service: Service, wire: Wire) -> None:
    """Each way to end leaves the connection as it was: the next end is noticed too."""
    for _ in range(20):
        stream = wire.call(HELD, message(b"short"), ("grpc-timeout", "5m"))
        assert wire.answer(stream).status == CONTEXT_DEADLINE_EXCEEDED
        stream = wire.call(HELD, message(b"long"))
        # On a busy machine the short one may end before it is handed out.
        while service.next_request()[2] != b"long":
            pass
        wire.reset(stream)
        service.until(lambda edge: edge.counters()["calls_open"] == 0)
        with service.paused():
            wire.reset(wire.call(HELD, message(b"")))
        service.until(lambda edge: edge.counters()["calls_received"] % 3 == 0)
        service.until(lambda edge: edge.counters()["calls_open"] == 0)
        while not service.requests.empty():
            service.requests.get()


def test_calls_that_never_were(service: Service) -> None:
    bogus = [0, 1, 12345, 2**62]
    for call in bogus:
        service.remote.reply([(call, b"x"), (call, Status(Code.OK, ""))])
        service.remote.send([(call, b"x")])
        service.remote.start(call, [("a", "b")])
        service.remote.finish(call, OK, [("a", "b")])
        service.remote.respond(call, 200, [], b"x")
        assert service.remote.pending_bytes(call) == 0
        assert service.remote.peer(call) == ""
    with Wire(service.address) as wire:
        nothing_more(service, wire)


def test_cancellation_by_the_client_library(service: Service) -> None:
    with connect(service.address) as client:
        stream = client.stream(HELD_STREAM, [b"a"])
        call = service.next_event(EdgeEventKind.OPENED).call
        service.next_event(EdgeEventKind.MESSAGE, call)
        service.next_event(EdgeEventKind.HALF_CLOSED, call)
        stream.cancel()
        service.next_event(EdgeEventKind.ENDED, call)
        with pytest.raises(grpc.RpcError) as raised:
            next(stream)
        assert raised.value.code() == grpc.StatusCode.CANCELLED
        assert client.unary(ECHO, b"next") == b"next"


def test_a_channel_closed_with_open_streams(service: Service) -> None:
    streams = 20
    with connect(service.address) as client:
        calls: set[int] = set()
        opened = [client.stream(HELD_STREAM, [b""]) for _ in range(streams)]
        while len(calls) < streams:
            event = service.events.get(timeout=WAIT_SECONDS)
            if event.kind == EdgeEventKind.OPENED:
                calls.add(event.call)
        assert len(opened) == streams
    ended: set[int] = set()
    while ended != calls:
        event = service.events.get(timeout=WAIT_SECONDS)
        if event.kind == EdgeEventKind.ENDED:
            ended.add(event.call)
    service.until(lambda edge: edge.counters()["connections_open"] == 0)


def test_the_peer_of_a_call_is_known_until_it_is_gone(service: Service, wire: Wire) -> None:
    wire.call(HELD, message(b""))
    call = service.next_request()[0]
    host, port = wire.socket.getsockname()
    assert service.remote.peer(call) == f"{host}:{port}"
    kill(wire, 0)
    service.until(lambda edge: edge.counters()["connections_open"] == 0)
    assert service.remote.peer(call) == ""
