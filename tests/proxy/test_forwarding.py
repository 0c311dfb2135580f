"""What a proxy passes on: calls, their ends, their clients' departures; and its own end."""

import json
from typing import Any

import pytest

from kvorum.api import errors
from kvorum.api.errors import Code, Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.client.endpoints import parse_endpoint
from kvorum.network.edge.interface import EdgeEventKind
from kvorum.network.edge.relay import RelayRules
from kvorum.network.edge.upstream import (
    Metadata,
    Unary,
    UpstreamEvent,
    UpstreamEventKind,
    UpstreamTls,
)
from kvorum.proxy.endpoints import LINGER_SECONDS
from kvorum.proxy.proxy import Proxy
from kvorum.proxy.routes import AGE_SECONDS, HELD_SECONDS_MAX, OWN_FIRST, RESENDS_MAX
from kvorum.proxy.settings import ProxySettings
from kvorum.server.rpc.table import NUMBERS
from tests.proxy.standing import Logger, Standing
from tests.server.seams import RecordingEdge

STATUS = rpcs.STATUS.path


class _Script:
    """An upstream that does nothing by itself."""

    def __init__(self) -> None:
        self.connecting: list[int] = []
        self.addresses: list[tuple[str, str, UpstreamTls | None]] = []
        self.calls: list[Unary] = []
        self.opened: list[tuple[int, str, Metadata]] = []
        self.sent: list[tuple[int, bytes]] = []
        self.cancelled: list[int] = []
        self.paused: list[int] = []
        self.disconnected: list[int] = []

    def relay(self, rules: RelayRules) -> None:
        pass

    def connect(self, endpoint: int, address: str, authority: str, tls: Any) -> None:
        self.connecting.append(endpoint)
        self.addresses.append((address, authority, tls))

    def call(self, batch: Any) -> None:
        self.calls += batch

    def open(self, call: int, _endpoint: int, path: str, metadata: Metadata) -> None:
        self.opened.append((call, path, metadata))

    def send(self, batch: Any) -> None:
        self.sent += batch

    def cancel(self, call: int) -> None:
        self.cancelled.append(call)

    def pause(self, call: int) -> None:
        self.paused.append(call)

    def resume(self, call: int) -> None:
        self.paused.remove(call)

    def half_close(self, call: int) -> None:
        pass

    def disconnect(self, endpoint: int) -> None:
        self.disconnected.append(endpoint)


class _Proxied:
    """A proxy whose members are told what to do."""

    def __init__(self, *endpoints: str, **settings: Any) -> None:
        self.edge = RecordingEdge()
        self.upstream = _Script()
        self.now = 1.0
        addresses = tuple(map(parse_endpoint, endpoints or ("127.0.0.1:1", "127.0.0.1:2")))
        self.proxy = Proxy(
            self.edge,
            self.upstream,  # type: ignore[arg-type]
            ProxySettings(endpoints=addresses, **settings),
            lambda _: 0,
            Logger(),
        )
        self.turn()

    def turn(self, *events: UpstreamEvent, requests: Any = (), happened: Any = ()) -> None:
        self.proxy.turn(self.now, requests, list(happened), events)

    def connect(self) -> None:
        """Let all connections be made that are being made."""
        self.turn(*((UpstreamEventKind.CONNECTED, each, None) for each in self.upstream.connecting))
        self.upstream.connecting.clear()

    def request(self, call: int, metadata: Any = None, message: bytes = b"m") -> None:
        self.turn(requests=[(call, NUMBERS[STATUS], message, metadata)])

    def end(self, call: int, code: Code, text: str = "", unseen: bool = False) -> None:
        self.turn((UpstreamEventKind.ENDED, call, (int(code), text, unseen)))


def test_calls_pass_as_they_come_to_members_in_turn() -> None:
    proxied = _Proxied()
    first, second = proxied.upstream.connecting
    proxied.connect()
    metadata = {"token": b"t", "hasleader": b"true"}
    for call in (1, 2, 3):
        proxied.request(call, metadata)
    assert [unary[:2] for unary in proxied.upstream.calls] == [(1, first), (2, second), (3, first)]
    assert {unary[2:4] for unary in proxied.upstream.calls} == {(STATUS, b"m")}
    assert all(dict(unary[4]) == metadata for unary in proxied.upstream.calls)
    proxied.turn(*((UpstreamEventKind.ANSWERED, call, b"a") for call in (2, 1, 3)))
    assert proxied.edge.replies == {2: b"a", 1: b"a", 3: b"a"}
    assert proxied.proxy.routes.bytes_in_flight == 0


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
def test_ends_keep_their_codes_and_texts(code: Code) -> None:
    proxied = _Proxied()
    proxied.connect()
    proxied.request(1)
    proxied.end(1, code, "why")
    assert proxied.edge.replies == {1: Status(code, "why")}


