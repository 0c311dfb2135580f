"""Calls to real servers: ours as a process, and etcd. Both are asked the same."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvorum.api.errors import Code
from kvorum.api.pb import etcdserverpb as pb
from kvorum.network.edge.upstream import UpstreamEventKind
from tests.kvorum import running_kvorum
from tests.network.edge.caller import Caller

PUT, RANGE = "/etcdserverpb.KV/Put", "/etcdserverpb.KV/Range"
WATCH = "/etcdserverpb.Watch/Watch"


@pytest.fixture(scope="module")
def kvorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_kvorum(Path(tmp_path_factory.mktemp("kvorum"))) as server:
        yield server.address


@pytest.fixture(params=["kvorum", "etcd"])
def address(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


def test_keys_are_put_read_and_watched(address: str, caller: Caller) -> None:
    endpoint = caller.connect(address)
    watch = caller.open(endpoint, WATCH)
    create = pb.WatchCreateRequest(key=b"k", range_end=b"l")
    caller.upstream.send([(watch, pb.WatchRequest(create_request=create).SerializeToString())])
    caller.until(lambda: len(caller.messages(watch)) == 1)
    assert pb.WatchResponse.FromString(caller.messages(watch)[0]).created
    values = [b"v" * size for size in (0, 10, 100_000, 1_000_000)]
    for place, value in enumerate(values):
        caller.ask(
            endpoint, PUT, pb.PutRequest(key=b"k%d" % place, value=value).SerializeToString()
        )
    answer = caller.ask(
        endpoint, RANGE, pb.RangeRequest(key=b"k", range_end=b"l").SerializeToString()
    )
    assert [each.value for each in pb.RangeResponse.FromString(answer).kvs] == values

    def watched() -> list[bytes]:
        responses = [pb.WatchResponse.FromString(each) for each in caller.messages(watch)]
        return [event.kv.value for each in responses for event in each.events]

    caller.until(lambda: len(watched()) == len(values))
    assert watched() == values
    caller.upstream.cancel(watch)


def test_errors_are_told_as_they_are(address: str, caller: Caller) -> None:
    endpoint = caller.connect(address)
    end = caller.end(caller.begin(endpoint, PUT, b""))
    assert end == (Code.INVALID_ARGUMENT, "etcdserver: key is not provided", False)
    compacted = pb.RangeRequest(key=b"x", revision=1 << 40).SerializeToString()
    end = caller.end(caller.begin(endpoint, RANGE, compacted))
    text = "etcdserver: mvcc: required revision is a future revision"
    assert end == (Code.OUT_OF_RANGE, text, False)


def test_many_calls_at_once(address: str, caller: Caller) -> None:
    endpoint = caller.connect(address)
    first = caller.number()
    request = pb.PutRequest(key=b"many", value=b"x").SerializeToString()
    caller.upstream.call([(first + place, endpoint, PUT, request, ()) for place in range(2000)])
    caller.until(lambda: len(caller.of_calls) == 2000)
    kinds = {kind for seen in caller.of_calls.values() for kind, _ in seen}
    assert kinds == {UpstreamEventKind.ANSWERED}


def test_a_member_that_ends_says_so(tmp_path: Path, caller: Caller) -> None:
    with running_kvorum(tmp_path) as server:
        endpoint = caller.connect(server.address)
        watch = caller.open(endpoint, WATCH)
        caller.upstream.send([(watch, b"")])
        server.process.terminate()
        caller.until(lambda: caller.of_endpoints[endpoint][-1][0] == UpstreamEventKind.DISCONNECTED)
        assert caller.end(watch)[0] == Code.UNAVAILABLE
