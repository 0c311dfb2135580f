"""What `poll` hands out, and to whom: limits, turns, shares, and clients that are held back."""

import random
import select
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kvorum.network.edge import EdgeEventKind, Event, Limits, Request
from tests.network.edge.conftest import OpenEdge
from tests.network.edge.loop import fall_asleep, poll_until, queue_up, shake_hands, turn_until, wait
from tests.network.edge.service import ECHO, ECHO_STREAM, HELD_STREAM, OK, PATHS, WAIT_SECONDS
from tests.network.edge.wire import Wire, connect, grpc_headers, message

STREAM_EVENTS = 3  # OPENED, MESSAGE, HALF_CLOSED
TURN_MAX = 20


@contextmanager
def wires(address: str, count: int) -> Iterator[list[Wire]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Wire(address)) for _ in range(count)]


def drain(wire: Wire, streams: list[int]) -> list[bytes]:
    answers = [wire.answer(stream) for stream in streams]
    assert all(answer.status == (0, "") for answer in answers)
    return [answer.data for answer in answers]


@pytest.mark.parametrize("calls_max", [1, 7, 1000])
def test_a_batch_has_at_most_calls_max(open_it: OpenEdge, calls_max: int) -> None:
    edge, address = open_it()
    with wires(address, 3) as clients:
        streams = [[wire.call(ECHO, message(b"%d" % n)) for n in range(50)] for wire in clients]
        requests, events = poll_until(edge, lambda r, _: len(r) >= 150, calls_max)
        assert (len(requests), events) == (150, [])
        edge.reply([(call, payload) for call, _, payload, _ in requests])
        turn_until(edge, lambda: edge.counters()["calls_open"] == 0)
        for wire, numbers in zip(clients, streams, strict=True):
            assert drain(wire, numbers) == [message(b"%d" % n) for n in range(50)]


def test_a_batch_has_about_bytes_max(open_it: OpenEdge) -> None:
    edge, address = open_it()
    size, limit = 10_000, 35_000
    with Wire(address) as wire:
        shake_hands(edge, wire)
        for _ in range(40):
            wire.call(ECHO, message(bytes(size)))
        taken = 0
        while taken < 40:
            requests, events = edge.poll(1000, limit)
            # It may go past the limit by the one call that reaches it, and takes one at least.
            assert sum(len(payload) for _, _, payload, _ in requests) < limit + size
            taken += len(requests)
            assert not events
            if not requests:
                wait(edge)
        assert taken == 40


def test_a_message_larger_than_bytes_max_is_taken_all_the_same(open_it: OpenEdge) -> None:
    edge, address = open_it()
    with Wire(address) as wire:
        shake_hands(edge, wire)
        wire.call(ECHO, message(bytes(100_000)))
        requests, _ = poll_until(edge, lambda r, _: len(r) == 1, 1000, 10)
        assert len(requests[0][2]) == 100_000


def test_a_busy_connection_does_not_delay_another(open_it: OpenEdge) -> None:
    edge, address = open_it()
    with wires(address, 2) as (busy, quiet):
        shake_hands(edge, busy)
        for _ in range(1000):
            busy.call(ECHO, message(b"busy"))
        queue_up(edge, 1000)
        quiet.call(ECHO, message(b"quiet"))
        queue_up(edge, 1001)
        requests, _ = edge.poll(50, 1 << 20)
        assert b"quiet" in [payload for _, _, payload, _ in requests]
        assert len(requests) == 50
        rest, _ = poll_until(edge, lambda r, _: len(r) == 951)
        assert {payload for _, _, payload, _ in rest} == {b"busy"}


def test_connections_are_served_in_turn(open_it: OpenEdge) -> None:
    edge, address = open_it()
    with wires(address, 5) as clients:
        for number, wire in enumerate(clients):
            for _ in range(100):
                wire.call(ECHO, message(b"%d" % number))
        queue_up(edge, 500)
        payloads: list[bytes] = []
        for taken in range(20, 400, 20):
            payloads += [payload for _, _, payload, _ in edge.poll(20, 1 << 20)[0]]
            assert len(payloads) == taken
            # A turn may be a few calls long; nobody is more than a turn ahead of the others.
            counts = [payloads.count(b"%d" % number) for number in range(5)]
            assert max(counts) - min(counts) <= TURN_MAX


