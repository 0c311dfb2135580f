"""Calls on one connection, with another HTTP/2 as the server, and with garbage."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import pack

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded, StreamReset
from h2.settings import SettingCodes
from hpack import Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.client.grpc.http2 import (
    FRAME_BYTES_MAX,
    PREFACE,
    Http2Connection,
    ProtocolError,
    field_block,
)
from kvorum.client.grpc.wire import MESSAGE_BYTES_MAX, End, Metadata, Wire

OK, UNKNOWN, UNAVAILABLE = 0, 2, 14
STEPS_MAX = 10_000
SIZES = (0, 1, 4, 5, 900, 16_379, 16_380, 70_000)


class Heard:
    """What was told of calls; fails if something is told of one that has ended."""

    def __init__(self) -> None:
        self.messages: dict[int, list[bytes]] = defaultdict(list)
        self.ends: dict[int, End] = {}

    def take_message(self, call: int, message: bytes) -> None:
        assert call not in self.ends
        self.messages[call].append(message)

    def take_end(self, call: int, end: End) -> None:
        assert call not in self.ends
        self.ends[call] = end


def new_wire(heard: Heard) -> Wire:
    return Wire(heard, "localhost:2379", is_secure=False, agent="test")


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


@dataclass(frozen=True)
class Answer:
    """What the server answers to a call."""

    messages: tuple[bytes, ...]
    status: int
    padding: int | None
    piece: int
    """How many bytes go into a frame at most."""
    early: bool
    """Whether it is answered before the whole request came."""


@dataclass
class _Unsent:
    data: bytes
    answer: Answer


@dataclass
class Server:
    """An HTTP/2 server that answers each call as it is told to, as the windows allow."""

    connection: H2Connection
    answers: dict[int, Answer]
    received: dict[int, bytes] = field(default_factory=lambda: defaultdict(bytes))
    fields: dict[int, dict[str, str]] = field(default_factory=dict)
    unsent: dict[int, _Unsent] = field(default_factory=dict)

    def receive(self, data: bytes) -> None:
        for event in self.connection.receive_data(data):
            if isinstance(event, RequestReceived):
                assert event.headers is not None
                found = {name.decode(): value.decode() for name, value in event.headers}
                self.fields[event.stream_id] = found
                if self._answer(event.stream_id).early:
                    self._begin(event.stream_id)
            elif isinstance(event, DataReceived):
                assert event.data is not None
                assert event.flow_controlled_length is not None
                self.received[event.stream_id] += event.data
                self.connection.acknowledge_received_data(
                    event.flow_controlled_length, event.stream_id
                )
            elif isinstance(event, StreamEnded):
                if not self._answer(event.stream_id).early:
                    self._begin(event.stream_id)
            elif isinstance(event, StreamReset):
                self.unsent.pop(event.stream_id, None)
        self._send()

    def _answer(self, stream: int) -> Answer:
        return self.answers[int(self.fields[stream]["call"])]

    def _begin(self, stream: int) -> None:
        answer = self._answer(stream)
        if not answer.messages and answer.status:
            self._end(stream, answer, ((":status", "200"),))
            return
        self.connection.send_headers(stream, [(":status", "200"), ("x", "y")])
        self.unsent[stream] = _Unsent(b"".join(map(framed, answer.messages)), answer)

    def _send(self) -> None:
        for stream, unsent in list(self.unsent.items()):
            answer, connection = unsent.answer, self.connection
            padding = 0 if answer.padding is None else answer.padding + 1
            while unsent.data:
                room = connection.local_flow_control_window(stream) - padding
                size = min(answer.piece, room, connection.max_outbound_frame_size - padding)
                if size <= 0:
                    break
                connection.send_data(stream, unsent.data[:size], pad_length=answer.padding)
                unsent.data = unsent.data[size:]
            if not unsent.data:
                del self.unsent[stream]
                self._end(stream, answer, ())

    def _end(self, stream: int, answer: Answer, first: tuple[tuple[str, str], ...]) -> None:
        fields = [*first, ("grpc-status", str(answer.status)), ("grpc-message", "caf%C3%A9 100%25")]
        self.connection.send_headers(stream, fields, end_stream=True)


def frames_of(sent: bytes) -> Iterator[bytes]:
    """Return each frame by itself: this server takes longer ones only from the next piece on."""
    at = len(PREFACE) if sent.startswith(PREFACE) else 0
    yield sent[:at]
    while at < len(sent):
        size = 9 + int.from_bytes(sent[at : at + 3], "big")
        yield sent[at : at + size]
        at += size


ANSWERS = st.builds(
    Answer,
    messages=st.lists(
        st.sampled_from(SIZES).map(lambda size: (b"answer" * (size // 6 + 1))[:size]), max_size=3
    ).map(tuple),
    status=st.sampled_from([OK, 5, 14]),
    padding=st.sampled_from([None, None, 0, 1, 255]),
    piece=st.sampled_from([1 << 20, 16_384, 4000]),
    early=st.booleans(),
)


@settings(max_examples=40)
@given(
    plans=st.lists(st.tuples(st.sampled_from(SIZES), ANSWERS), min_size=1, max_size=4),
    window=st.sampled_from([0, 1, 100, 65_535, 1 << 20]),
    frame=st.sampled_from([16_384, 65_536]),
    streams=st.sampled_from([1, 2, 100]),
    greets_first=st.booleans(),
    data=st.data(),
)
def test_every_answer_arrives_whole_however_the_bytes_are_cut(
    plans: list[tuple[int, Answer]],
    window: int,
    frame: int,
    streams: int,
    greets_first: bool,
    data: st.DataObject,
) -> None:
    heard = Heard()
    wire = new_wire(heard)
    connection = H2Connection(H2Configuration(client_side=False, header_encoding=None))
    connection.initiate_connection()
    connection.update_settings(
        {
            SettingCodes.INITIAL_WINDOW_SIZE: window,
            SettingCodes.MAX_FRAME_SIZE: frame,
            SettingCodes.MAX_CONCURRENT_STREAMS: streams,
        }
    )
    if window < 100:
        # Next to nothing may be sent at first; the window grows later.
        connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 70_000})
    server = Server(connection, {number: answer for number, (_, answer) in enumerate(plans)})
    requests = {number: b"q" * size for number, (size, _) in enumerate(plans)}
    if greets_first:
        # The server's own settings come before the first call.
        wire.receive(connection.data_to_send())
    for number, request in requests.items():
        metadata: Metadata = (("call", str(number)), ("long", "x" * (number * 9_000)))
        wire.start(number, "/s/M", metadata, request, ends=True)
    sizes = data.draw(
        st.lists(st.sampled_from([300, 4000, 70_000]), min_size=1, max_size=4), label="cuts"
    )
    for step in range(STEPS_MAX):
        sent = wire.connection.take_output()
        size = sizes[step % len(sizes)]
        for each in frames_of(sent):
            for at in range(0, len(each), size):
                server.receive(each[at : at + size])
        answered = connection.data_to_send()
        for at in range(0, len(answered), size):
            wire.receive(answered[at : at + size])
        if not sent and not answered:
            break
    assert heard.ends.keys() == requests.keys()
    assert (wire.calls_open, wire.connection.open_count) == (0, 0)
    for number, (_, answer) in enumerate(plans):
        assert heard.messages[number] == list(answer.messages)
        assert heard.ends[number] == End(answer.status, "café 100%")
    for stream, fields in server.fields.items():
        number = int(fields["call"])
        assert fields["long"] == "x" * (number * 9_000)
        if not server.answers[number].early:
            assert server.received[stream] == framed(requests[number])


# What no server sends, or only a bad one.


def frame_of(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


STREAMS = st.sampled_from([0, 1, 3, 5, 7, 9, 2, 0x7FFF_FFFF])
FIELDS = st.lists(
    st.tuples(
        st.sampled_from([":status", "grpc-status", "grpc-message", "x"]),
        st.sampled_from(["200", "0", "14", "9" * 5000, "-1", "%zz%ff", "²"]),
    ),
    max_size=4,
)
PAYLOADS = st.one_of(
    st.binary(max_size=40),
    FIELDS.map(lambda fields: field_block((n, v) for n, v in fields)),
    FIELDS.map(lambda fields: Encoder().encode([(n, v.encode()) for n, v in fields])),
    st.integers(0, 0xFFFF_FFFF).map(lambda number: pack(">I", number)),
    st.tuples(st.integers(0, 8), st.integers(0, 0xFFFF_FFFF)).map(lambda s: pack(">HI", *s)),
    st.binary(max_size=40).map(framed),
    st.tuples(st.integers(0, 1), st.integers(0, 0xFFFF_FFFF), st.binary(max_size=9)).map(
        lambda m: pack(">BI", m[0], m[1]) + m[2]
    ),
)
FRAMES = st.builds(frame_of, st.integers(0, 11), st.integers(0, 255), STREAMS, PAYLOADS)


@given(st.lists(st.one_of(FRAMES, FRAMES, FRAMES, st.binary(max_size=60)), max_size=30))
def test_whatever_a_server_sends_is_taken_or_refused(pieces: list[bytes]) -> None:
    heard = Heard()
    wire = new_wire(heard)
    for call in range(4):
        wire.start(call, "/s/M", (), b"x", ends=call % 2 == 0)
    try:
        for piece in pieces:
            wire.receive(piece)
    except ProtocolError:
        pass
    wire.cancel(0)
    wire.lose("the connection is lost")
    assert heard.ends.keys() | {0} == {0, 1, 2, 3}
    assert wire.calls_open == 0


@given(st.lists(FRAMES, max_size=20), st.integers(1, 30))
def test_what_is_taken_does_not_depend_on_how_it_is_cut(frames: list[bytes], size: int) -> None:
    def told(pieces: list[bytes]) -> tuple[dict[int, list[bytes]], dict[int, End], str]:
        heard = Heard()
        wire = new_wire(heard)
        for call in range(4):
            wire.start(call, "/s/M", (), b"x", ends=True)
        problem = ""
        try:
            for piece in pieces:
                wire.receive(piece)
        except ProtocolError as error:
            problem = str(error)
        return heard.messages, heard.ends, problem

    # What stood before a violation in the same piece need not be told, so frames come one by one.
    pieces = [each[at : at + size] for each in frames for at in range(0, len(each), size)]
    assert told(pieces) == told(frames)


def test_a_frame_and_a_header_block_have_a_longest() -> None:
    connection = Http2Connection()
    connection.receive(bytes(3) + b"\x04" + bytes(5))
    with pytest.raises(ProtocolError, match="frame of"):
        connection.receive(pack(">IBI", (FRAME_BYTES_MAX + 1) << 8, 0, 1))
    connection = Http2Connection()
    number = connection.open(field_block(()), b"", ends=True)
    connection.receive(frame_of(1, 0, number, b""))
    with pytest.raises(ProtocolError, match="header block of more"):
        connection.receive(frame_of(9, 0, number, b"\0" * 16_384) * 5)


def test_a_message_has_a_longest() -> None:
    wire = new_wire(Heard())
    wire.start(1, "/s/M", (), b"", ends=True)
    head = b"\0" + (MESSAGE_BYTES_MAX + 1).to_bytes(4, "big")
    with pytest.raises(ProtocolError, match="a message of"):
        wire.receive(frame_of(0, 0, 1, head))


# A server that goes away.


@given(st.integers(1, 6), st.integers(0, 7), st.integers(1, 4))
def test_calls_that_a_leaving_server_did_not_take_are_known_to_be_unprocessed(
    count: int, taken: int, streams_max: int
) -> None:
    heard = Heard()
    wire = new_wire(heard)
    wire.receive(frame_of(4, 0, 0, pack(">HI", 3, streams_max)))
    for call in range(count):
        wire.start(call, "/s/M", (), b"x", ends=True)
    last = 2 * taken - 1 if taken else 0
    assert wire.connection.go_away_code is None
    wire.receive(frame_of(7, 0, 0, pack(">II", last, 11)))
    assert wire.connection.go_away_code == 11
    begun = min(count, streams_max)
    assert heard.ends.keys() == set(range(min(taken, begun), count))
    assert all(end.is_unprocessed and end.code == UNAVAILABLE for end in heard.ends.values())
    wire.start(count, "/s/M", (), b"x", ends=True)
    assert heard.ends[count].is_unprocessed
    wire.lose("the connection is lost")
    assert {call for call, end in heard.ends.items() if not end.is_unprocessed} == set(
        range(min(taken, begun))
    )


def test_a_call_that_the_server_refused_is_unprocessed_and_one_that_it_reset_is_not() -> None:
    heard = Heard()
    wire = new_wire(heard)
    wire.start(1, "/s/M", (), b"", ends=True)
    wire.start(2, "/s/M", (), b"", ends=True)
    wire.receive(frame_of(3, 0, 1, pack(">I", 7)) + frame_of(3, 0, 3, pack(">I", 2)))
    assert [heard.ends[call].is_unprocessed for call in (1, 2)] == [True, False]


def test_an_end_in_the_middle_of_a_message_is_no_answer() -> None:
    heard = Heard()
    wire = new_wire(heard)
    wire.start(1, "/s/M", (), b"", ends=True)
    trailers = field_block([("grpc-status", "0")])
    wire.receive(frame_of(0, 0, 1, framed(b"whole")[:7]) + frame_of(1, 5, 1, trailers))
    assert heard.messages == {}
    assert heard.ends[1].code != OK


def test_a_port_that_speaks_something_else_is_named_as_such() -> None:
    heard = Heard()
    wire = new_wire(heard)
    wire.start(1, "/s/M", (), b"", ends=True)
    wire.receive(frame_of(1, 5, 1, field_block([(":status", "404")])))
    assert "is this a gRPC port" in heard.ends[1].text


def test_a_connection_begins_with_the_preface() -> None:
    assert Http2Connection().output.startswith(PREFACE)


def test_an_empty_last_piece_takes_nothing_of_a_window_below_zero() -> None:
    connection = Http2Connection()
    number = connection.open(field_block(()), b"x" * 60_000, ends=False)
    connection.receive(frame_of(4, 0, 0, pack(">HI", 4, 10)))
    connection.send(number, b"", ends=True)
    connection.output.clear()
    other = connection.open(field_block(()), b"y" * 20, ends=True)
    # The connection has 5,535 bytes of room, this stream 10.
    connection.receive(frame_of(8, 0, other, pack(">I", 10_000)))
    assert connection.output.endswith(b"y" * 10)
