"""Every limit that a client can meet: what happens at it, and what past it."""

import contextlib
import socket
import threading

import pytest
from hyperframe.frame import SettingsFrame

from kvorum.network.edge import INCIDENTS, EdgeEventKind, Limits
from tests.network.edge.client import connect as connect_client
from tests.network.edge.conftest import OpenService
from tests.network.edge.service import ECHO, HELD, HELD_STREAM, OK, RANGE, WATCH, Service
from tests.network.edge.wire import (
    ENHANCE_YOUR_CALM,
    INITIAL_WINDOW_SIZE,
    PREFACE,
    Wire,
    connect,
    farewell,
    greeted,
    grpc_headers,
    in_time,
    message,
)
from tests.waiting import WAIT_SECONDS_MAX, until

REFUSED_STREAM = 7


def count(service: Service, name: str) -> int:
    counters: dict[str, int] = service.remote.counters()
    return counters[name]


def incident(service: Service) -> tuple[str, str]:
    """Return the one that happened; the client may see what comes of it before it is noted."""
    service.until(lambda edge: any(edge.counters()[name] for name in INCIDENTS))
    ((name, _, _, text, _),) = service.remote.incidents()
    return name, text


def one_ping_too_many(wire: Wire) -> None:
    """Ping once more; the answer may come before the end, or not."""
    with contextlib.suppress(EOFError):
        wire.ping()


class TestPings:
    # A ping within an hour of the last one is early, however slow the machine is.
    LIMITS = Limits(ping_seconds_min=3600.0)

    def test_without_calls(self, open_service: OpenService, etcd: str) -> None:
        service = open_service(self.LIMITS)
        for address in (service.address, etcd):
            with Wire(address) as wire:
                for _ in range(3):
                    wire.ping()
                one_ping_too_many(wire)
                assert farewell(wire) == (ENHANCE_YOUR_CALM, b"too_many_pings")
        assert incident(service) == ("pings_excessive", "http2: too_many_pings")
        assert count(service, "pings_excessive") == 1

    def test_during_a_call(self, open_service: OpenService, etcd: str) -> None:
        service = open_service(self.LIMITS)
        for address in (service.address, etcd):
            with Wire(address) as wire:
                wire.open(grpc_headers(WATCH))
                for _ in range(3):
                    wire.ping()
                one_ping_too_many(wire)
                assert farewell(wire) == (ENHANCE_YOUR_CALM, b"too_many_pings")

    def test_an_answer_forgives_all(self, open_service: OpenService, etcd: str) -> None:
        service = open_service(self.LIMITS)
        for address in (service.address, etcd):
            with Wire(address) as wire:
                for _ in range(3):
                    for _ in range(2):
                        wire.ping()
                    assert wire.unary(RANGE, b"\n\1x").status == (0, "")
                    wire.ping()

    def test_as_fast_as_the_limit_allows(self, open_service: OpenService) -> None:
        service = open_service(Limits(ping_seconds_min=0.0))
        with Wire(service.address) as wire:
            wire.open(grpc_headers(HELD_STREAM))
            service.next_event(EdgeEventKind.OPENED)
            for _ in range(20):
                wire.ping()
        assert count(service, "pings_excessive") == 0


