"""The gateway between an edge and the services: bodies, streams, limits, deadlines, ends."""

import itertools
import json
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage

from kvorum.api.descriptors import methods, option
from kvorum.api.pb.etcdserverpb import RangeRequest
from kvorum.network.edge.interface import EdgeEventKind
from kvorum.server.http import calls as gateway_calls
from kvorum.server.http.routes import ROUTES
from kvorum.server.rpc.table import RPCS
from tests.server.http.clients import (
    KEEP_ALIVE,
    LOCK,
    PUT,
    RANGE,
    WATCH,
    Client,
    Socket,
    base64,
)

LIMIT = 4096


@pytest.fixture
def client() -> Client:
    return Client()


def test_every_rpc_with_a_binding_has_its_routes() -> None:
    bound = {
        path: method.path
        for method in methods()
        for rule in [option(method.descriptor, "google.api.http")]
        for path in [rule.post, *(more.post for more in rule.additional_bindings)]
        if path
    }
    assert {path: RPCS[route.number].path for path, route in ROUTES.items()} == bound
    assert len(bound) == 51


def test_a_body_may_come_in_any_pieces(client: Client) -> None:
    body = b' {"key": "Zm9v", "value": "YmFy"} trailing'
    version = itertools.count(1)

    @given(st.sets(st.integers(1, len(body) - 1)).map(sorted))
    @settings(max_examples=60, deadline=None)
    def check(cuts: list[int]) -> None:
        call = client.open(PUT)
        for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
            client.send(call, body[start:end])
            assert call not in client.edge.responses, "answered before the body has ended"
        client.end(call)
        assert client.answer(call)[0] == 200
        found = client.harness.ask("KV/Range", RangeRequest(key=b"foo"))
        assert (found.kvs[0].value, found.kvs[0].version) == (b"bar", next(version))
        client.assert_nothing_is_left()

    check()


def test_a_stream_goes_both_ways_while_its_body_is_open(client: Client) -> None:
    call = client.watch("a")
    assert client.lines(call)[0]["result"]["created"] is True
    client.put("a", "1")
    client.send(call, b'{"create_request": {"key": "Yg==", "watch_id": ')
    client.put("b", "lost")
    client.send(call, b'"7"}}')
    client.put("b", "2")
    client.end(call)
    client.put("a", "3")
    events = [line["result"]["events"] for line in client.lines(call) if "events" in line["result"]]
    assert [event[0]["kv"]["value"] for event in events] == [*map(base64, "123")]
    client.leave(call)
    client.assert_nothing_is_left()


def test_broken_json_ends_the_sending_side_of_a_stream_alone(client: Client) -> None:
    call = client.watch("a")
    client.send(call, b"}{")
    client.send(call, b'{"create_request": {"key": "Yg=="}}')
    client.put("b")
    client.put("a")
    assert len(client.lines(call)) == 2
    call = client.open(KEEP_ALIVE)
    client.send(call, b'{"ID": "1"} nonsense {"ID": "2"}')
    assert [line["result"]["ID"] for line in client.lines(call)] == ["1"]
    assert call in client.edge.finished


def test_equal_messages_are_the_same_line_on_every_stream(client: Client) -> None:
    calls = [client.watch("a") for _ in range(3)]
    other = client.watch("b")
    client.put("a", "1")
    client.put("b", "2")
    pieces = [client.edge.sent[call] for call in calls]
    assert pieces[0][1] is pieces[1][1] is pieces[2][1]
    assert client.lines(other)[1]["result"]["events"][0]["kv"]["value"] == base64("2")


def test_whoever_hangs_up_cancels_the_call(client: Client) -> None:
    assert client.post(LOCK, {"name": "bA=="})[0] == 200
    waiting = client.open(LOCK)
    client.send(waiting, b'{"name": "bA=="}')
    client.end(waiting)
    unfinished, stream = client.open(PUT), client.watch("a")
    client.send(unfinished, b'{"key":')
    assert len(client.gateway.open) == 3
    for call in (waiting, unfinished, stream):
        client.leave(call)
    client.assert_nothing_is_left()
    assert not {waiting, unfinished} & set(client.edge.responses)