def test_streams_and_unary_calls_have_shares(open_it: OpenEdge) -> None:
    edge, address = open_it()
    with wires(address, 2) as (unary, streaming):
        for _ in range(200):
            unary.call(ECHO, message(b"unary"))
            streaming.call(HELD_STREAM, message(b"stream"))
        queue_up(edge, 400)
        for _ in range(10):
            requests, events = edge.poll(20, 1 << 20)
            assert len(requests) >= 10, "half of a batch, while both kinds wait"
            assert len(events) >= 10, "half of a batch, while both kinds wait"
            assert len(requests) + len(events) <= 20
        # When one kind is through, the other may have it all.
        requests, events = poll_until(edge, lambda r, _: len(r) >= 100, 40)
        poll_until(edge, lambda _, e: len(e) + len(events) >= 200 * STREAM_EVENTS - 100, 40)
        assert edge.poll(40, 1 << 20) == ([], [])


def test_shares_on_one_connection(open_it: OpenEdge) -> None:
    edge, address = open_it()
    with Wire(address) as wire:
        stream = wire.open(grpc_headers(HELD_STREAM))
        wire.data(stream, message(b"m") * 5000)
        poll_until(edge, lambda _, e: len(e) >= 1, 1)
        wire.call(ECHO, message(b"unary"))
        queue_up(edge, 5001)
        requests, events = edge.poll(10, 1 << 20)
        assert len(requests) == 1
        assert 5 <= len(events) <= 9


def test_what_is_not_taken_is_not_lost(open_it: OpenEdge) -> None:
    """Random limits, random clients: everything arrives once, and in each stream's order."""
    source = random.Random(11)
    edge, address = open_it()
    with wires(address, 4) as clients:
        expected_requests: list[bytes] = []
        expected_streams: dict[bytes, list[bytes]] = {}
        for number, wire in enumerate(clients):
            for place in range(40):
                name = b"%d.%d" % (number, place)
                if source.random() < 0.5:
                    wire.call(ECHO, message(name))
                    expected_requests.append(name)
                else:
                    payloads = [name + b":%d" % n for n in range(source.randrange(1, 10))]
                    wire.call(HELD_STREAM, b"".join(map(message, payloads)))
                    expected_streams[payloads[0]] = payloads
        requests: list[Request] = []
        events: list[Event] = []
        half_closed = 0
        while half_closed < len(expected_streams) or len(requests) < len(expected_requests):
            some_requests, some_events = edge.poll(source.randrange(0, 20), source.choice([1, 999]))
            requests += some_requests
            events += some_events
            half_closed = sum(kind == EdgeEventKind.HALF_CLOSED for kind, _, _ in events)
            if not some_requests and not some_events:
                wait(edge)
        assert sorted(payload for _, _, payload, _ in requests) == sorted(expected_requests)
        calls: dict[int, list[bytes]] = {}
        for kind, call, detail in events:
            if kind == EdgeEventKind.OPENED:
                assert call not in calls
                calls[call] = []
                assert PATHS[detail[0]] == HELD_STREAM
            elif kind == EdgeEventKind.MESSAGE:
                calls[call].append(detail)
        assert sorted(calls.values()) == sorted(expected_streams.values())
        assert edge.poll(100, 100) == ([], [])


def pour(wire: Wire, stream: int, total: int) -> int:
    """Send as a client does that keeps the windows, until nothing more is taken."""
    wire.socket.settimeout(0.5)
    sent = 0
    frame = message(bytes(15_995))
    window = wire.settings.get(4, 65535)
    while sent < total:
        room = min(window + wire.windows.get(stream, 0), 65535 + wire.windows.get(0, 0)) - sent
        try:
            if room < len(frame):
                wire.pump()
            else:
                wire.data(stream, frame)
                sent += len(frame)
        except TimeoutError:
            return sent
    return sent