class TestKeepalive:
    """A busy machine may stand still for longer than the edge waits here; then all begins anew."""

    def opened(self, service: Service) -> int | None:
        """Return the call that began; None if it was ended before the loop could have it."""
        service.until(
            lambda edge: not service.events.empty() or edge.counters()["keepalives_unanswered"] > 0
        )
        return None if service.events.empty() else service.next_event(EdgeEventKind.OPENED).call

    def test_who_answers_stays(self, open_service: OpenService) -> None:
        limits = Limits(keepalive_seconds=0.05, keepalive_timeout_seconds=0.5)

        def stays() -> bool:
            service = open_service(limits)
            with Wire(service.address) as wire, contextlib.suppress(EOFError, ConnectionError):
                stream = wire.open(grpc_headers(HELD_STREAM))
                # The second ping comes when the first one has been found answered in time.
                while wire.pinged < 2:
                    wire.pump()
                call = self.opened(service)
                if call is None:
                    return False
                service.remote.send([(call, b"still there")])
                while not wire.answers[stream].data:
                    wire.pump()
                assert not wire.answers[stream].ended
                return count(service, "keepalives_unanswered") == 0
            return False

        until("a client that answers in time stays", stays)

    def test_who_does_not_is_let_go(self, open_service: OpenService) -> None:
        limits = Limits(keepalive_seconds=0.05, keepalive_timeout_seconds=0.2)

        def is_let_go() -> bool:
            service = open_service(limits)
            with Wire(service.address, greet=False) as wire:
                # With the greeting, so that the call is there before the time is up.
                frame = wire.headers_frame(1, grpc_headers(HELD_STREAM)).serialize()
                wire.send_bytes(PREFACE + SettingsFrame(0).serialize() + frame)
                kinds = []
                while (received := wire.read_frame()) is not None:
                    kinds.append(type(received).__name__)
                assert kinds.count("PingFrame") == 1
            call = self.opened(service)
            if call is None:
                return False
            service.next_event(EdgeEventKind.ENDED, call)
            assert incident(service)[0] == "keepalives_unanswered"
            return True

        until("the loop has the call of a client that is let go", is_let_go)

    @pytest.mark.parametrize(("seconds", "timeout"), [(0.0, 0.1), (0.05, 0.0)])
    def test_off(self, open_service: OpenService, seconds: float, timeout: float) -> None:
        limits = Limits(keepalive_seconds=seconds, keepalive_timeout_seconds=timeout)
        service = open_service(limits)
        with Wire(service.address) as wire:
            wire.ping()
            wire.socket.settimeout(0.5)
            kinds = []
            with contextlib.suppress(TimeoutError):
                while (frame := wire.read_frame()) is not None:
                    kinds.append(type(frame).__name__)
            assert not wire.closed and "PingFrame" not in kinds


class TestResets:
    LIMITS = Limits(resets_per_second_max=50)

    def send(self, wire: Wire, pairs: int) -> None:
        frames = b""
        for _ in range(pairs):
            stream = wire.last_stream = wire.last_stream + 2
            frames += wire.headers_frame(stream, grpc_headers(HELD_STREAM)).serialize()
            frames += b"\0\0\4\3\0" + stream.to_bytes(4, "big") + b"\0\0\0\x08"
        wire.send_bytes(frames)

    def test_at_the_limit(self, open_service: OpenService) -> None:
        service = open_service(self.LIMITS)
        with Wire(service.address) as wire:
            self.send(wire, 50)
            assert wire.unary(ECHO, b"x").data == message(b"x")
        assert count(service, "resets_excessive") == 0

    def test_past_it(self, open_service: OpenService) -> None:
        service = open_service(self.LIMITS)
        with Wire(service.address) as wire:
            with contextlib.suppress(ConnectionError):
                self.send(wire, 200)
            said = farewell(wire)
            assert said is not None and said[0] == ENHANCE_YOUR_CALM
        assert incident(service)[0] == "resets_excessive"
        service.until(lambda edge: edge.counters()["calls_open"] == 0)

    def test_of_old_calls_there_may_be_many(self, open_service: OpenService) -> None:
        service = open_service(self.LIMITS)
        with Wire(service.address) as wire:
            streams = [wire.open(grpc_headers(HELD_STREAM)) for _ in range(200)]
            for _ in streams:
                service.next_event(EdgeEventKind.OPENED)
            # They grow old.
            threading.Event().wait(2.1)
            wire.unary(ECHO, b"")
            wire.send_bytes(
                b"".join(b"\0\0\4\3\0" + one.to_bytes(4, "big") + b"\0\0\0\x08" for one in streams)
            )
            assert wire.unary(ECHO, b"x").data == message(b"x")
        assert count(service, "resets_excessive") == 0


