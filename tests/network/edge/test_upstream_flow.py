"""Who is slow holds back the other side, and nobody else."""

from hyperframe.frame import DataFrame

from kvorum.network.edge import EdgeEventKind
from kvorum.network.edge.upstream import UpstreamEventKind
from tests.network.edge.caller import Caller
from tests.network.edge.conftest import OpenCaller
from tests.network.edge.raw_server import OK_HEADERS, OK_TRAILERS, RawServer, connected
from tests.network.edge.service import ECHO, HELD, HELD_STREAM, OK, Service
from tests.network.edge.wire import message
from tests.waiting import until

KIB = 1024


def opened(service: Service, caller: Caller, endpoint: int) -> tuple[int, int]:
    """Open a stream; return its call here and at the server."""
    call = caller.open(endpoint, HELD_STREAM)
    caller.until(lambda: not service.events.empty())
    return call, service.next_event(EdgeEventKind.OPENED).call


def test_a_paused_stream_holds_its_server_back_and_no_other(
    service: Service, open_caller: OpenCaller
) -> None:
    caller = open_caller(stream_queued_bytes_max=64 * KIB)
    endpoint = caller.connect(service.address)
    paused, theirs = opened(service, caller, endpoint)
    caller.upstream.pause(paused)
    sent = [bytes([place % 256]) * KIB for place in range(2000)]
    service.remote.send([(theirs, each) for each in sent])
    service.remote.finish(theirs, OK)
    # Answers come past it, whatever it holds.
    for _ in range(20):
        assert caller.ask(endpoint, ECHO, b"x" * KIB) == b"x" * KIB
    other, others = opened(service, caller, endpoint)
    service.remote.send([(others, b"message")])
    caller.until(lambda: caller.messages(other) == [b"message"])
    caller.rest(0.1)
    assert paused not in caller.of_calls
    left = service.do(lambda edge: edge.counters()["unread_bytes"])
    assert left > (2000 - 4 * 64) * KIB, "the server was not held back"
    caller.upstream.resume(paused)
    assert caller.end(paused) == (0, "", False)
    assert caller.messages(paused) == sent


def test_what_came_before_the_pause_is_held_as_well(service: Service, caller: Caller) -> None:
    endpoint = caller.connect(service.address)
    call, theirs = opened(service, caller, endpoint)
    service.remote.send([(theirs, b"one"), (theirs, b"two"), (theirs, b"three")])
    service.remote.finish(theirs, OK)
    caller.queue_up(3)
    until("the first of them is taken", lambda: len(caller.turn(1)) == 1)
    assert caller.messages(call) == [b"one"]
    caller.upstream.pause(call)
    assert caller.ask(endpoint, ECHO, b"") == b""
    assert caller.messages(call) == [b"one"]
    caller.upstream.resume(call)
    caller.upstream.pause(call)
    caller.turn()
    assert caller.messages(call) == [b"one"]
    caller.upstream.resume(call)
    assert caller.end(call) == (0, "", False)
    assert caller.messages(call) == [b"one", b"two", b"three"]


def test_a_paused_stream_may_be_cancelled(service: Service, caller: Caller) -> None:
    endpoint = caller.connect(service.address)
    call, theirs = opened(service, caller, endpoint)
    caller.upstream.pause(call)
    service.remote.send([(theirs, b"held")])
    caller.rest(0.05)
    caller.upstream.cancel(call)
    caller.upstream.resume(call)
    caller.until(lambda: not service.events.empty())
    service.next_event(EdgeEventKind.ENDED, theirs)
    assert call not in caller.of_calls


