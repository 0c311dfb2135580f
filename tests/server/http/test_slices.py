"""A long body is read in slices, after what else arrived, and not before its caller is admitted.

What a slice may cost is counted in bytes and values, so nothing here depends on the machine.
"""

import json
import tracemalloc
from collections.abc import Iterator

import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import CloseConnection, Ping, TextMessage

from kvorum.api.pb.etcdserverpb import PutRequest, RangeRequest
from kvorum.network.edge.interface import EdgeEventKind
from kvorum.server.http.bodies import FRAMES_BYTES, FRAMES_FACTOR, SLICE_BYTES, VALUE_BYTES
from kvorum.server.rpc.table import NUMBERS
from tests.server.http.clients import KEEP_ALIVE, PUT, WATCH, Client, Socket, base64
from tests.server.rpc.guarded import Guarded

PUT_NUMBER = NUMBERS["/etcdserverpb.KV/Put"]
VALUES_MAX = SLICE_BYTES // VALUE_BYTES + 1
"""How many values a slice has at most."""
ALIVE = b'{"ID":"1"}'
COUNT = 10_000
SLOW_TURNS_MAX = 50


class Hurried(Client):
    """A client of a server that has time for one slice in each turn."""

    def take_turns(self, until: int) -> Iterator[None]:
        """Let the server take turns until a unary call is answered."""
        self.harness.looks_max = 1
        for _ in range(SLOW_TURNS_MAX):
            yield
            if until in self.edge.replies:
                break
            self.harness.turn()
        self.harness.looks_max = 0
        assert until in self.edge.replies, "a put has to wait for a body"

    def send_hurried(self, call: int, data: bytes) -> None:
        """Let a piece arrive, and take one turn."""
        self.harness.looks_max = 1
        self.harness.turn((), [(EdgeEventKind.MESSAGE, call, data)])

    def put_meanwhile(self) -> int:
        """Put a key over gRPC, as a client beside the body does."""
        put = PutRequest(key=b"bystander").SerializeToString()
        self.harness.turn([(7, PUT_NUMBER, put, None)])
        return 7


@pytest.fixture
def client() -> Hurried:
    return Hurried()


def heard(client: Client) -> int:
    """Return how many messages of streams the services have seen."""
    return sum(client.harness.server.calls.counts.messages_received)


def test_others_are_served_between_the_slices_of_a_stream(client: Hurried) -> None:
    call = client.open(KEEP_ALIVE)
    client.send_hurried(call, ALIVE * COUNT)
    assert 0 < heard(client) <= 2 * VALUES_MAX
    assert call in client.edge.paused
    for _ in client.take_turns(client.put_meanwhile()):
        before = heard(client)
        client.harness.turn()
        assert before < heard(client) <= before + VALUES_MAX
    assert heard(client) < COUNT / 2, "the put was answered when most was read"
    client.harness.settle()
    assert heard(client) == len(client.lines(call)) == COUNT
    assert call not in client.edge.paused
    client.leave(call)
    client.assert_nothing_is_left()


def test_others_are_served_between_the_slices_of_one_message(client: Hurried) -> None:
    call = client.open(PUT)
    body = b'{"stranger":[' + b",".join([b"{}"] * 10 * COUNT) + b'],"key":"YQ=="}'
    client.send(call, body)
    client.harness.looks_max = 1
    client.harness.turn((), [(EdgeEventKind.HALF_CLOSED, call, None)])
    for _ in client.take_turns(client.put_meanwhile()):
        assert call in client.gateway.open
    client.harness.settle()
    assert client.answer(call)[0] == 200
    client.assert_nothing_is_left()


@pytest.mark.parametrize("text", ["{}" * COUNT, "" * COUNT], ids=["values", "nothing"])
def test_others_are_served_between_the_slices_of_a_websocket(client: Hurried, text: str) -> None:
    socket = Socket(client, WATCH)
    connection = Connection(ConnectionType.CLIENT)
    events = [TextMessage(text)] if text else [TextMessage("")] * COUNT
    data = b"".join(connection.send(each) for each in events)
    client.send_hurried(socket.call, data)
    slice_bytes = FRAMES_BYTES + SLICE_BYTES // FRAMES_FACTOR
    found = client.gateway.open[socket.call]
    assert found.body.kept_bytes >= len(data) - 2 * slice_bytes
    assert heard(client) <= 2 * VALUES_MAX
    for _ in client.take_turns(client.put_meanwhile()):
        pass
    client.harness.settle()
    assert not found.body.has_more
    client.leave(socket.call)
    client.assert_nothing_is_left()


