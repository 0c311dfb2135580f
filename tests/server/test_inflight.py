"""Every answer goes to the front that received its call."""

import json
from typing import Any, cast

import pytest

from kvorum.api.errors import Code
from kvorum.api.pb.etcdserverpb import PutRequest, RangeRequest, WatchCreateRequest, WatchRequest
from kvorum.network.edge.interface import EdgeEventKind
from kvorum.server.http.routes import ROUTES
from kvorum.server.rpc.table import NUMBERS
from tests.server.http.clients import RANGE, WATCH, Client, base64

READ = NUMBERS["/etcdserverpb.KV/Range"]
WATCH_A = WatchRequest(create_request=WatchCreateRequest(key=b"a"))


@pytest.fixture
def client() -> Client:
    return Client()


def test_a_turn_answers_calls_of_both_fronts(client: Client) -> None:
    over_json = client.open(RANGE)
    client.send(over_json, b'{"key": "YQ=="}')
    read = RangeRequest(key=b"a").SerializeToString()
    ended = (EdgeEventKind.HALF_CLOSED, over_json, None)
    client.harness.arrive([(1, READ, read, None)], [ended])
    assert client.edge.replies.keys() == {1} and client.edge.responses.keys() == {over_json}
    client.assert_nothing_is_left()


def test_messages_to_streams_of_both_fronts_keep_their_order(client: Client) -> None:
    harness = client.harness
    first, second = client.watch("a"), harness.open("Watch/Watch")
    second.send(WATCH_A)
    third = client.watch("a")
    harness.edge.sends.clear()
    harness.ask("KV/Put", PutRequest(key=b"a"))
    assert [call for call, _ in harness.edge.sends] == [first, second.call, third]
    for call in (first, third):
        assert client.lines(call)[-1]["result"]["events"][0]["kv"]["key"] == base64("a")
    assert second.received()[-1].events[0].kv.key == b"a"


def test_messages_before_one_that_cannot_be_sent_leave_first(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = ROUTES[WATCH]._replace(encoder=cast(Any, "no encoder"))
    monkeypatch.setitem(ROUTES, WATCH, route)
    harness = client.harness
    stream, watch = harness.open("Watch/Watch"), client.open(WATCH)
    create_json = json.dumps({"create_request": {"key": base64("a")}}).encode()
    events = [
        (EdgeEventKind.MESSAGE, stream.call, WATCH_A.SerializeToString()),
        (EdgeEventKind.MESSAGE, watch, create_json),
    ]
    harness.arrive((), events)
    assert [call for call, _ in harness.edge.sends] == [stream.call, watch]
    assert client.lines(watch)[-1]["error"]["code"] == Code.INTERNAL
    assert stream.status is None and watch not in harness.server.calls.streams
    assert client.edge.finished.keys() == {watch}


def test_the_edge_gets_no_answer_to_a_call_that_its_client_gave_up(client: Client) -> None:
    """The services may answer a call after its deadline: only its front knows that it is over."""
    harness = client.harness
    call = client.open("/v3/maintenance/defragment", grpc_timeout="10m")
    client.send(call, b"{}")
    ended = (EdgeEventKind.HALF_CLOSED, call, None)
    harness.server.turn(harness.now, (), [ended], (), ())
    jobs = harness.server.take_jobs()
    harness.now += 0.02
    harness.server.turn(harness.now, (), [], (), ())
    assert client.answer(call)[0] == 504 and call in harness.server.calls.unary
    harness.server.resume_turn(harness.now, [harness._run(job) for job in jobs])
    harness.settle()
    assert not client.edge.replies
    client.assert_nothing_is_left()
