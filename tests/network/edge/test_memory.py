"""What clients can make the edge keep: headers, packed messages, answers that are not read.

Sizes are as the edge reports them: what was handed out, and which client was ended.
"""

import gzip

import pytest

from kvorum.network.edge import Edge, EdgeEventKind, Limits, ListenerKind
from tests.network.edge.conftest import OpenEdge, OpenService
from tests.network.edge.loop import poll_until, queue_up, shake_hands
from tests.network.edge.service import ECHO, HELD, HELD_STREAM, WAIT_SECONDS, Arrived, Service
from tests.network.edge.wire import (
    ENHANCE_YOUR_CALM,
    INITIAL_WINDOW_SIZE,
    Wire,
    connect,
    farewell,
    message,
)

GET = [(":method", "GET"), (":scheme", "http"), (":path", "/held"), (":authority", "x")]
NEWEST = b"\xbe"
"""A reference to the newest entry of HPACK's table."""


def next_http(service: Service) -> Arrived:
    """Return the next HTTP request; ends of others are skipped."""
    while True:
        arrived = service.events.get(timeout=WAIT_SECONDS)
        if arrived.kind == EdgeEventKind.HTTP_OPENED:
            return arrived


class TestHeaders:
    def open(self, wire: Wire, block: bytes) -> int:
        stream = wire.last_stream = wire.last_stream + 2
        frame = wire.headers_frame(stream, [])
        frame.data = block
        frame.flags.add("END_STREAM")
        wire.send(frame)
        return stream

    def bomb(self, wire: Wire, name: str, references: int) -> bytes:
        """Enter a long header into the table; return headers that refer to it."""
        block = wire.encoder.encode([*GET, (name, "y" * 3900)])
        self.open(wire, block)
        return wire.encoder.encode(GET) + NEWEST * references

    def test_only_those_somebody_reads_are_passed(self, service: Service) -> None:
        with Wire(service.address) as wire:
            wire.open([*GET, ("x-mixed", "1"), ("nobody", "reads"), ("x-mixed", "2")], end=True)
            _, _, _, headers = next_http(service).detail
            assert sorted(headers) == [("host", "x"), ("x-mixed", "1"), ("x-mixed", "2")]
        with connect(service.address) as plain:
            plain.sendall(b"GET /held HTTP/1.1\r\nHost: h\r\nX-Mixed: 3\r\nNobody: reads\r\n\r\n")
            _, _, _, headers = next_http(service).detail
            assert sorted(headers) == [("host", "h"), ("x-mixed", "3")]

    def test_references_count_as_what_they_refer_to(self, open_service: OpenService) -> None:
        service = open_service(Limits(http_header_bytes_max=15_000, header_list_bytes_max=64_000))
        with Wire(service.address) as wire:
            block = self.bomb(wire, "x-mixed", 3)
            self.open(wire, block)
            for _ in range(2):
                next_http(service)
            refused = self.open(wire, block + NEWEST)
            assert wire.answer(refused).headers[":status"] == "431"
            kinds = set()
            while not service.events.empty():
                kinds.add(service.events.get().kind)
            assert kinds <= {EdgeEventKind.HALF_CLOSED}

    def test_they_count_while_they_wait(self, open_it: OpenEdge) -> None:
        limits = Limits(connection_queued_bytes_max=400_000)
        edge, address = open_it(limits)
        with Wire(address) as wire:
            shake_hands(edge, wire)
            block = self.bomb(wire, "x-mixed", 14)
            wire.socket.settimeout(0.5)
            try:
                # No more than fits is read: the first ones come to 55 KB each.
                while wire.last_stream < 100_000:
                    self.open(wire, block)
                    if not wire.last_stream % 99:
                        edge.poll(0, 0)
            except TimeoutError:
                pass
            assert edge.counters()["calls_received"] < 2_000


def packed(size: int) -> bytes:
    return message(gzip.compress(bytes(size)), 1)


