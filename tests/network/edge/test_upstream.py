"""Calls to a server of ours: messages, metadata, batches, cancelled calls, and the clean end."""

import gc
import os
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvorum.api.errors import Code, Status
from kvorum.network.edge import EdgeEventKind, Limits
from kvorum.network.edge.upstream import UPSTREAM_COUNTERS, UpstreamEventKind
from tests.edges import EDGES
from tests.network.edge.caller import Caller
from tests.network.edge.conftest import OpenCaller, OpenService
from tests.network.edge.service import ECHO, ECHO_STREAM, HELD, HELD_STREAM, WAIT_SECONDS, Service
from tests.ports import held_port
from tests.waiting import until

ENDED = UpstreamEventKind.ENDED


def test_an_answer_is_what_the_server_said(service: Service, caller: Caller) -> None:
    endpoint = caller.connect(service.address)
    assert caller.ask(endpoint, ECHO, b"hello") == b"hello"
    assert caller.ask(endpoint, ECHO, b"") == b""
    counters = caller.upstream.counters()
    assert set(counters) == set(UPSTREAM_COUNTERS)
    assert counters["calls_started"] == counters["messages_sent"] == 2
    assert counters["messages_received"] == 2
    assert counters["calls_open"] == 0
    assert (counters["connections_made"], counters["connections_failed"]) == (1, 0)
    assert counters["bytes_read"] > 0 < counters["bytes_written"]


