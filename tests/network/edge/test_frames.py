"""HTTP/2 frame by frame: what RFC 9113 asks of a server that meets a slow or broken client.

Whatever one connection does, the others are served: each test here ends with `still_serves`.
"""

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from kvorum.network.edge import EdgeEventKind, Limits
from tests.network.edge.conftest import OpenService
from tests.network.edge.service import (
    ECHO,
    ECHO_STREAM,
    HELD,
    HELD_STREAM,
    OK,
    WAIT_SECONDS,
    Service,
)
from tests.network.edge.wire import PREFACE, Wire, connect, greeted, grpc_headers, message

NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR = 0, 1, 3
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL = 5, 6, 7, 8
COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 9, 11
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_CONCURRENT_STREAMS = 4, 5, 3
WINDOW = 65535
FLOOD_BYTES_MAX = 8 << 20


@pytest.fixture
def wire(service: Service) -> Iterator[Wire]:
    with Wire(service.address) as wire:
        yield wire
    still_serves(service)


def still_serves(service: Service) -> None:
    with Wire(service.address) as other:
        assert other.unary(ECHO, b"still").data == message(b"still")


def raw(kind: int, flags: int, stream: int, body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return struct.pack(">I", size)[1:] + struct.pack(">BBI", kind, flags, stream) + body


def test_settings_are_acknowledged(wire: Wire) -> None:
    wire.ping()
    assert wire.acknowledged == 1
    assert wire.settings, "the server's own settings came"
    wire.send(SettingsFrame(0, {INITIAL_WINDOW_SIZE: 1000, 999: 1}))
    wire.ping()
    assert wire.acknowledged == 2


def test_pings_are_answered_with_their_data(wire: Wire) -> None:
    for number in range(3):
        wire.ping(struct.pack(">Q", number))


def test_the_settings_tell_the_limits(open_service: OpenService) -> None:
    limits = Limits(streams_per_connection_max=7, stream_queued_bytes_max=123_456)
    service = open_service(limits)
    with Wire(service.address) as wire:
        wire.ping()
        assert wire.settings[MAX_CONCURRENT_STREAMS] == 7
        assert wire.settings[INITIAL_WINDOW_SIZE] == 123_456


def test_streams_past_the_limit_are_refused(open_service: OpenService) -> None:
    service = open_service(Limits(streams_per_connection_max=3))
    with Wire(service.address) as wire:
        streams = [wire.call(HELD, message(b"%d" % number)) for number in range(4)]
        calls = [service.next_request()[0] for _ in range(3)]
        assert wire.answer(streams[3]).reset == REFUSED_STREAM
        service.remote.reply([(call, b"") for call in calls])
        for stream in streams[:3]:
            assert wire.answer(stream).status == (0, "")
        assert wire.unary(ECHO, b"room again").status == (0, "")


@pytest.mark.parametrize("size", [1, 7])
def test_a_client_that_sends_bytes_one_by_one(service: Service, size: int) -> None:
    with Wire(service.address, greet=False) as wire:
        headers = wire.headers_frame(1, grpc_headers(ECHO))
        data = DataFrame(1, message(b"slow"), flags=["END_STREAM"])
        whole = PREFACE + SettingsFrame(0).serialize() + headers.serialize() + data.serialize()
        for at in range(0, len(whole), size):
            wire.send_bytes(whole[at : at + size])
            if at % 40 == 0:
                # The kernel would put small writes together; another's call lets them be read.
                service.remote.counters()
        assert wire.answer(1).data == message(b"slow")


def test_a_request_in_many_small_frames(wire: Wire) -> None:
    payload = random.Random(5).randbytes(500)
    stream = wire.open(grpc_headers(ECHO))
    frames = [DataFrame(stream, bytes([byte])) for byte in message(payload)]
    frames.insert(3, DataFrame(stream, b""))
    wire.send(*frames, DataFrame(stream, b"", flags=["END_STREAM"]))
    assert wire.answer(stream).data == message(payload)


def test_headers_in_continuations_with_padding_and_priority(wire: Wire) -> None:
    block = wire.encoder.encode(grpc_headers(ECHO, ("long", "x" * 1000)))
    first = HeadersFrame(1, block[:10], flags=["PADDED", "PRIORITY"])
    first.pad_length, first.depends_on, first.stream_weight = 20, 0, 10
    rest = [ContinuationFrame(1, block[at : at + 100]) for at in range(10, len(block), 100)]
    rest[-1].flags.add("END_HEADERS")
    data = DataFrame(1, message(b"padded"), flags=["PADDED", "END_STREAM"])
    data.pad_length = 99
    wire.send(first, *rest, PriorityFrame(1, 0, 5), data)
    assert wire.answer(1).data == message(b"padded")


def test_unknown_frames_and_flags_are_ignored(wire: Wire) -> None:
    wire.send_bytes(raw(0x77, 0xFF, 0, b"whatever") + raw(0x77, 0, 9, b""))
    wire.send_bytes(raw(6, 0xFE, 0, b"flagged!"))
    assert wire.unary(ECHO, b"x").data == message(b"x")


def test_frames_at_the_largest_size_and_one_past_it(service: Service) -> None:
    with Wire(service.address) as wire:
        wire.ping()
        size = wire.settings.get(MAX_FRAME_SIZE, 16384)
        stream = wire.open(grpc_headers(ECHO))
        wire.send(DataFrame(stream, message(bytes(size - 5)), flags=["END_STREAM"]))
        assert len(wire.answer(stream).data) == size
        stream = wire.open(grpc_headers(ECHO))
        wire.send_bytes(raw(0, 1, stream, bytes(size + 1)))
        assert wire.until_closed() in (FRAME_SIZE_ERROR, None)
    still_serves(service)


CONNECTION_ERRORS = {
    "headers on stream 0": (raw(1, 4, 0, b"\x82"), PROTOCOL_ERROR),
    "data on stream 0": (raw(0, 0, 0, b"x"), PROTOCOL_ERROR),
    "data on an idle stream": (raw(0, 0, 5, b"x"), PROTOCOL_ERROR),
    "a reset of an idle stream": (raw(3, 0, 5, b"\0\0\0\0"), PROTOCOL_ERROR),
    "a reset on stream 0": (raw(3, 0, 0, b"\0\0\0\0"), PROTOCOL_ERROR),
    "a window of an idle stream": (raw(8, 0, 5, b"\0\0\0\1"), PROTOCOL_ERROR),
    "an even stream": (raw(1, 4, 2, b"\x82"), PROTOCOL_ERROR),
    "a ping of seven bytes": (raw(6, 0, 0, b"1234567"), FRAME_SIZE_ERROR),
    "a ping on a stream": (raw(6, 0, 1, b"12345678"), PROTOCOL_ERROR),
    "settings of five bytes": (raw(4, 0, 0, b"12345"), FRAME_SIZE_ERROR),
    "settings on a stream": (raw(4, 0, 1, b""), PROTOCOL_ERROR),
    "an acknowledgement with settings": (raw(4, 1, 0, b"123456"), FRAME_SIZE_ERROR),
    "a reset of three bytes": (raw(3, 0, 1, b"\0\0\0"), FRAME_SIZE_ERROR),
    "a window of three bytes": (raw(8, 0, 0, b"\0\0\1"), FRAME_SIZE_ERROR),
    "a window of nothing": (raw(8, 0, 0, b"\0\0\0\0"), PROTOCOL_ERROR),
    "a window that overflows": (raw(8, 0, 0, b"\x7f\xff\xff\xff") * 2, FLOW_CONTROL_ERROR),
    "a window setting that overflows": (raw(4, 0, 0, b"\0\4\x80\0\0\0"), FLOW_CONTROL_ERROR),
    "a frame size setting too small": (raw(4, 0, 0, b"\0\5\0\0\0\1"), PROTOCOL_ERROR),
    "a push setting of two": (raw(4, 0, 0, b"\0\2\0\0\0\2"), PROTOCOL_ERROR),
    "a push promise": (raw(5, 4, 1, b"\0\0\0\2\x82"), PROTOCOL_ERROR),
    "a continuation of nothing": (raw(9, 4, 1, b"\x82"), PROTOCOL_ERROR),
    "headers broken by a ping": (raw(1, 0, 1, b"\x82") + raw(6, 0, 0, bytes(8)), PROTOCOL_ERROR),
    "another stream's continuation": (raw(1, 0, 1, b"\x82") + raw(9, 4, 3, b""), PROTOCOL_ERROR),
    "more padding than frame": (raw(1, 4 + 8, 1, b"\xff\x82"), PROTOCOL_ERROR),
    "an index past the table": (raw(1, 4, 1, b"\xff\xff\xff\x7f"), COMPRESSION_ERROR),
    "a string that is cut off": (raw(1, 4, 1, b"\x00\x7f\x00ab"), COMPRESSION_ERROR),
    "bad Huffman code": (raw(1, 4, 1, b"\x00\x84\xff\xff\xff\xff\x01a"), COMPRESSION_ERROR),
    "a table larger than allowed": (raw(1, 4, 1, b"\x3f\xff\xff\xff\x7f"), COMPRESSION_ERROR),
    "goaway on a stream": (raw(7, 0, 1, bytes(8)), PROTOCOL_ERROR),
    "headers as large as they can say": (raw(1, 4, 1, b"", 2**24 - 1), FRAME_SIZE_ERROR),
}


@pytest.mark.parametrize("case", CONNECTION_ERRORS)
def test_broken_frames_end_the_connection(service: Service, case: str) -> None:
    data, code = CONNECTION_ERRORS[case]
    with Wire(service.address) as wire:
        wire.ping()
        wire.send_bytes(data)
        # A server need not say more than that something is wrong.
        assert wire.until_closed() in (code, PROTOCOL_ERROR, None)
    service.until(lambda edge: edge.counters()["connections_open"] == 0)
    still_serves(service)


def bad_headers() -> dict[str, list[tuple[str, str]]]:
    good = grpc_headers(ECHO)
    return {
        "a name in capitals": [*good, ("Token", "x")],
        "a connection header": [*good, ("connection", "close")],
        "an unknown pseudo-header": [(":what", "x"), *good],
        "a pseudo-header after others": [*good[1:], good[0]],
        "a pseudo-header twice": [good[0], *good],
        "a value with a line break": [*good, ("token", "a\r\nb")],
        "a value with a zero": [*good, ("token", "a\0b")],
        "no method": [pair for pair in good if pair[0] != ":method"],
        "no path": [pair for pair in good if pair[0] != ":path"],
        "a status": [(":status", "200"), *good],
    }


@pytest.mark.parametrize("case", bad_headers())
def test_malformed_headers_end_at_most_the_connection(service: Service, case: str) -> None:
    with Wire(service.address) as wire:
        stream = wire.open(bad_headers()[case])
        # Sent without waiting, so that a reset stream gets it too.
        try:
            wire.data(stream, message(b""), end=True)
        except ConnectionError:
            return
        answer = wire.answer(stream)
        assert not answer.ended or answer.headers[":status"] == "400" or answer.status[0] != 0
        if answer.reset is not None:
            assert answer.reset == PROTOCOL_ERROR
            assert wire.unary(ECHO, b"next").status == (0, "")
    assert service.requests.empty() and service.events.empty()
    still_serves(service)


def test_headers_past_the_limit(open_service: OpenService) -> None:
    service = open_service(Limits(header_list_bytes_max=8192))
    with Wire(service.address) as wire:
        assert wire.unary(ECHO, b"", ("long", "x" * 7000)).status == (0, "")
        refused = wire.open(grpc_headers(ECHO, ("long", "x" * 12_000)))
        answer = wire.answer(refused)
        # A reset, or the status that HTTP has for it; never a served call.
        assert answer.reset is not None or wire.closed or answer.headers[":status"] == "431"
        assert answer.data == b""
        if not wire.closed:
            assert wire.unary(ECHO, b"next").status == (0, "")
    still_serves(service)


def test_a_flood_of_continuations_ends(service: Service) -> None:
    with Wire(service.address) as wire:
        wire.ping()
        wire.send(HeadersFrame(1, wire.encoder.encode(grpc_headers(ECHO))))
        # Never indexed, so that it stays as large in memory as on the wire.
        field = b"\x00\x01x\x7f\x81\x7f" + b"y" * 16000
        with contextlib.suppress(ConnectionError, TimeoutError):
            for _ in range(1000):
                wire.send(ContinuationFrame(1, field))
        # It need not read them all to say so, and may not wait for their end.
        wire.until_closed()
        assert wire.answers.get(1) is None
    still_serves(service)


def test_empty_continuations_do_not_keep_it_busy(service: Service) -> None:
    with Wire(service.address) as wire:
        wire.send(HeadersFrame(1, b""))
        try:
            for _ in range(200):
                wire.send_bytes(ContinuationFrame(1, b"").serialize() * 100)
        except ConnectionError:
            pass
        still_serves(service)


@pytest.mark.parametrize(
    "preface",
    [
        PREFACE[:-1] + b"X",
        PREFACE + raw(6, 0, 0, bytes(8)),
        PREFACE + raw(4, 1, 0, b""),
        PREFACE + b"GET / HTTP/1.1\r\n\r\n",
        PREFACE.replace(b"2.0", b"2.1"),
    ],
)
def test_a_broken_preface_ends_the_connection(service: Service, preface: bytes) -> None:
    with Wire(service.address, greet=False) as wire:
        wire.send_bytes(preface)
        wire.socket.shutdown(socket.SHUT_WR)
        # What comes back may be an answer in HTTP/1.1, which is no frame.
        with contextlib.suppress(ValueError, OSError):
            wire.until_closed()
    still_serves(service)


@pytest.mark.parametrize(
    "start", [b"", PREFACE[:10], b"GET / HTTP/1.1\r\nhost: x\r\n", b"P", b"\x00"], ids=repr
)
def test_silence_is_not_waited_for(open_service: OpenService, start: bytes) -> None:
    service = open_service(Limits(header_read_seconds_max=0.2))
    with connect(service.address) as client:
        client.sendall(start)
        answer = b""
        try:
            while piece := client.recv(4096):
                answer += piece
        except ConnectionResetError:
            pass
        assert answer == b"" or answer.split()[1] in (b"400", b"408"), "it may say why"
    service.until(lambda edge: edge.counters()["connections_open"] == 0)
    assert service.events.empty()
    with greeted(service.address) as other:
        assert other.unary(ECHO, b"still").data == message(b"still")


def test_a_connection_that_has_spoken_may_be_silent(open_service: OpenService) -> None:
    service = open_service(Limits(header_read_seconds_max=0.2))
    with greeted(service.address) as wire, greeted(service.address) as silent:
        assert wire.unary(ECHO, b"").status == (0, "")
        # Longer than the limit, told by the edge's own clock.
        for _ in range(5):
            stream = wire.call(HELD, message(b""), ("grpc-timeout", "100m"))
            assert wire.answer(stream).status[0] == 4
        assert silent.unary(ECHO, b"").status == (0, "")


def test_data_on_a_closed_stream(service: Service, wire: Wire) -> None:
    stream = wire.call(ECHO, message(b"x"))
    assert wire.answer(stream).status == (0, "")
    wire.send(DataFrame(stream, b"late"))
    try:
        wire.ping()
    except EOFError:
        assert wire.goaway is not None
        assert wire.goaway.error_code in (STREAM_CLOSED, PROTOCOL_ERROR)
    assert service.events.empty()


def test_late_frames_of_a_reset_stream_are_ignored(service: Service, wire: Wire) -> None:
    stream = wire.call(HELD_STREAM, message(b""), end=False)
    call = service.next_event(EdgeEventKind.OPENED).call
    service.next_event(EdgeEventKind.MESSAGE, call)
    service.remote.finish(call, OK)
    assert wire.answer(stream).ended
    wire.ping()
    # The client has not heard of the end yet; what it sends is given back to its window.
    for _ in range(40):
        wire.data(stream, message(bytes(16000)))
    wire.send(WindowUpdateFrame(stream, 1000), RstStreamFrame(stream, CANCEL))
    for number in range(100):
        payload = b"%d" % number * 1000
        assert wire.unary(ECHO, payload).data == message(payload)


def test_more_than_the_window_is_refused(open_service: OpenService) -> None:
    service = open_service(Limits(stream_queued_bytes_max=WINDOW))
    with Wire(service.address) as wire:
        wire.ping()
        stream = wire.open(grpc_headers(HELD_STREAM))
        call = service.next_event(EdgeEventKind.OPENED).call
        # Not polled, so that no window is given back.
        with service.paused(), contextlib.suppress(ConnectionError):
            wire.data(stream, message(bytes(WINDOW * 4)))
        answer = wire.answer(stream)
        code = answer.reset if answer.reset is not None else wire.until_closed()
        assert code in (FLOW_CONTROL_ERROR, None)
        kinds = [service.events.get(timeout=WAIT_SECONDS)]
        while kinds[-1].kind != EdgeEventKind.ENDED:
            kinds.append(service.events.get(timeout=WAIT_SECONDS))
        assert {event.call for event in kinds} == {call}
    still_serves(service)


def test_the_clients_window_is_respected(service: Service) -> None:
    with Wire(service.address, {INITIAL_WINDOW_SIZE: 10}, credit=False) as wire:
        stream = wire.call(ECHO, message(b"x" * 100))
        for allowed in range(10, 105, 5):
            # Data between the pings: without, they would be too many.
            while len(wire.answers[stream].data) < allowed:
                wire.pump()
            wire.ping()
            assert len(wire.answers[stream].data) == allowed
            wire.give_credit(stream, 5)
        answer = wire.answer(stream)
        assert answer.data == message(b"x" * 100)
        assert answer.status == (0, "")


def test_the_connections_window_is_shared(service: Service) -> None:
    with Wire(service.address, {INITIAL_WINDOW_SIZE: 1 << 20}, credit=False) as wire:
        wire.ping()
        streams = [wire.call(ECHO, message(bytes(40_000))) for _ in range(3)]
        while sum(len(wire.answers[stream].data) for stream in streams) < WINDOW:
            wire.pump()
        wire.ping()
        assert sum(len(wire.answers[stream].data) for stream in streams) == WINDOW
        wire.give_credit(0, 1 << 20)
        for stream in streams:
            assert len(wire.answer(stream).data) == 40_005


def test_a_window_that_shrinks_below_zero(service: Service) -> None:
    with Wire(service.address, credit=False) as wire:
        stream = wire.call(HELD_STREAM, b"")
        call = service.next_event(EdgeEventKind.OPENED).call
        service.remote.send([(call, bytes(50_000))])
        while len(wire.answers[stream].data) < 50_005:
            wire.pump()
        wire.send(SettingsFrame(0, {INITIAL_WINDOW_SIZE: 1000}))
        wire.ping()
        service.remote.send([(call, bytes(5))])
        service.remote.finish(call, OK)
        wire.give_credit(stream, 49_000)
        wire.ping()
        assert len(wire.answers[stream].data) == 50_005, "the window is still below zero"
        wire.give_credit(stream, 100)
        assert len(wire.answer(stream).data) == 50_015


def test_small_frames_if_the_client_wants_them(service: Service) -> None:
    with Wire(service.address, {MAX_FRAME_SIZE: 16384}) as wire:
        stream = wire.call(ECHO, message(bytes(60_000)))
        largest = 0
        while not wire.answers[stream].ended:
            before = len(wire.answers[stream].data)
            wire.pump()
            largest = max(largest, len(wire.answers[stream].data) - before)
        assert largest <= 16384


def test_rapid_resets_are_survived(service: Service) -> None:
    with Wire(service.address) as wire:
        wire.ping()
        stopped = threading.Event()

        def read() -> None:
            wire.until_closed()
            stopped.set()

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for number in range(1, 10_000, 2):
                wire.send(
                    wire.headers_frame(number, grpc_headers(HELD_STREAM)),
                    RstStreamFrame(number, CANCEL),
                )
        except ConnectionError:
            # Thrown out, and told why if it still listened.
            assert wire.goaway is None or wire.goaway.error_code == ENHANCE_YOUR_CALM
        still_serves(service)
        with contextlib.suppress(OSError):
            wire.socket.shutdown(socket.SHUT_RDWR)
        reader.join()
        assert stopped.is_set()
    service.until(lambda edge: edge.counters()["calls_open"] == 0)
    # The last ends may be on their way to the loop when the calls have ended already.
    opened: set[int] = set()
    ended: set[int] = set()
    while not service.events.empty() or opened - ended:
        event = service.events.get(timeout=WAIT_SECONDS)
        (opened if event.kind == EdgeEventKind.OPENED else ended).add(event.call)
    assert opened == ended


@pytest.mark.parametrize(
    "frame",
    [PingFrame(0, b"pingpong"), SettingsFrame(0, {INITIAL_WINDOW_SIZE: WINDOW})],
    ids=["pings", "settings"],
)
def test_a_client_that_asks_and_never_reads(
    open_service: OpenService, tmp_path: Path, frame: PingFrame | SettingsFrame
) -> None:
    # The kernel holds less between unix sockets, so that it shows sooner.
    limits = Limits(connection_queued_bytes_max=64 * 1024, ping_seconds_min=0.0)
    service = open_service(limits, f"unix:{tmp_path}/edge.sock")
    with Wire(service.address) as wire:
        wire.open(grpc_headers(HELD_STREAM))
        wire.ping()
        wire.socket.settimeout(1)
        flood = frame.serialize() * 5000
        sent = 0
        with contextlib.suppress(ConnectionError, TimeoutError):
            while sent < FLOOD_BYTES_MAX:
                sent += wire.socket.send(flood)
        assert sent < FLOOD_BYTES_MAX, "answers that nobody reads are not piled up"
        still_serves(service)


def test_bytes_at_random(service: Service) -> None:
    """Seeded noise in place of frames, and frames with flipped bits: nothing falls over."""
    source = random.Random(42)
    with Wire(service.address) as probe:
        good = probe.headers_frame(1, grpc_headers(ECHO_STREAM)).serialize()
    good += DataFrame(1, message(b"abc")).serialize() + PingFrame(0, bytes(8)).serialize()
    for number in range(150):
        noise = bytearray(good) if number % 2 else bytearray(source.randbytes(200))
        for _ in range(3):
            noise[source.randrange(len(noise))] ^= 1 << source.randrange(8)
        with Wire(service.address) as wire:
            try:
                wire.send_bytes(bytes(noise))
                wire.socket.shutdown(socket.SHUT_WR)
                wire.until_closed()
            except (OSError, ValueError):
                pass
    service.until(lambda edge: edge.counters()["connections_open"] == 0)
    service.until(lambda edge: edge.counters()["calls_open"] == 0)
    still_serves(service)
