"""Calls of every kind whose effect on metrics is determined, made to any server; and its page."""

import http.client
import queue
import re
from collections.abc import Iterator
from typing import Any

import grpc

from kvorum.api.pb import etcdserverpb as pb
from tests.waiting import WAIT_SECONDS_MAX


class Caller:
    """A client that names the calls by their paths."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def ask(self, path: str, request: Any) -> bytes | grpc.StatusCode:
        """Make a unary call; return the answer's bytes, or the code of a refusal."""
        call = self._channel.unary_unary(
            f"/etcdserverpb.{path}", lambda message: message.SerializeToString(), bytes
        )
        try:
            answer: bytes = call(request, timeout=WAIT_SECONDS_MAX)
            return answer
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code

    def stream(self, path: str, requests: Iterator[Any], answer: Any) -> Any:
        """Open a stream."""
        call = self._channel.stream_stream(
            f"/etcdserverpb.{path}", lambda message: message.SerializeToString(), answer.FromString
        )
        return call(requests, timeout=WAIT_SECONDS_MAX)


def _put(key: bytes, value: bytes = b"v", **options: Any) -> pb.PutRequest:
    return pb.PutRequest(key=key, value=value, **options)


def _operation(**request: Any) -> pb.RequestOp:
    return pb.RequestOp(**request)


def _compare(key: bytes, version: int) -> pb.Compare:
    return pb.Compare(
        key=key,
        version=version,
        target=pb.Compare.VERSION,
        result=pb.Compare.EQUAL,
    )


def make_calls(address: str) -> None:
    """Make the calls, one after the other."""
    with grpc.insecure_channel(address) as channel:
        caller = Caller(channel)
        _change_keys(caller)
        _run_transactions(caller)
        _read(caller)
        _use_leases(caller)
        _administer(caller)
        _watch(caller)


def _change_keys(caller: Caller) -> None:
    for request in (
        _put(b"a"),
        _put(b"a", b"longer"),
        _put(b"b", prev_kv=True),
        _put(b"b", prev_kv=True),
        _put(b"b", b"", ignore_value=True),
        _put(b"none", b"", ignore_value=True),
        _put(b"b", lease=99),
    ):
        caller.ask("KV/Put", request)
    for number in range(5):
        caller.ask("KV/Put", _put(b"key%d" % number))
    for deletion in (
        pb.DeleteRangeRequest(key=b"key0"),
        pb.DeleteRangeRequest(key=b"none"),
        pb.DeleteRangeRequest(key=b"key1", range_end=b"key3"),
        pb.DeleteRangeRequest(key=b"key3", prev_kv=True),
        pb.DeleteRangeRequest(key=b"key", range_end=b"kez", prev_kv=True),
    ):
        caller.ask("KV/DeleteRange", deletion)


def _run_transactions(caller: Caller) -> None:
    put = _operation(request_put=_put(b"t"))
    put_with_previous = _operation(request_put=_put(b"t", prev_kv=True))
    get = _operation(request_range=pb.RangeRequest(key=b"t"))
    delete = _operation(request_delete_range=pb.DeleteRangeRequest(key=b"t"))
    delete_all = _operation(
        request_delete_range=pb.DeleteRangeRequest(key=b"t", range_end=b"u", prev_kv=True)
    )
    nested = _operation(
        request_txn=pb.TxnRequest(compare=[_compare(b"t", 0)], success=[put], failure=[put, get])
    )
    both = [_compare(b"a", 2), _compare(b"t", 0)]
    for request in (
        pb.TxnRequest(success=[put]),
        pb.TxnRequest(compare=both, success=[put], failure=[get]),
        pb.TxnRequest(compare=both[:1], success=[put]),
        pb.TxnRequest(compare=[_compare(b"a", 9), *both], success=[put], failure=[delete]),
        pb.TxnRequest(success=[put_with_previous]),
        pb.TxnRequest(success=[get, put, _operation(request_put=_put(b"u"))]),
        pb.TxnRequest(success=[delete, delete_all]),
        pb.TxnRequest(compare=both, success=[put_with_previous, get], failure=[put]),
        pb.TxnRequest(success=[nested]),
        pb.TxnRequest(success=[get, get]),
        pb.TxnRequest(compare=both, success=[get]),
        pb.TxnRequest(success=[get]),
    ):
        caller.ask("KV/Txn", request)