def test_what_no_server_has_looked_at_goes_to_another() -> None:
    proxied = _Proxied()
    proxied.connect()
    proxied.request(1)
    for attempt in range(RESENDS_MAX):
        proxied.end(proxied.upstream.calls[attempt][0], Code.UNAVAILABLE, "gone", unseen=True)
    calls = proxied.upstream.calls
    assert len({unary[0] for unary in calls}) == len(calls) == RESENDS_MAX + 1
    assert len({unary[1] for unary in calls}) == 2
    proxied.turn((UpstreamEventKind.ANSWERED, calls[-1][0], b"a"))
    assert proxied.edge.replies == {1: b"a"}


def test_what_a_server_may_have_looked_at_is_not_made_again() -> None:
    proxied = _Proxied()
    proxied.connect()
    proxied.request(1)
    proxied.end(1, Code.UNAVAILABLE, "lost")
    assert proxied.edge.replies == {1: Status(Code.UNAVAILABLE, "lost")}
    assert len(proxied.upstream.calls) == 1


def test_calls_wait_for_a_connection_but_not_for_ever() -> None:
    proxied = _Proxied()
    proxied.request(1)
    assert not proxied.upstream.calls
    proxied.connect()
    assert [unary[0] for unary in proxied.upstream.calls] == [1]
    waiting = _Proxied()
    waiting.request(1)
    assert waiting.edge.waiting == {1}
    waiting.now += HELD_SECONDS_MAX
    waiting.turn()
    answer = waiting.edge.replies[1]
    assert isinstance(answer, Status)
    assert answer.code is Code.UNAVAILABLE
    assert waiting.proxy.routes.bytes_in_flight == 0


def test_a_client_that_goes_takes_a_long_call_with_it() -> None:
    proxied = _Proxied()
    proxied.connect()
    proxied.request(1)
    for _ in range(2):
        assert not proxied.edge.waiting
        assert proxied.proxy.wake_at(proxied.now) <= proxied.now + AGE_SECONDS
        proxied.now += AGE_SECONDS
        proxied.turn()
    assert proxied.edge.waiting == {1}
    proxied.turn(happened=[(EdgeEventKind.ENDED, 1, None)])
    assert proxied.upstream.cancelled == [1]
    assert proxied.proxy.routes.calls_in_flight == 0


def test_members_that_are_lost_are_connected_to_again() -> None:
    proxied = _Proxied()
    first, second = proxied.upstream.connecting
    proxied.connect()
    proxied.turn((UpstreamEventKind.DISCONNECTED, first, "reset"))
    proxied.request(1)
    proxied.request(2)
    assert {unary[1] for unary in proxied.upstream.calls} == {second}
    proxied.now = proxied.proxy.wake_at(proxied.now)
    proxied.turn()
    proxied.now = proxied.proxy.wake_at(proxied.now)
    proxied.turn()
    assert len(proxied.upstream.connecting) == 1
    assert proxied.upstream.connecting[0] not in (first, second)


def test_requests_that_are_too_large_are_refused() -> None:
    proxied = _Proxied(send_bytes_max=10)
    proxied.connect()
    proxied.request(1, message=b"m" * 11)
    proxied.request(2, message=b"m" * 10)
    text = "trying to send message larger than max (11 vs. 10)"
    assert proxied.edge.replies == {1: Status(Code.RESOURCE_EXHAUSTED, text)}
    assert [unary[0] for unary in proxied.upstream.calls] == [2]


def test_too_many_calls_in_flight_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvorum.proxy.routes.CALLS_IN_FLIGHT_MAX", 2)
    proxied = _Proxied()
    proxied.connect()
    for call in (1, 2, 3):
        proxied.request(call)
    assert proxied.edge.replies == {3: errors.REQUEST_TOO_MANY_REQUESTS}