def test_who_does_not_poll_holds_the_server_back(service: Service, open_caller: OpenCaller) -> None:
    caller = open_caller(connection_queued_bytes_max=64 * KIB, stream_queued_bytes_max=64 * KIB)
    endpoint = caller.connect(service.address)
    streams = [opened(service, caller, endpoint) for _ in range(8)]
    sent = [b"x" * KIB for _ in range(1000)]
    for _, theirs in streams:
        service.remote.send([(theirs, each) for each in sent])
        service.remote.finish(theirs, OK)
    # Where polling moves bytes it has to go on, though nothing is taken.
    for _ in range(50):
        assert not caller.upstream.poll(0, 1)
        caller.upstream.announce_sleep()
        caller.upstream.awake()
    assert caller.upstream.counters()["messages_received"] < 8 * 1000 / 2
    for call, _ in streams:
        assert caller.end(call) == (0, "", False)
        assert caller.messages(call) == sent


def test_unary_answers_that_are_not_polled_hold_the_server_back(
    service: Service, open_caller: OpenCaller
) -> None:
    caller = open_caller(connection_queued_bytes_max=64 * KIB)
    endpoint = caller.connect(service.address)
    first = [caller.begin(endpoint, HELD, b"") for _ in range(20)]
    caller.until(lambda: service.requests.qsize() == 20)
    long = b"y" * 200 * KIB
    requests = [service.next_request()[0] for _ in range(20)]
    service.remote.reply([(request, long) for request in requests])
    for _ in range(50):
        assert not caller.upstream.poll(0, 1)
        caller.upstream.announce_sleep()
        caller.upstream.awake()
    assert caller.upstream.counters()["messages_received"] < 20
    for call in first:
        assert caller.last(call) == (UpstreamEventKind.ANSWERED, long)


def test_a_message_longer_than_every_window(service: Service, open_caller: OpenCaller) -> None:
    caller = open_caller(stream_queued_bytes_max=16 * KIB, connection_queued_bytes_max=16 * KIB)
    endpoint = caller.connect(service.address)
    call, theirs = opened(service, caller, endpoint)
    long = b"z" * 1000 * KIB
    service.remote.send([(theirs, long), (theirs, b"short"), (theirs, long)])
    service.remote.finish(theirs, OK)
    assert caller.end(call) == (0, "", False)
    assert caller.messages(call) == [long, b"short", long]


def test_a_server_that_takes_nothing_is_told_of_later(caller: Caller) -> None:
    """What it has no room for is pending; WRITABLE comes when little is left."""
    with RawServer() as server:
        endpoint = connected(caller, server)
        call = caller.open(endpoint, "/test/Stream")
        caller.turn()
        stream, _ = server.expect_call()
        sent = [b"w" * 16 * KIB for _ in range(16)]
        caller.upstream.send([(call, each) for each in sent])
        caller.upstream.half_close(call)
        total = sum(len(message(each)) for each in sent)
        # The standard's first window is all that it takes.
        caller.until(lambda: caller.upstream.pending_bytes(call) == total - 65_535)
        caller.rest(0.1)
        assert caller.upstream.pending_bytes(call) == total - 65_535
        assert call not in caller.of_calls
        server.widen(0, total)
        server.widen(stream, total - 65_535 - 1)
        caller.until(lambda: call in caller.of_calls)
        assert caller.of_calls[call] == [(UpstreamEventKind.WRITABLE, None)]
        caller.until(lambda: caller.upstream.pending_bytes(call) == 1)
        server.widen(stream, 1)
        received = b""
        while len(received) < total:
            caller.turn()
            caller.upstream.announce_sleep()
            caller.upstream.awake()
            frame = server.expect(DataFrame)
            assert isinstance(frame, DataFrame)
            received += frame.data
        assert received == b"".join(message(each) for each in sent)
        caller.until(lambda: caller.upstream.pending_bytes(call) == 0)
        server.send(
            server.headers(stream, *OK_HEADERS), server.headers(stream, *OK_TRAILERS, ends=True)
        )
        assert caller.end(call) == (0, "", False)
        kinds = [kind for kind, _ in caller.of_calls[call]]
        assert kinds == [UpstreamEventKind.WRITABLE, UpstreamEventKind.ENDED]