def test_what_does_not_wait_for_others_goes_on_without_its_client(client: Client) -> None:
    """As over gRPC: half of a defragmentation would be in the way of the next one."""
    harness = client.harness
    call = client.open("/v3/maintenance/defragment")
    client.send(call, b"{}")
    # The job of the defragmentation is begun, and its end not taken.
    harness.server.turn(harness.now, (), [(EdgeEventKind.HALF_CLOSED, call, None)], (), ())
    jobs = harness.server.take_jobs()
    harness.server.turn(harness.now, (), [(EdgeEventKind.ENDED, call, None)], (), ())
    assert harness.member.state.backend.is_defragmenting and call not in client.gateway.open
    harness.server.resume_turn(harness.now, [harness._run(job) for job in jobs])
    harness.settle()
    assert not harness.member.state.backend.is_defragmenting and call not in client.edge.replies
    assert client.post("/v3/maintenance/defragment", {})[0] == 200
    client.assert_nothing_is_left()


@pytest.mark.parametrize("path", [PUT, WATCH])
@pytest.mark.parametrize("timeout", ["-1S", "1n"])
def test_a_call_without_time_does_not_begin(client: Client, path: str, timeout: str) -> None:
    call = client.open(path, grpc_timeout=timeout)
    client.send(call, b'{"key": "YQ=="}')
    client.end(call)
    assert client.answer(call) == (504, {"code": 4, "message": "context deadline exceeded"})
    assert client.harness.ask("KV/Range", RangeRequest(key=b"a")).count == 0
    client.assert_nothing_is_left()


def test_a_deadline_ends_what_takes_longer(client: Client) -> None:
    assert client.post(LOCK, {"name": "bA=="})[0] == 200
    lock = client.open(LOCK, grpc_timeout="100m")
    client.send(lock, b'{"name": "bA=="}')
    client.end(lock)
    unfinished = client.open(PUT, grpc_timeout="100m")
    silent, watch = client.open(WATCH, grpc_timeout="100m"), client.watch("a", grpc_timeout="50m")
    client.harness.pass_time(0.2)
    expected = {"code": 4, "message": "context deadline exceeded"}
    assert client.answer(lock) == client.answer(unfinished) == (504, expected)
    assert client.edge.responses[silent][0] == 504
    assert client.lines(silent) == [{"error": expected}]
    assert client.edge.responses[watch][0] == 200
    assert client.lines(watch)[-1] == {"error": expected}
    client.assert_nothing_is_left()


def test_a_call_within_its_deadline_is_answered_and_its_deadline_forgotten(client: Client) -> None:
    assert client.post(RANGE, {"key": "Zm9v"}, grpc_timeout="1S")[0] == 200
    client.harness.pass_time(2.0)
    client.assert_nothing_is_left()


@pytest.mark.parametrize("bad", ["1", "S", "1 S", "1s", "x", "99999999999999999999S", "1" * 5000])
def test_a_bad_deadline_is_refused(client: Client, bad: str) -> None:
    call = client.open(RANGE, grpc_timeout=bad)
    assert client.answer(call) == (400, {"code": 3, "message": f"invalid grpc-timeout: {bad}"})


def test_a_body_that_is_too_long_is_refused_before_it_ends() -> None:
    client = Client(message_bytes_max=LIMIT)
    call = client.open(PUT)
    for _ in range(100):
        client.send(call, b" " * LIMIT)
        if call in client.edge.responses:
            break
    status, answer = client.answer(call)
    assert (status, answer["code"]) == (429, 8)
    client.send(call, b" " * LIMIT)
    client.end(call)
    client.assert_nothing_is_left()


def test_a_message_that_is_too_long_gets_the_words_of_grpc() -> None:
    client = Client(message_bytes_max=LIMIT)
    status, answer = client.post(PUT, {"key": "YQ==", "value": base64("x" * LIMIT)})
    text = f"grpc: received message larger than max ({LIMIT + 6} vs. {LIMIT})"
    assert (status, answer) == (429, {"code": 8, "message": text})
    watch = client.open(WATCH)
    client.send(watch, json.dumps({"create_request": {"key": base64("x" * LIMIT)}}).encode())
    assert client.lines(watch)[-1]["error"]["code"] == 8
    client.assert_nothing_is_left()