def test_a_closed_websocket_is_served_to_its_last_message(client: Hurried) -> None:
    socket = Socket(client, KEEP_ALIVE)
    socket.send(TextMessage(ALIVE.decode() * 1000), Ping(b"?"), CloseConnection(1000))
    socket.received()
    assert heard(client) == 1000
    assert socket.pongs == 1 and socket.closed is not None
    client.assert_nothing_is_left()


def test_long_bodies_take_turns(client: Hurried) -> None:
    calls = [client.open(KEEP_ALIVE) for _ in range(3)]
    for call in calls:
        client.send_hurried(call, ALIVE * COUNT)
    for _ in range(30):
        client.harness.turn()
    client.harness.looks_max = 0
    counts = [len(client.edge.sent[call]) for call in calls]
    assert min(counts) > 0 and max(counts) - min(counts) <= 8 * VALUES_MAX
    for call in calls:
        client.leave(call)
    client.assert_nothing_is_left()


def test_the_decoded_part_of_one_message_at_a_time_takes_memory(client: Hurried) -> None:
    body = b'{"compare":[' + b",".join([b"{}"] * COUNT) + b"]}"
    calls = [client.open("/v3/kv/txn") for _ in range(3)]
    for call in calls:
        client.send(call, body)
    client.harness.looks_max = 1
    for call in calls:
        client.harness.turn((), [(EdgeEventKind.HALF_CLOSED, call, None)])
    ended = [0]
    while len(ended) < 4:
        client.harness.turn()
        done = sum(call in client.edge.responses for call in calls)
        reading = [client.gateway.open[call].body for call in calls if call in client.gateway.open]
        ahead = [each._reading.offset for each in reading if each._reading is not None]
        assert sum(offset > 4 * SLICE_BYTES for offset in ahead) <= 1
        if done > ended[-1]:
            ended.append(done)
    client.harness.looks_max = 0
    assert {client.answer(call)[0] for call in calls} == {400}
    client.assert_nothing_is_left()


def test_a_stream_of_small_values_takes_little_memory(client: Hurried) -> None:
    call = client.open(WATCH)
    data = b"{}" * (10 * COUNT)
    tracemalloc.start()
    client.send(call, data)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert heard(client) == 10 * COUNT
    assert peak_bytes < 4 * len(data)


# The caller comes first.


def test_nothing_is_read_for_a_caller_who_is_not_known_yet() -> None:
    guarded = Guarded()
    client = Hurried(guarded)
    token = guarded.token_to_come(1)
    create = {"create_request": {"key": base64("a")}}
    call = client.open(WATCH, authorization=token)
    client.send(call, json.dumps(create).encode() * 1000)
    client.send(call, json.dumps(create).encode() * 1000)
    assert heard(client) == 1 and call in client.edge.paused
    assert not client.harness.server.is_busy
    guarded.log_in("root")
    assert guarded.log_in("u") == token
    guarded.settle()
    assert heard(client) == len(client.lines(call)) == 2000
    assert call not in client.edge.paused
    client.leave(call)
    client.assert_nothing_is_left()


def test_an_end_waits_for_a_body_that_is_being_read(client: Hurried) -> None:
    call = client.open(PUT)
    client.send(call, b'{"key":"YQ==","stranger":[' + b",".join([b"{}"] * 10 * COUNT) + b"]}")
    client.harness.looks_max = 1
    client.harness.turn((), [(EdgeEventKind.HALF_CLOSED, call, None)])
    client.harness.looks_max = 0
    assert client.harness.server.waiting == 1
    client.harness.end()
    assert client.answer(call)[0] == 200


def test_what_is_read_late_is_whole(client: Hurried) -> None:
    key = "k" * 100_000
    status, _ = client.post(PUT, {"value": base64("v" * 100_000), "key": base64(key)})
    assert status == 200
    found = client.harness.ask("KV/Range", RangeRequest(key=key.encode()))
    assert found.kvs[0].value == b"v" * 100_000