@pytest.mark.parametrize("server_kind", EDGES)
def test_either_implementation_calls_either_edge(
    edge_kind: str, server_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = Caller()
    monkeypatch.setenv("KVORUM_EDGE", server_kind)
    service = Service()
    try:
        endpoint = caller.connect(service.address)
        assert caller.ask(endpoint, ECHO, edge_kind.encode()) == edge_kind.encode()
        call = caller.open(endpoint, ECHO_STREAM)
        caller.upstream.send([(call, b"one"), (call, b"two")])
        caller.upstream.half_close(call)
        assert caller.end(call) == (0, "", False)
        assert caller.messages(call) == [b"one", b"two"]
    finally:
        caller.stop()
        service.stop()


def test_codes_and_texts_are_the_server_s(service: Service, caller: Caller) -> None:
    endpoint = caller.connect(service.address)
    for text in ("plain", "", "cent % and café \N{SNOWMAN}", "line\nbreak"):
        call = caller.begin(endpoint, HELD, b"")
        asked: list[int] = []

        def answer(text: str = text, asked: list[int] = asked) -> bool:
            if not service.requests.empty():
                asked.append(service.requests.get()[0])
                service.remote.reply([(asked[0], Status(Code.FAILED_PRECONDITION, text))])
            return bool(asked)

        caller.until(answer)
        assert caller.end(call) == (Code.FAILED_PRECONDITION, text, False)
    unknown = caller.end(caller.begin(endpoint, "/test.Echo/Nothing", b""))
    assert unknown == (12, "unknown method Nothing for service test.Echo", False)


def test_metadata_arrives(service: Service, caller: Caller) -> None:
    endpoint = caller.connect(service.address)
    metadata = (("token", b"secret \xe9"), ("authorization", b"Bearer x"), ("other-bin", b"\0\xff"))
    caller.begin(endpoint, HELD, b"", metadata)
    caller.until(lambda: not service.requests.empty())
    assert service.next_request()[3] == {"token": b"secret \xe9", "authorization": b"Bearer x"}


@pytest.mark.parametrize(
    ("path", "metadata"),
    [
        (ECHO, (("Upper", b"x"),)),
        (ECHO, ((":path", b"x"),)),
        (ECHO, (("key", b"line\nbreak"),)),
        ("no path", ()),
    ],
)
def test_what_http_cannot_carry_ends_one_call(
    service: Service, caller: Caller, path: str, metadata: tuple[tuple[str, bytes], ...]
) -> None:
    endpoint = caller.connect(service.address)
    broken, sound = caller.number(), caller.number()
    caller.upstream.call(
        [(broken, endpoint, path, b"", metadata), (sound, endpoint, ECHO, b"", ())]
    )
    code, _, is_unprocessed = caller.end(broken)
    assert (code, is_unprocessed) == (Code.INTERNAL, True)
    assert caller.last(sound) == (UpstreamEventKind.ANSWERED, b"")


def test_an_endpoint_that_is_not_connected(caller: Caller, service: Service) -> None:
    unknown = (Code.UNAVAILABLE, "the endpoint is not connected", True)
    assert caller.end(caller.begin(99, ECHO, b"")) == unknown
    assert caller.end(caller.open(99, ECHO_STREAM)) == unknown
    endpoint = caller.connect(service.address)
    caller.upstream.disconnect(endpoint)
    assert caller.next_of_endpoint(endpoint, 1)[0] == UpstreamEventKind.DISCONNECTED
    assert caller.end(caller.begin(endpoint, ECHO, b"")) == unknown


def test_disconnecting_cancels_calls_first(caller: Caller, service: Service) -> None:
    endpoint = caller.connect(service.address)
    calls = [caller.begin(endpoint, HELD, b""), caller.open(endpoint, HELD_STREAM)]
    caller.until(lambda: service.requests.qsize() + service.events.qsize() == 2)
    caller.upstream.disconnect(endpoint)
    order: list[int] = []

    def are_told() -> bool:
        order.extend(number for _, number, _ in caller.turn())
        return len(order) >= 3

    until("both calls and the endpoint have ended", are_told)
    assert sorted(order[:2]) == calls and order[2] == endpoint
    for call in calls:
        assert caller.end(call)[0] == Code.CANCELLED
    service.next_event(EdgeEventKind.OPENED)
    service.next_event(EdgeEventKind.ENDED)


def test_thousands_of_calls_of_one_batch(service: Service, caller: Caller) -> None:
    endpoint = caller.connect(service.address)
    first = caller.number()
    count = 5000
    caller.upstream.call(
        [(first + place, endpoint, ECHO, b"%d" % place, ()) for place in range(count)]
    )
    caller.until(lambda: len(caller.of_calls) == count)
    for place in range(count):
        answered = (UpstreamEventKind.ANSWERED, b"%d" % place)
        assert caller.of_calls[first + place] == [answered]
    assert caller.upstream.counters()["calls_open"] == 0


def test_calls_beyond_what_the_server_takes_wait_for_room(
    open_service: OpenService, caller: Caller
) -> None:
    service = open_service(Limits(streams_per_connection_max=3))
    endpoint = caller.connect(service.address)
    calls = [caller.begin(endpoint, HELD, b"%d" % place) for place in range(10)]
    caller.until(lambda: service.requests.qsize() == 3)
    caller.rest(0.1)
    assert service.requests.qsize() == 3
    caller.upstream.cancel(calls[5])

    def answer() -> bool:
        while not service.requests.empty():
            request = service.requests.get()
            service.remote.reply([(request[0], request[2])])
        return len(caller.of_calls) == 9

    caller.until(answer)
    for place, call in enumerate(calls):
        if place != 5:
            assert caller.last(call) == (UpstreamEventKind.ANSWERED, b"%d" % place)
    assert calls[5] not in caller.of_calls


def test_nothing_is_told_of_a_cancelled_call(service: Service, caller: Caller) -> None:
    endpoint = caller.connect(service.address)
    unary, stream = caller.begin(endpoint, HELD, b""), caller.open(endpoint, HELD_STREAM)
    caller.until(lambda: service.requests.qsize() == service.events.qsize() == 1)
    request = service.next_request()[0]
    opened = service.next_event(EdgeEventKind.OPENED).call
    service.remote.send([(opened, b"never seen")])
    service.remote.mark_waiting(request)
    caller.upstream.cancel(unary)
    caller.upstream.cancel(stream)
    caller.upstream.send([(stream, b"ignored")])
    caller.upstream.half_close(stream)
    caller.upstream.cancel(stream)
    caller.until(lambda: service.events.qsize() == 2)
    ended = {service.next_event(EdgeEventKind.ENDED).call for _ in range(2)}
    assert ended == {request, opened}
    caller.rest(0.05)
    assert not caller.of_calls
    assert caller.upstream.counters()["calls_open"] == 0
    assert caller.ask(endpoint, ECHO, b"still there") == b"still there"


def test_an_answer_that_waits_to_be_polled_is_dropped_with_its_call(
    service: Service, caller: Caller
) -> None:
    endpoint = caller.connect(service.address)
    call = caller.begin(endpoint, ECHO, b"x")
    other = caller.begin(endpoint, ECHO, b"y")
    caller.queue_up(2)
    caller.upstream.cancel(call)
    assert caller.last(other) == (UpstreamEventKind.ANSWERED, b"y")
    assert call not in caller.of_calls


@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
@given(
    sizes=st.lists(
        st.one_of(st.integers(0, 40), st.integers(16_000, 17_000), st.integers(60_000, 300_000)),
        max_size=12,
    ),
    events_max=st.integers(1, 5),
)
def test_messages_keep_their_bounds_and_order(
    service: Service, caller: Caller, sizes: list[int], events_max: int
) -> None:
    endpoint = caller.connect(service.address)
    sent = [bytes([place]) * size for place, size in enumerate(sizes)]
    call = caller.open(endpoint, ECHO_STREAM)
    caller.upstream.send([(call, each) for each in sent])
    caller.upstream.half_close(call)
    caller.until(lambda: len(caller.messages(call)) >= len(sent) // 2)

    def has_ended() -> bool:
        taken = caller.turn(events_max, 1)
        assert len(taken) <= events_max
        # After the first bytes no more is taken.
        assert not any(detail for _, _, detail in taken[:-1])
        caller.upstream.announce_sleep()
        caller.upstream.awake()
        return bool(caller.of_calls.get(call)) and caller.of_calls[call][-1][0] == ENDED

    until("the call has ended", has_ended)
    assert caller.messages(call) == sent
    caller.upstream.disconnect(endpoint)


@pytest.mark.parametrize("size", [64 * 1024, 64 * 1024 + 1, 3 << 20])
def test_long_messages_both_ways(open_service: OpenService, caller: Caller, size: int) -> None:
    service = open_service(Limits(request_bytes_max=4 << 20))
    endpoint = caller.connect(service.address)
    long = os.urandom(size)
    assert caller.ask(endpoint, ECHO, long) == long
    call = caller.open(endpoint, ECHO_STREAM)
    caller.upstream.send([(call, long), (call, b"short"), (call, long)])
    caller.upstream.half_close(call)
    assert caller.end(call) == (0, "", False)
    assert caller.messages(call) == [long, b"short", long]


def test_a_message_that_is_too_long_ends_its_call_only(
    service: Service, open_caller: OpenCaller
) -> None:
    caller = open_caller(message_bytes_max=1000)
    endpoint = caller.connect(service.address)
    assert caller.ask(endpoint, ECHO, bytes(1000)) == bytes(1000)
    text = "grpc: received message larger than max (1001 vs. 1000)"
    refused = (Code.RESOURCE_EXHAUSTED, text, False)
    assert caller.end(caller.begin(endpoint, ECHO, bytes(1001))) == refused
    call = caller.open(endpoint, ECHO_STREAM)
    caller.upstream.send([(call, bytes(1000)), (call, bytes(1001))])
    assert caller.end(call) == refused
    assert caller.messages(call) == [bytes(1000)]
    assert caller.ask(endpoint, ECHO, b"still there") == b"still there"


# Addresses.


def test_a_unix_socket(open_service: OpenService, caller: Caller, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/socket"
    service = open_service(None, address)
    assert service.address == address
    assert caller.ask(caller.connect(address), ECHO, b"x") == b"x"


def test_a_name_is_looked_up_and_its_addresses_are_tried(
    open_service: OpenService, caller: Caller
) -> None:
    service = open_service()
    port = service.address.rpartition(":")[2]
    assert caller.ask(caller.connect(f"localhost:{port}"), ECHO, b"x") == b"x"
    assert caller.failure(caller.dial("no.such.name.invalid:1"))


def test_nobody_listens(caller: Caller, tmp_path: Path) -> None:
    with held_port() as port:
        assert "Connection refused" in caller.failure(caller.dial(f"127.0.0.1:{port}"))
    assert "No such file" in caller.failure(caller.dial(f"unix:{tmp_path}/none"))
    assert caller.upstream.counters()["connections_failed"] == 2


def test_a_server_that_says_nothing_is_given_up(open_caller: OpenCaller) -> None:
    caller = open_caller(connect_seconds_max=0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert "took too long" in caller.failure(caller.dial(address))


def test_connecting_can_be_given_up(caller: Caller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = caller.dial(f"127.0.0.1:{server.getsockname()[1]}")
        caller.upstream.disconnect(endpoint)
        assert caller.failure(endpoint) == "the connection was given up"


# Stopping.


def open_things() -> tuple[int, int]:
    here = Path("/proc/self")
    return len(list((here / "fd").iterdir())), len(list((here / "task").iterdir()))


def test_nothing_is_left_after_stop(service: Service, edge_kind: str) -> None:
    assert edge_kind
    gc.collect()
    before = open_things()
    caller = Caller()
    endpoint = caller.connect(service.address)
    caller.begin(endpoint, HELD, b"")
    caller.open(endpoint, HELD_STREAM)
    caller.dial("localhost:1")
    caller.until(lambda: service.requests.qsize() == 1)
    caller.stop()
    caller.stop()
    for use in (
        lambda: caller.upstream.poll(1, 1),
        lambda: caller.upstream.call([]),
        lambda: caller.upstream.disconnect(endpoint),
        caller.upstream.announce_sleep,
        caller.upstream.fileno,
    ):
        with pytest.raises(ValueError, match="stopped"):
            use()
    service.until(lambda edge: edge.counters()["connections_open"] == 0)

    def is_nothing_left() -> bool:
        # What earlier tests left may go as well, and the kernel may show a thread for a moment
        # after it was joined.
        return all(now <= then for now, then in zip(open_things(), before, strict=True))

    until("descriptors and threads are gone", is_nothing_left)


def test_the_loop_is_woken(service: Service, caller: Caller) -> None:
    """With a call on its way, a sleep without a limit ends."""
    import select

    endpoint = caller.connect(service.address)
    call = caller.begin(endpoint, HELD, b"")
    caller.until(lambda: service.requests.qsize() == 1)
    request = service.next_request()
    later = threading.Timer(0.05, lambda: service.remote.reply([(request[0], b"answer")]))
    later.start()
    while call not in caller.of_calls:
        if not caller.turn() and caller.upstream.announce_sleep():
            assert select.select([caller.upstream.fileno()], [], [], WAIT_SECONDS)[0], (
                "nobody was woken"
            )
            caller.upstream.awake()
    later.join()
    assert caller.last(call) == (UpstreamEventKind.ANSWERED, b"answer")


def test_a_forked_child_does_not_keep_the_connection(service: Service, caller: Caller) -> None:
    caller.connect(service.address)
    release, wait = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(wait)
        os.read(release, 1)
        os._exit(0)
    try:
        caller.stop()
        service.until(lambda edge: edge.counters()["connections_open"] == 0)
    finally:
        os.close(wait)
        os.waitpid(child, 0)
        os.close(release)