def test_tls_is_spoken_to_those_that_are_written_so() -> None:
    tls = UpstreamTls(server_name="", ca_file="ca", cert_file="cert")
    proxied = _Proxied("http://a:1", "https://b:2", "c:3", "unix:///s", upstream_tls=tls)
    shown = [(each[0], each[2] and each[2].server_name) for each in proxied.upstream.addresses]
    assert shown == [("a:1", None), ("b:2", "b"), ("c:3", "c"), ("unix:/s", "localhost")]


def test_a_slow_client_of_a_stream_holds_its_member_back() -> None:
    proxied = _Proxied(cache_bytes_max=0)
    proxied.connect()
    snapshot = NUMBERS[rpcs.SNAPSHOT.path]
    metadata = {"token": b"t"}
    for call in (5, 6):
        proxied.turn(happened=[(EdgeEventKind.OPENED, call, (snapshot, metadata))])
    assert [(path, dict(sent)) for _, path, sent in proxied.upstream.opened] == [
        (rpcs.SNAPSHOT.path, metadata)
    ] * 2
    number = proxied.upstream.opened[0][0]
    proxied.edge.pending[5] = 0
    proxied.turn((UpstreamEventKind.MESSAGE, number, b"x" * 100_000))
    assert proxied.upstream.paused == [number]
    proxied.edge.pending[5] = 0
    proxied.turn(happened=[(EdgeEventKind.WRITABLE, 5, None)])
    assert proxied.upstream.paused == []
    proxied.end(number, Code.DATA_LOSS, "why")
    assert proxied.edge.finished == {5: Status(Code.DATA_LOSS, "why")}
    proxied.turn(happened=[(EdgeEventKind.ENDED, 6, None)])
    assert proxied.upstream.cancelled == [proxied.upstream.opened[1][0]]


def test_an_unforeseen_error_ends_one_call() -> None:
    proxied = _Proxied()
    proxied.connect()

    def fail(*_: object) -> None:
        raise RuntimeError("unforeseen")

    proxied.proxy._handlers[NUMBERS[rpcs.HASH.path]] = fail
    requests = [(1, NUMBERS[rpcs.HASH.path], b"", None), (2, NUMBERS[STATUS], b"", None)]
    proxied.turn(requests=requests)
    assert proxied.edge.replies == {1: errors.INTERNAL}
    assert [unary[0] for unary in proxied.upstream.calls] == [2]


def test_a_member_that_lags_behind_a_write_is_not_believed() -> None:
    proxied = _Proxied()
    proxied.connect()
    put, read = NUMBERS[rpcs.PUT.path], NUMBERS[rpcs.RANGE.path]
    written = pb.PutResponse(header=pb.ResponseHeader(revision=9)).SerializeToString()
    proxied.turn(requests=[(1, put, pb.PutRequest(key=b"a").SerializeToString(), None)])
    proxied.turn((UpstreamEventKind.ANSWERED, 1, written))
    request = pb.RangeRequest(key=b"b", serializable=True)
    proxied.turn(requests=[(2, read, request.SerializeToString(), None)])
    old = pb.RangeResponse(header=pb.ResponseHeader(revision=8), count=0).SerializeToString()
    proxied.turn((UpstreamEventKind.ANSWERED, 2, old))
    assert 2 not in proxied.edge.replies
    number, _, path, message, _ = proxied.upstream.calls[-1]
    asked = pb.RangeRequest.FromString(message)
    assert (number >= OWN_FIRST, path, asked.key, asked.serializable) == (
        True,
        rpcs.RANGE.path,
        b"b",
        False,
    )
    new = pb.RangeResponse(header=pb.ResponseHeader(revision=9), count=1).SerializeToString()
    proxied.turn((UpstreamEventKind.ANSWERED, number, new))
    assert proxied.edge.replies[2] == new


def test_a_store_that_was_restored_is_believed() -> None:
    proxied = _Proxied()
    proxied.connect()
    put, read = NUMBERS[rpcs.PUT.path], NUMBERS[rpcs.RANGE.path]
    written = pb.PutResponse(header=pb.ResponseHeader(revision=9)).SerializeToString()
    proxied.turn(requests=[(1, put, pb.PutRequest(key=b"a").SerializeToString(), None)])
    proxied.turn((UpstreamEventKind.ANSWERED, 1, written))
    request = pb.RangeRequest(key=b"b", serializable=True).SerializeToString()
    answer = pb.RangeResponse(header=pb.ResponseHeader(revision=3)).SerializeToString()
    for call in (2, 3):
        proxied.turn(requests=[(call, read, request, None)])
        proxied.turn((UpstreamEventKind.ANSWERED, call, answer))
        proxied.turn((UpstreamEventKind.ANSWERED, proxied.upstream.calls[-1][0], answer))
        assert proxied.edge.replies[call] == answer
    # The first was asked for twice, the second once.
    assert len(proxied.upstream.calls) == 4