def test_a_stream_that_is_not_polled_is_held_back(open_it: OpenEdge) -> None:
    limits = Limits(stream_queued_bytes_max=256 * 1024)
    edge, address = open_it(limits)
    with Wire(address) as wire, Wire(address) as other:
        stream = wire.open(grpc_headers(HELD_STREAM))
        shake_hands(edge, wire)
        held = threading.Event()
        results: list[int] = []

        def run() -> None:
            results.append(pour(wire, stream, 64 << 20))
            held.set()

        thread = threading.Thread(target=run)
        thread.start()
        while not held.wait(0.01):
            # Reads, and hands out nothing.
            assert edge.poll(0, 0) == ([], [])
        thread.join()
        assert 0 < results[0] <= 2 * limits.stream_queued_bytes_max + 65535
        # Another connection is served meanwhile.
        other.call(ECHO, message(b"other"))
        requests, _ = poll_until(edge, lambda r, _: len(r) == 1)
        edge.reply([(requests[0][0], b"")])
        received = [0]

        def all_of_it(_: list[Request], events: list[Event]) -> bool:
            received[0] = sum(len(d) + 5 for k, _, d in events if k == EdgeEventKind.MESSAGE)
            return received[0] >= results[0] - (1 << 20)

        poll_until(edge, all_of_it)


def test_unary_calls_that_are_not_polled_are_held_back(open_it: OpenEdge, tmp_path: Path) -> None:
    """The queue is full long before the window: a client that exceeds that one is thrown out."""
    limits = Limits(connection_queued_bytes_max=1 << 20)
    edge, address = open_it(limits, f"unix:{tmp_path}/edge.sock")
    stopped = threading.Event()
    with Wire(address) as wire:
        shake_hands(edge, wire)
        wire.socket.settimeout(0.5)
        sent = [0]

        def flood() -> None:
            try:
                while sent[0] < 100_000:
                    wire.call(ECHO, message(bytes(100)))
                    sent[0] += 1
            except TimeoutError:
                pass
            finally:
                stopped.set()

        thread = threading.Thread(target=flood)
        thread.start()
        while not stopped.wait(0.01):
            assert edge.poll(0, 0) == ([], [])
        thread.join()
        counters = edge.counters()
        # Each costs 256 bytes besides its own; a few more may be read at once.
        assert counters["messages_received"] < 4000
        assert counters["requests_refused"] == 0
        # What the edge queues, and the little that the kernel holds between the two.
        assert sent[0] < 20_000
        # Those that are whole: the last one may have been cut off.
        poll_until(edge, lambda r, _: len(r) >= counters["messages_received"])


def test_the_total_holds_all_connections_back(open_it: OpenEdge, tmp_path: Path) -> None:
    limits = Limits(queued_bytes_max=1 << 20)
    edge, address = open_it(limits, f"unix:{tmp_path}/edge.sock")
    body = message(bytes(16_000))
    with wires(address, 4) as clients:
        for wire in clients:
            shake_hands(edge, wire)
            wire.socket.setblocking(False)
        held = dict.fromkeys(range(4), 0)
        sent = 0
        tick = threading.Event()
        while min(held.values()) < 20:
            for number, wire in enumerate(clients):
                try:
                    if held[number] == 0:
                        wire.call(ECHO, body)
                        sent += 1
                    else:
                        wire.socket.send(b"")
                        tick.wait(0.001)
                        held[number] += 1
                except BlockingIOError:
                    held[number] += 1
            assert edge.poll(0, 0) == ([], [])
            assert edge.counters()["bytes_read"] < 3 << 20
        # Room is made by polling, and what was on its way arrives.
        assert sent > 30
        poll_until(edge, lambda r, _: len(r) == sent)