def test_connections_past_the_limit_are_told_of(open_service: OpenService) -> None:
    service = open_service(Limits(connections_max=1))
    with Wire(service.address) as first:
        assert first.unary(ECHO, b"").status == (0, "")
        with Wire(service.address) as second:
            stream = second.call(ECHO, message(b""))
            service.until(lambda edge: edge.counters()["connections_delayed"] > 0)
            first.socket.close()
            assert second.answer(stream).status == (0, "")
    assert incident(service)[0] == "connections_delayed"


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\nhost:", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
)
def test_silence_is_told_of(open_service: OpenService, said: bytes) -> None:
    service = open_service(Limits(header_read_seconds_max=0.2))
    with connect(service.address) as client:
        client.sendall(said)
        with contextlib.suppress(ConnectionError):
            while client.recv(1000):
                pass
    service.until(lambda edge: edge.counters()["headers_timed_out"] == 1)


class TestPartialMessages:
    LIMITS = Limits(connection_partial_bytes_max=100_000)
    WHOLE = message(bytes(150_000))

    def test_of_unary_calls(self, open_service: OpenService) -> None:
        service = open_service(self.LIMITS)
        with Wire(service.address) as wire:
            wire.ping()
            first = wire.call(ECHO, self.WHOLE[:60_000], end=False)
            second = wire.call(ECHO, self.WHOLE[:40_000], end=False)
            assert wire.unary(ECHO, b"at the limit").data == message(b"at the limit")
            third = wire.call(ECHO, self.WHOLE[:10], end=False)
            assert wire.answer(third).reset == REFUSED_STREAM
            service.until(lambda edge: edge.counters()["partial_messages_refused"] == 1)
            # What is there already goes on when there is room.
            wire.reset(second)
            wire.data(first, self.WHOLE[60_000:100_000])
            assert wire.unary(ECHO, b"x").data == message(b"x")
            wire.data(first, self.WHOLE[100_000:100_001])
            assert wire.answer(first).reset == REFUSED_STREAM
            assert wire.unary(ECHO, b"x").data == message(b"x")
        service.until(lambda edge: edge.counters()["calls_open"] == 0)

    def test_of_a_stream(self, open_service: OpenService) -> None:
        service = open_service(self.LIMITS)
        with Wire(service.address) as wire:
            wire.ping()
            stream = wire.call(HELD_STREAM, self.WHOLE[:100_000], end=False)
            opened = service.next_event(EdgeEventKind.OPENED)
            assert wire.unary(ECHO, b"x").data == message(b"x")
            wire.data(stream, self.WHOLE[100_000:120_000])
            assert wire.answer(stream).reset == ENHANCE_YOUR_CALM
            service.next_event(EdgeEventKind.ENDED, opened.call)

    def test_of_all_connections(self, open_service: OpenService) -> None:
        service = open_service(Limits(queued_bytes_max=100_000))
        with Wire(service.address) as one, Wire(service.address) as other:
            for wire in (one, other):
                wire.ping()
            one.call(ECHO, self.WHOLE[:90_000], end=False)
            assert one.unary(ECHO, b"x").data == message(b"x")
            # Each has its share, whatever the others do.
            stream = other.call(ECHO, self.WHOLE[:45_000], end=False)
            assert other.unary(ECHO, b"x").data == message(b"x")
            other.data(stream, self.WHOLE[45_000:55_000])
            assert other.answer(stream).reset == REFUSED_STREAM
            one.socket.close()
            service.until(lambda edge: edge.counters()["connections_open"] == 1)
            stream = other.call(ECHO, self.WHOLE[:90_000], end=False)
            assert other.unary(ECHO, b"x").data == message(b"x")
            assert other.answers[stream].reset is None