def test_all_bodies_together_are_bounded(client: Client) -> None:
    piece = b" " * LIMIT
    room = gateway_calls.BODIES_BYTES_MAX // len(piece)
    body = client.gateway._body_bytes_max // len(piece)
    calls = []
    for _ in range(room // body + 1):
        calls.append(client.open(PUT))
        client.send(calls[-1], piece * body)
    assert client.answer(calls[-1])[1]["code"] == 8
    for call in calls[:-1]:
        client.leave(call)
    client.put("a")
    client.assert_nothing_is_left()


def test_an_unforeseen_error_ends_its_call_alone(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slip(*_: object) -> bytes:
        raise KeyError("unforeseen")

    route = ROUTES[RANGE]
    monkeypatch.setitem(ROUTES, "/v3/bad/in", route._replace(decoder=cast(Any, Slips(slip))))
    monkeypatch.setitem(ROUTES, "/v3/bad/out", route._replace(encoder=cast(Any, Slips(slip))))
    monkeypatch.setitem(ROUTES, WATCH, ROUTES[WATCH]._replace(encoder=cast(Any, Slips(slip))))
    for path in ("/v3/bad/in", "/v3/bad/out"):
        status, answer = client.post(path, {"key": "YQ=="})
        assert (status, answer["code"]) == (500, 13)
    watch = client.watch("a")
    assert client.lines(watch)[0]["error"]["code"] == 13
    assert client.harness.member.boundary.counts == {"http": 3}
    client.put("a")
    assert not client.gateway.open and not client.harness.services._open


class Slips:
    """A decoder or an encoder with a mistake."""

    def __init__(self, slip: Any) -> None:
        self.decode = self.encode = self.encode_line = slip


def test_the_end_of_the_server_ends_streams_with_a_line(client: Client) -> None:
    watch, lone = client.watch("a"), client.open(WATCH)
    client.harness.end()
    expected = {"error": {"code": 14, "message": "etcdserver: server stopped"}}
    assert client.lines(watch)[-1] == client.lines(lone)[-1] == expected
    assert client.edge.responses[lone][0] == 503
    client.assert_nothing_is_left()


# WebSocket.


def test_a_watch_over_a_websocket(client: Client) -> None:
    socket = Socket(client, WATCH)
    socket.send(TextMessage('{"create_request":'), BytesMessage(b'{"key":"YQ=="}}'))
    client.put("a", "1")
    created, event = socket.received()
    assert created["result"]["created"] is True
    assert event["result"]["events"][0]["kv"]["value"] == base64("1")
    socket.send(Ping(b"?"))
    assert socket.received() == [] and socket.pongs == 1
    socket.send(CloseConnection(1000))
    socket.received()
    assert socket.closed is not None and socket.closed.code == 1000
    assert socket.call in client.edge.finished
    client.assert_nothing_is_left()


def test_a_unary_call_over_a_websocket_is_answered_after_its_first_value(client: Client) -> None:
    socket = Socket(client, PUT)
    socket.send(TextMessage('{"key":"YQ==",'))
    assert socket.received() == []
    socket.send(TextMessage('"value":"Yg=="} {"key":"ignored'))
    assert "header" in socket.received()[0]
    assert socket.closed is not None and socket.closed.code == 1000
    bad = Socket(client, PUT)
    bad.send(TextMessage("no"))
    assert bad.received()[0]["code"] == 3
    client.assert_nothing_is_left()


def test_who_pings_and_reads_nothing_gets_no_more_answers(client: Client) -> None:
    socket = Socket(client, WATCH)
    client.edge.pending[socket.call] = 0
    for _ in range(2000):
        socket.send(Ping(b"x" * 125))
    sent = sum(map(len, client.edge.sent[socket.call]))
    assert 64 * 1024 <= sent < 65 * 1024


def test_any_bytes_end_a_websocket_at_the_worst(client: Client) -> None:
    @given(st.lists(st.binary(max_size=40), max_size=20))
    def check(pieces: list[bytes]) -> None:
        socket = Socket(client, WATCH)
        for piece in pieces:
            client.send(socket.call, piece)
        if socket.call in client.gateway.open:
            client.leave(socket.call)
        client.assert_nothing_is_left()

    check()


@pytest.mark.long
def test_unfinished_messages_of_websockets_count_as_bodies(client: Client) -> None:
    size = client.gateway._body_bytes_max // 2
    sockets = [Socket(client, WATCH) for _ in range(gateway_calls.BODIES_BYTES_MAX // size + 1)]
    for socket in sockets:
        socket.send(TextMessage(" " * size, message_finished=False))
    assert sockets[-1].received()[0]["error"]["code"] == 8
    for socket in sockets[:-1]:
        client.leave(socket.call)
    client.assert_nothing_is_left()


def test_a_message_of_a_websocket_is_bounded() -> None:
    client = Client(message_bytes_max=LIMIT)
    socket = Socket(client, WATCH)
    for _ in range(100):
        socket.send(TextMessage(" " * LIMIT, message_finished=False))
        if socket.call in client.edge.finished:
            break
    socket.received()
    assert socket.closed is not None and socket.closed.code == 1009
    client.assert_nothing_is_left()