def test_a_slow_readers_pending_bytes_are_seen(open_it: OpenEdge) -> None:
    limits = Limits()
    edge, address = open_it(limits)
    with Wire(address, credit=False) as wire:
        stream = wire.call(HELD_STREAM, b"")
        _, events = poll_until(edge, lambda _, e: len(e) == 2)
        call = events[0][1]
        assert edge.pending_bytes(call) == 0
        size, sent, window = 10_000, 0, 65_535
        # First what fills the client's window to the last byte: from there on nothing is taken,
        # and the one event to come is that of the end.
        edge.send([(call, bytes(window - 5))])
        turn_until(edge, lambda: edge.pending_bytes(call) == 0)
        while sent < limits.stream_writable_bytes:
            edge.send([(call, bytes(size))])
            sent += size + 5
        # It is not counted twice.
        assert edge.pending_bytes(call) == sent
        for other in (0, stream):
            wire.give_credit(other, 1 << 24)
        reader = threading.Thread(target=lambda: read_to(wire, stream, window + sent))
        reader.start()
        _, events = poll_until(edge, lambda _, e: len(e) > 0)
        assert events == [(EdgeEventKind.WRITABLE, call, None)]
        assert edge.pending_bytes(call) < limits.stream_writable_bytes
        edge.finish(call, OK)
        turn_until(edge, lambda: edge.counters()["calls_open"] == 0)
        reader.join()
        rest = message(bytes(size)) * (sent // (size + 5))
        assert wire.answers[stream].data == message(bytes(window - 5)) + rest


def read_to(wire: Wire, stream: int, size: int) -> None:
    while len(wire.answers[stream].data) < size:
        wire.pump()


def test_the_descriptor_is_quiet_unless_asked(open_it: OpenEdge, edge_kind: str) -> None:
    edge, address = open_it()
    poller = select.poll()
    poller.register(edge.fileno(), select.POLLIN)
    assert edge.announce_sleep()
    assert poller.poll(0) == []
    edge.awake()
    with Wire(address) as wire:
        wire.call(ECHO, message(b"x"))
        if edge_kind == "native":
            # The pure edge's descriptor is its epoll object, which needs no announcement.
            queue_up(edge, 1)
            assert poller.poll(0) == [], "nobody announced a sleep"
        else:
            assert poller.poll(WAIT_SECONDS * 1000)
            queue_up(edge, 1)
        while edge.announce_sleep():
            # It has read the request, and may be about to say so.
            assert poller.poll(WAIT_SECONDS * 1000)
            edge.awake()
        requests, _ = edge.poll(10, 1000)
        assert len(requests) == 1
        fall_asleep(edge)
        wire.call(ECHO, message(b"y"))
        assert poller.poll(WAIT_SECONDS * 1000), "woken"
        edge.awake()
        poll_until(edge, lambda r, _: len(r) == 1)
        fall_asleep(edge)
        assert poller.poll(0) == [], "the wake-up is used up"
        edge.awake()


def test_no_sleep_while_something_waits(open_it: OpenEdge) -> None:
    edge, address = open_it()
    with Wire(address) as wire:
        for _ in range(3):
            wire.call(ECHO, message(b"x"))
        queue_up(edge, 3)
        for left in (2, 1):
            assert len(edge.poll(1, 1000)[0]) == 1
            for _ in range(3):
                assert not edge.announce_sleep(), f"{left} requests wait"
        assert len(edge.poll(1, 1000)[0]) == 1


@pytest.mark.parametrize("seed", range(3))
def test_no_wake_up_is_lost(open_it: OpenEdge, seed: int) -> None:
    """Clients that send one call at a time, at random moments, to a loop that sleeps at once."""
    edge, address = open_it()
    clients, calls = 4, 250

    def run(number: int) -> None:
        source = random.Random(seed * 100 + number)
        with Wire(address) as wire:
            for _ in range(calls):
                for _ in range(source.randrange(2000)):
                    pass
                path = source.choice([ECHO, ECHO_STREAM])
                payload = source.randbytes(source.randrange(100))
                assert wire.unary(path, payload).data == message(payload)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    source = random.Random(seed)
    served = 0
    while served < clients * calls:
        requests, events = edge.poll(source.randrange(1, 50), 1 << 20)
        edge.reply([(call, payload) for call, _, payload, _ in requests])
        served += len(requests)
        for kind, call, detail in events:
            if kind == EdgeEventKind.MESSAGE:
                edge.send([(call, detail)])
            elif kind == EdgeEventKind.HALF_CLOSED:
                edge.finish(call, OK)
                served += 1
        if not requests and not events:
            wait(edge)
    turn_until(edge, lambda: not any(thread.is_alive() for thread in threads))


def test_http_shares_a_connections_turn(open_it: OpenEdge) -> None:
    edge, address = open_it()
    with Wire(address) as busy, connect(address) as plain:
        shake_hands(edge, busy)
        for _ in range(500):
            busy.call(HELD_STREAM, message(b""))
        queue_up(edge, 500)
        plain.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        queue_up(edge, 501, "calls_received")
        _, events = edge.poll(50, 1 << 20)
        assert EdgeEventKind.HTTP_OPENED in [kind for kind, _, _ in events]