class TestPackedMessages:
    """A message of a few hundred bytes may be long; they are unpacked one at a time."""

    LIMITS = Limits(connection_queued_bytes_max=1_000_000)
    SIZE = 200_000

    def test_of_a_stream(self, open_it: OpenEdge) -> None:
        edge, address = open_it(self.LIMITS)
        with Wire(address) as wire:
            shake_hands(edge, wire)
            wire.call(HELD_STREAM, packed(self.SIZE) * 100, ("grpc-encoding", "gzip"))
            other = Wire(address)
            other.call(ECHO, message(b"behind"))
            queue_up(edge, 2)
            for _ in range(20):
                edge.poll(0, 0)
            unpacked = edge.counters()["messages_received"]
            assert unpacked <= self.LIMITS.connection_queued_bytes_max // self.SIZE + 7
            _, events = poll_until(
                edge, lambda _, e: bool(e) and e[-1][0] == EdgeEventKind.HALF_CLOSED
            )
            assert [len(detail) for kind, _, detail in events if kind == EdgeEventKind.MESSAGE] == [
                self.SIZE
            ] * 100
            other.socket.close()

    def test_of_unary_calls(self, open_it: OpenEdge) -> None:
        edge, address = open_it(self.LIMITS)
        with Wire(address) as wire:
            shake_hands(edge, wire)
            for _ in range(100):
                wire.call(ECHO, packed(self.SIZE), ("grpc-encoding", "gzip"))
            queue_up(edge, 2)
            for _ in range(20):
                edge.poll(0, 0)
            unpacked = edge.counters()["messages_received"]
            assert unpacked <= self.LIMITS.connection_queued_bytes_max // self.SIZE + 7
            requests, _ = poll_until(edge, lambda r, _: len(r) == 100)
            assert {len(payload) for _, _, payload, _ in requests} == {self.SIZE}