def _read(caller: Caller) -> None:
    for request in (
        pb.RangeRequest(key=b"a"),
        pb.RangeRequest(key=b"a", serializable=True),
        pb.RangeRequest(key=b"a", range_end=b"z"),
        pb.RangeRequest(key=b"a", range_end=b"z", count_only=True),
        pb.RangeRequest(key=b"a", revision=2),
        pb.RangeRequest(key=b"a", revision=1_000_000),
        pb.RangeRequest(),
    ):
        caller.ask("KV/Range", request)
    caller.ask("KV/Compact", pb.CompactionRequest(revision=5, physical=True))
    caller.ask("KV/Compact", pb.CompactionRequest(revision=4))
    caller.ask("KV/Range", pb.RangeRequest(key=b"a", revision=2))


def _use_leases(caller: Caller) -> None:
    for number, seconds in ((7, 60), (8, 1000), (7, 60)):
        caller.ask("Lease/LeaseGrant", pb.LeaseGrantRequest(ID=number, TTL=seconds))
    caller.ask("KV/Put", _put(b"leased", lease=7))
    caller.ask("KV/Put", _put(b"leased too", lease=7))
    beats = iter([pb.LeaseKeepAliveRequest(ID=8), pb.LeaseKeepAliveRequest(ID=8)])
    renewed = caller.stream("Lease/LeaseKeepAlive", beats, pb.LeaseKeepAliveResponse)
    assert [answer.TTL for answer in renewed] == [1000, 1000]
    caller.ask("Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=7))
    caller.ask("Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=12))
    caller.ask("Lease/LeaseTimeToLive", pb.LeaseTimeToLiveRequest(ID=8))


def _administer(caller: Caller) -> None:
    caller.ask("Auth/RoleAdd", pb.AuthRoleAddRequest(name="r"))
    caller.ask("Auth/RoleAdd", pb.AuthRoleAddRequest(name="r"))
    caller.ask("Maintenance/Alarm", pb.AlarmRequest())
    caller.ask("Maintenance/HashKV", pb.HashKVRequest())
    caller.ask("Maintenance/Hash", pb.HashRequest())
    caller.ask("Maintenance/Defragment", pb.DefragmentRequest())
    caller.ask("Cluster/MemberList", pb.MemberListRequest())


def _watch(caller: Caller) -> None:
    requests: queue.SimpleQueue[pb.WatchRequest | None] = queue.SimpleQueue()
    answers = caller.stream("Watch/Watch", iter(requests.get, None), pb.WatchResponse)
    for key in (b"w", b"x"):
        create = pb.WatchCreateRequest(key=key)
        requests.put(pb.WatchRequest(create_request=create))
        assert next(answers).created
    for key in (b"w", b"w", b"x"):
        caller.ask("KV/Put", _put(key))
        assert next(answers).events
    puts = [_operation(request_put=_put(b"w%d" % number)) for number in range(3)]
    puts.append(_operation(request_put=_put(b"w")))
    caller.ask("KV/Txn", pb.TxnRequest(success=puts))
    assert next(answers).events
    requests.put(pb.WatchRequest(cancel_request=pb.WatchCancelRequest(watch_id=0)))
    assert next(answers).canceled
    requests.put(None)
    # The server ends the stream when it has heard of the client's end.
    answers.cancel()


def get(address: str, target: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of an answer."""
    connection = http.client.HTTPConnection(address, timeout=WAIT_SECONDS_MAX)
    try:
        connection.request("GET", target, headers=headers)
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return response.status, names, response.read()
    finally:
        connection.close()


def scrape(address: str) -> str:
    """Return the metrics of a server."""
    return get(address, "/metrics")[2].decode()


def types(page: str) -> dict[str, str]:
    """Return the type of every metric."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.M))


def values(page: str) -> dict[str, float]:
    """Return the value of every series, as it is written there."""
    lines = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}