@pytest.mark.parametrize("is_ordering", [False, True])
def test_with_ordering_nothing_is_older_than_what_was_read(is_ordering: bool) -> None:
    proxied = _Proxied(is_ordering=is_ordering)
    proxied.connect()
    read = NUMBERS[rpcs.RANGE.path]
    for call, serializable, revision in ((1, False, 9), (2, True, 8)):
        request = pb.RangeRequest(key=b"b", serializable=serializable)
        answer = pb.RangeResponse(header=pb.ResponseHeader(revision=revision))
        proxied.turn(requests=[(call, read, request.SerializeToString(), None)])
        proxied.turn((UpstreamEventKind.ANSWERED, call, answer.SerializeToString()))
    assert (2 in proxied.edge.replies) is not is_ordering


def test_a_second_read_for_a_client_ends_with_its_client() -> None:
    proxied = _Proxied(is_ordering=True)
    proxied.connect()
    for call, serializable, revision in ((1, False, 9), (2, True, 8)):
        request = pb.RangeRequest(key=b"b", serializable=serializable).SerializeToString()
        answer = pb.RangeResponse(header=pb.ResponseHeader(revision=revision))
        proxied.turn(requests=[(call, NUMBERS[rpcs.RANGE.path], request, None)])
        proxied.turn((UpstreamEventKind.ANSWERED, call, answer.SerializeToString()))
    again = proxied.upstream.calls[-1][0]
    assert again >= OWN_FIRST
    proxied.turn(happened=[(EdgeEventKind.ENDED, 2, None)])
    assert proxied.upstream.cancelled == [again]


def test_an_unreadable_answer_ends_a_resent_call_with_an_error() -> None:
    proxied = _Proxied(namespace=b"ns/")
    proxied.connect()
    request = pb.RangeRequest(key=b"a").SerializeToString()
    proxied.turn(requests=[(1, NUMBERS[rpcs.RANGE.path], request, None)])
    proxied.end(1, Code.UNAVAILABLE, unseen=True)
    again = proxied.upstream.calls[-1][0]
    assert again >= OWN_FIRST
    proxied.turn((UpstreamEventKind.ANSWERED, again, b"\xff"))
    assert proxied.edge.replies[1] == errors.INTERNAL


def test_the_members_are_the_proxies() -> None:
    path = rpcs.MEMBER_LIST.path
    plain = Standing()
    assert [each.name for each in plain.call(path, pb.MemberListRequest()).members] == ["default"]
    alone = Standing(advertise_client_url="10.0.0.1:23790", host_name="host")
    (member,) = alone.call(path, pb.MemberListRequest()).members
    assert member == pb.Member(name="host", clientURLs=["10.0.0.1:23790"])


def test_a_proxy_is_registered_while_it_serves() -> None:
    standing = Standing(
        advertise_client_url="10.0.0.1:23790",
        host_name='the "host"',
        resolver_prefix="proxies",
        resolver_ttl_seconds=10,
        namespace=b"ns/",
    )
    registered = pb.RangeRequest(key=b"ns/proxies/", range_end=b"ns/proxies0")
    other = b'{"Op":0,"Addr":"10.0.0.2:1","Metadata":"{\\"name\\":\\"other\\"}"}'
    for key, value in ((b"2", other), (b"3", b"no JSON"), (b"4", b"[1]")):
        put = pb.PutRequest(key=b"ns/proxies/" + key, value=value)
        standing.call_member(rpcs.PUT.path, put)
    for _ in range(3):
        kv = standing.call_member(rpcs.RANGE.path, registered).kvs[0]
        assert kv.key == b"ns/proxies/10.0.0.1:23790"
        value = json.loads(kv.value)
        assert (value["Op"], value["Addr"]) == (0, "10.0.0.1:23790")
        assert json.loads(value["Metadata"]) == {"name": 'the "host"'}
        standing.pass_time(15, step=0.5)
    members = standing.call(rpcs.MEMBER_LIST.path, pb.MemberListRequest()).members
    assert [(each.name, *each.clientURLs) for each in members] == [
        ('the "host"', "10.0.0.1:23790"),
        ("other", "10.0.0.2:1"),
    ]
    # A lease that somebody revokes is noticed, and the proxy registered anew.
    standing.call_member(rpcs.LEASE_REVOKE.path, pb.LeaseRevokeRequest(ID=kv.lease))
    standing.pass_time(10, step=0.5)
    assert standing.call_member(rpcs.RANGE.path, registered).kvs[0].lease not in (0, kv.lease)
    standing.proxy.drain(standing.now)
    standing.settle()
    keys = [each.key for each in standing.call_member(rpcs.RANGE.path, registered).kvs]
    assert b"ns/proxies/10.0.0.1:23790" not in keys