class TestHttpAnswers:
    LIMITS = Limits(
        connection_unread_bytes_max=100_000,
        http_calls_per_connection_max=5,
        unread_seconds_max=WAIT_SECONDS,
    )

    def test_count_as_unread(self, open_service: OpenService) -> None:
        service = open_service(self.LIMITS)
        with Wire(service.address, {INITIAL_WINDOW_SIZE: 0}) as wire:
            streams = [wire.open(GET, end=True) for _ in range(20)]
            wire.ping()
            calls = [next_http(service).call for _ in range(5)]
            assert not any(self.opened(service)), "so many at once"
            # All of them before the next are handed out.
            service.do(lambda edge: self.respond_to_all(edge, calls))
            wire.ping()
            assert not any(self.opened(service)), "so much unread"
            assert not service.remote.has_room(calls[0])
            wire.give_credit(0, 1 << 20)
            for stream in streams:
                wire.give_credit(stream, 40_000)
            for _ in range(15):
                call = next_http(service).call
                service.remote.respond(call, 200, [], bytes(30_000))
            assert {len(wire.answer(stream).data) for stream in streams} == {30_000}

    def respond_to_all(self, edge: Edge, calls: list[int]) -> None:
        for call in calls:
            edge.respond(call, 200, [], bytes(30_000))

    def opened(self, service: Service) -> list[bool]:
        kinds = []
        while not service.events.empty():
            kinds.append(service.events.get().kind)
        return [kind == EdgeEventKind.HTTP_OPENED for kind in kinds]

    def test_of_http1(self, open_service: OpenService) -> None:
        service = open_service(self.LIMITS)
        with connect(service.address) as client:
            client.sendall(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n")
            call = next_http(service).call
            # More than the kernel takes.
            service.remote.respond(call, 200, [], bytes(32 << 20))
            assert not service.remote.has_room(call)
            left = 32 << 20
            while left > 0:
                left -= len(client.recv(1 << 20))
            service.until(lambda edge: edge.has_room(call))


class TestTheWholeServer:
    LIMITS = Limits(
        connection_unread_bytes_max=100_000, unread_bytes_max=300_000, unread_seconds_max=0.2
    )

    def leave(self, service: Service, wire: Wire, size: int) -> int:
        wire.call(HELD, message(b""))
        call = service.next_request()[0]
        service.remote.reply([(call, bytes(size))])
        return call

    def test_who_leaves_most_is_ended(self, open_service: OpenService) -> None:
        service = open_service(self.LIMITS)
        wires = [Wire(service.address, {INITIAL_WINDOW_SIZE: 0}) for _ in range(5)]
        calls = []
        for wire in wires:
            wire.call(HELD, message(b""))
            calls.append(service.next_request()[0])
        # Each of them keeps the limit for itself. All at once: whoever is ended is chosen from all.
        service.remote.reply([(call, bytes(80_000 + n)) for n, call in enumerate(calls)])
        with Wire(service.address) as other:
            # A client that reads its answers is served all the time.
            assert other.unary(ECHO, b"x").data == message(b"x")
            service.until(lambda edge: edge.counters()["unread_excessive"] >= 3)
            assert other.unary(ECHO, b"x").data == message(b"x")
        ends = [farewell(wire) for wire in wires[2:]]
        assert (ENHANCE_YOUR_CALM, b"too_much_unread") in ends
        for wire in wires:
            wire.socket.close()

    def test_long_answers_wait(self, open_service: OpenService) -> None:
        limits = Limits(
            connection_unread_bytes_max=100_000,
            unread_bytes_max=150_000,
            unread_seconds_max=WAIT_SECONDS,
        )
        service = open_service(limits)
        with (
            Wire(service.address, {INITIAL_WINDOW_SIZE: 0}) as one,
            Wire(service.address, {INITIAL_WINDOW_SIZE: 0}) as two,
            Wire(service.address) as other,
        ):
            other.call(HELD, message(b""))
            call = service.next_request()[0]
            assert service.remote.has_room(call, True)
            for wire in (one, two):
                self.leave(service, wire, 90_000)
            service.until(lambda edge: not edge.has_room(call, True))
            assert service.remote.has_room(call)
            for wire in (one, two):
                wire.give_credit(1, 100_000)
                assert len(wire.answer(1).data) == 90_005
            service.until(lambda edge: edge.has_room(call, True))

    def test_who_is_behind_and_takes_nothing_is_ended(self, open_service: OpenService) -> None:
        service = open_service(self.LIMITS)
        with (
            Wire(service.address, {INITIAL_WINDOW_SIZE: 0}) as wire,
            Wire(service.address) as other,
        ):
            other.call(HELD, message(b""))
            call = service.next_request()[0]
            wire.call(HELD, message(b""))
            unread = service.next_request()[0]

            def has_room_for_another(edge: Edge) -> bool:
                edge.reply([(unread, bytes(400_000))])
                return edge.has_room(call, True)

            # In one go, before its time is up.
            assert not service.do(has_room_for_another)
            service.until(lambda edge: edge.counters()["unread_excessive"] == 1)
            assert farewell(wire) == (ENHANCE_YOUR_CALM, b"too_much_unread")
            service.until(lambda edge: edge.has_room(call, True))


def test_each_kind_of_listener_has_its_connections(open_service: OpenService) -> None:
    limits = Limits(connections_max=2, metrics_connections_max=1, peer_connections_max=1)
    service = open_service(limits)

    def listen(kind: ListenerKind) -> str:
        return service.do(lambda edge: edge.listen("127.0.0.1:0", http1_only=True, kind=kind))[1]

    metrics, peers = listen(ListenerKind.METRICS), listen(ListenerKind.PEER)
    idle = [connect(service.address) for _ in range(4)]
    service.until(lambda edge: edge.counters()["connections_delayed"] == 1)
    for address in (metrics, peers):
        with connect(address) as plain:
            plain.sendall(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
            assert plain.recv(100).startswith(b"HTTP/1.1 200 ")
    # Those that waited are served when there is room.
    for connection in idle[:2]:
        connection.close()
    with idle[2] as plain:
        plain.sendall(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        assert plain.recv(100).startswith(b"HTTP/1.1 200 ")
    idle[3].close()


@pytest.mark.parametrize(
    ("descriptors", "expected"), [(1_000_000, 999_274), (1024, 437), (200, 25), (20, 1)]
)
def test_connections_by_kind(descriptors: int, expected: int) -> None:
    limits = Limits()
    by_kind = limits.connections_by_kind(descriptors)
    assert by_kind == (expected, limits.metrics_connections_max, limits.peer_connections_max)
    assert Limits(connections_max=7).connections_by_kind(descriptors)[0] == 7
