"""RangeStream beside a real etcd's, piece by piece, and beside Range where etcd's loses keys."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.api.errors import Code, Status
from kvorum.api.pb import etcdserverpb as pb
from tests.etcd import is_target
from tests.server.rpc.harness import Harness
from tests.server.rpc.oracle import Oracle, by_name, running_oracle
from tests.waiting import WAIT_SECONDS_MAX

KEYS = 60
TARGETS = [0, 1, 2, 3, 4]


def fill(server: Harness | Oracle) -> None:
    """Put keys whose orders by value, version and revisions are all different, and unambiguous."""
    for number in range(KEYS):
        key = b"k%02d" % (number * 7 % KEYS)
        value = b"%02d" % (number * 11 % KEYS)
        for _ in range(number * 13 % KEYS):
            server.ask("KV/Put", pb.PutRequest(key=key, value=value))
    for number in range(KEYS):
        key, value = b"k%02d" % (number * 17 % KEYS), b"%02d" % (number * 23 % KEYS)
        server.ask("KV/Put", pb.PutRequest(key=key, value=value))


def range_stream(server: Harness | Oracle, request: pb.RangeRequest) -> list[pb.RangeResponse]:
    if isinstance(server, Harness):
        stream = server.open("KV/RangeStream")
        stream.send(request)
        stream.half_close()
        assert stream.status == Status(Code.OK, "")
        return [each.range_response for each in stream.received()]
    method = by_name("KV/RangeStream")
    call: Any = server.channel.unary_stream(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )
    return [each.range_response for each in call(request, timeout=WAIT_SECONDS_MAX)]


def comparable(pieces: list[pb.RangeResponse]) -> list[tuple[object, ...]]:
    return [
        (list(each.kvs), each.count, each.more, each.HasField("header"), each.header.revision)
        for each in pieces
    ]


@pytest.fixture(scope="module")
def ours() -> Harness:
    harness = Harness()
    fill(harness)
    return harness


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    if not is_target():
        pytest.skip("3.5 has no RangeStream")
    with running_oracle(tmp_path_factory.mktemp("etcd")) as oracle:
        fill(oracle)
        yield oracle


requests = st.builds(
    pb.RangeRequest,
    key=st.sampled_from([b"k", b"k05", b"k40", b"x"]),
    range_end=st.sampled_from([b"", b"\0", b"l", b"k15", b"k07"]),
    limit=st.sampled_from([0, -1, -7, 1, 2, 9, 10, 11, 30, KEYS]),
    revision=st.sampled_from([0, -1, 1000, 1500]),
    keys_only=st.booleans(),
    count_only=st.booleans(),
    sort_target=st.sampled_from(TARGETS),
)


@pytest.mark.long
@given(request=requests)
def test_the_pieces_are_those_of_etcd(
    ours: Harness, etcd: Oracle, request: pb.RangeRequest
) -> None:
    pieces = range_stream(ours, request)
    whole: Any = etcd.ask("KV/Range", request)
    if request.sort_target and request.limit >= 0 and (whole.more or len(whole.kvs) > 10):
        # etcd goes on, or counts on, after the key that it sorted last.
        assert comparable(pieces) == comparable([whole])
    else:
        assert comparable(pieces) == comparable(range_stream(etcd, request))


@given(request=requests)
def test_the_pieces_are_the_range(ours: Harness, request: pb.RangeRequest) -> None:
    whole = pb.RangeResponse()
    for piece in range_stream(ours, request):
        whole.MergeFrom(piece)
    assert whole == ours.ask("KV/Range", request)