def test_a_proxy_that_drains_finishes_calls_and_ends_streams() -> None:
    standing = Standing()
    keep_alive = standing.stream(rpcs.LEASE_KEEP_ALIVE.path)
    observe = standing.stream("/v3electionpb.Election/Observe")
    watch = standing.stream(rpcs.WATCH.path)
    call = standing.begin(STATUS, pb.StatusRequest())
    standing.proxy.drain(standing.now)
    standing.settle()
    assert not isinstance(standing.answer(STATUS, call), Status)
    assert [each.status for each in (keep_alive, observe, watch)] == [errors.STOPPED] * 3
    assert standing.proxy.is_ended


def test_health_and_metrics() -> None:
    standing = Standing(advertise_client_url="10.0.0.1:23790")
    well = b'{"health":"true","reason":""}'
    assert standing.get("/health") == (200, well)
    assert standing.get("/proxy/health") == (200, well)
    assert standing.get("/metrics")[0] == 500
    assert standing.get("/version") == (404, b"404 page not found\n")
    for path in (rpcs.PUT.path, rpcs.RANGE.path):
        standing.call(path, pb.PutRequest(key=b"a"))
    body = standing.get("/proxy/metrics")[1] or b""
    labels = b'grpc_method="Put",grpc_service="etcdserverpb.KV",grpc_type="unary"'
    assert b"grpc_server_started_total{" + labels + b"} 1\n" in body
    assert b"etcd_grpc_proxy_cache_keys_total 0\n" in body
    standing.members.clear()
    standing.upstream.lose_all()
    for target in ("/health", "/proxy/health"):
        standing.happen((EdgeEventKind.HTTP_OPENED, hash(target), (1, "GET", target, [])))
        standing.pass_time(6, step=0.5)
        status, answer = standing.edge.responses[hash(target)]
        assert status == 503
        assert (answer or b"").startswith(b'{"health":"false","reason":"GET ERROR:')


def test_members_that_are_asked_no_more_keep_their_calls_for_a_while() -> None:
    proxied = _Proxied()
    first, second = proxied.upstream.connecting
    proxied.connect()
    proxied.request(1)
    assert proxied.upstream.calls[0][1] == first
    proxied.proxy.routes.replace([parse_endpoint(each) for each in ("b:3", "127.0.0.1:2", "b:3")])
    proxied.turn((UpstreamEventKind.CONNECTED, first, None))
    proxied.connect()
    third = proxied.proxy.routes.endpoints[0].number
    for call in (2, 3):
        proxied.request(call)
    assert {unary[1] for unary in proxied.upstream.calls[1:]} == {second, third}
    proxied.turn((UpstreamEventKind.ANSWERED, 1, b"a"))
    assert proxied.edge.replies == {1: b"a"}
    assert not proxied.upstream.disconnected
    proxied.now += LINGER_SECONDS
    proxied.turn()
    assert proxied.upstream.disconnected == [first]


def test_the_members_are_asked_where_they_are() -> None:
    proxied = _Proxied("a:1", sync_seconds=60.0)
    proxied.connect()
    proxied.now += 1
    proxied.turn()
    (asked,) = proxied.upstream.calls
    assert asked[2] == rpcs.MEMBER_LIST.path
    learner = pb.Member(isLearner=True, clientURLs=["http://l:1"])
    members = pb.MemberListResponse(members=[pb.Member(clientURLs=["http://c:9"]), learner])
    proxied.turn((UpstreamEventKind.ANSWERED, asked[0], members.SerializeToString()))
    assert [place.address.host for place in proxied.proxy.routes.endpoints] == ["c"]