class TestUnreadAnswers:
    # Nobody is ended because a busy machine takes nothing for a while.
    LIMITS = Limits(
        connection_unread_bytes_max=100_000,
        connection_queued_bytes_max=200_000,
        unread_seconds_max=WAIT_SECONDS_MAX,
    )

    @pytest.mark.parametrize("size", [49_000, 90_000])
    def test_new_calls_wait(self, open_service: OpenService, size: int) -> None:
        service = open_service(self.LIMITS)
        with Wire(service.address, {INITIAL_WINDOW_SIZE: 0}) as wire:
            streams = [wire.call(HELD, message(b"")) for _ in range(3)]
            calls = [service.next_request()[0] for _ in streams]
            # Answers to streams are not counted: each is held back by itself.
            watch = wire.open(grpc_headers(HELD_STREAM))
            opened = service.next_event(EdgeEventKind.OPENED)
            service.remote.send([(opened.call, bytes(300_000))])
            service.remote.reply([(calls[0], bytes(size))])
            wire.ping()
            served = wire.call(HELD, message(b"at the limit"))
            assert service.next_request()[2] == b"at the limit"
            assert count(service, "calls_delayed") == 0
            service.remote.reply([(call, bytes(size)) for call in calls[1:]])
            service.until(lambda edge: edge.counters()["calls_delayed"] == 1)
            waiting = wire.call(HELD, message(b"past it"))
            wire.ping()
            assert service.requests.empty()
            for stream in streams:
                wire.give_credit(stream, 2 * size)
            for stream in streams:
                assert len(wire.answer(stream).data) == size + 5
            call = service.next_request()
            assert call[2] == b"past it"
            wire.give_credit(waiting, 100)
            service.remote.reply([(call[0], b"done")])
            assert wire.answer(waiting).data == message(b"done")
            assert not wire.answers[served].ended
            assert not wire.answers[watch].ended

    def test_who_asks_on_without_reading_is_let_go(self, open_service: OpenService) -> None:
        service = open_service(self.LIMITS)
        with Wire(service.address, {INITIAL_WINDOW_SIZE: 0}) as wire:
            wire.call(HELD, message(b""))
            service.remote.reply([(service.next_request()[0], bytes(150_000))])
            service.until(lambda edge: edge.counters()["calls_delayed"] == 1)
            with contextlib.suppress(ConnectionError):
                for _ in range(3000):
                    wire.call(HELD, message(b"x" * 100))
            assert farewell(wire) in ((ENHANCE_YOUR_CALM, b"too_much_unread"), None)
        service.until(lambda edge: edge.counters()["unread_excessive"] == 1)
        service.until(lambda edge: edge.counters()["calls_open"] == 0)

    def test_who_cancels_makes_room(self, open_service: OpenService) -> None:
        service = open_service(self.LIMITS)
        with Wire(service.address, {INITIAL_WINDOW_SIZE: 0}) as wire:
            for number in range(5):
                streams = [wire.call(HELD, message(b"")) for _ in range(4)]
                calls = [service.next_request()[0] for _ in streams]
                service.remote.reply([(call, bytes(45_000)) for call in calls])
                service.until(lambda edge, n=number: edge.counters()["calls_delayed"] == n + 1)  # type: ignore[misc]
                for stream in streams:
                    wire.reset(stream)

    def test_nothing_stands_still(self, open_service: OpenService) -> None:
        service = open_service(self.LIMITS)
        sizes = [60_000 + number for number in range(60)]
        with connect_client(service.address) as client:
            futures = [client.unary_call(ECHO, bytes(size)) for size in sizes]
            assert [len(future.result(WAIT_SECONDS_MAX)) for future in futures] == sizes


def test_an_idle_connection_is_never_dropped(open_service: OpenService) -> None:
    service = open_service(Limits(header_read_seconds_max=0.1, handshake_seconds_max=0.1))
    request = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"

    def asked() -> socket.socket:
        plain = connect(service.address)
        plain.sendall(request)
        if plain.recv(1000).startswith(b"HTTP/1.1 200 "):
            return plain
        plain.close()
        raise EOFError

    with greeted(service.address) as wire, in_time(asked) as plain:
        stream = wire.open(grpc_headers(HELD_STREAM))
        call = service.next_event(EdgeEventKind.OPENED).call
        # Long after every time limit, told by the edge's own clock:
        for _ in range(4):
            with connect(service.address) as silent, contextlib.suppress(ConnectionError):
                silent.recv(1)
        service.remote.finish(call, OK)
        assert wire.answer(stream).status == (0, "")
        plain.sendall(request)
        assert plain.recv(1000).startswith(b"HTTP/1.1 200 ")
