"""The few calls that tests of the process make, over a plain gRPC channel."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from kvorum.api.pb.etcdserverpb import (
    DeleteRangeRequest,
    DeleteRangeResponse,
    PutRequest,
    PutResponse,
    RangeRequest,
    RangeResponse,
    RequestOp,
    TxnRequest,
    TxnResponse,
    WatchRequest,
    WatchResponse,
)
from tests.waiting import WAIT_SECONDS_MAX


class Client:
    """A client of one server."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._put = channel.unary_unary(
            "/etcdserverpb.KV/Put", PutRequest.SerializeToString, PutResponse.FromString
        )
        self._range = channel.unary_unary(
            "/etcdserverpb.KV/Range", RangeRequest.SerializeToString, RangeResponse.FromString
        )
        self._txn = channel.unary_unary(
            "/etcdserverpb.KV/Txn", TxnRequest.SerializeToString, TxnResponse.FromString
        )
        self._delete = channel.unary_unary(
            "/etcdserverpb.KV/DeleteRange",
            DeleteRangeRequest.SerializeToString,
            DeleteRangeResponse.FromString,
        )
        self._watch = channel.stream_stream(
            "/etcdserverpb.Watch/Watch", WatchRequest.SerializeToString, WatchResponse.FromString
        )

    def put(self, key: bytes, value: bytes) -> int:
        """Put a key; return the revision."""
        answer = self._put(PutRequest(key=key, value=value), timeout=WAIT_SECONDS_MAX)
        return int(answer.header.revision)

    def put_later(self, key: bytes, value: bytes) -> Any:
        """Begin to put a key; return grpc's future of the response."""
        return self._put.future(PutRequest(key=key, value=value), timeout=WAIT_SECONDS_MAX)

    def put_many(self, keys: list[bytes]) -> None:
        """Put keys in one transaction."""
        puts = [RequestOp(request_put=PutRequest(key=key)) for key in keys]
        self._txn(TxnRequest(success=puts), timeout=WAIT_SECONDS_MAX)

    def delete_everything(self) -> None:
        """Delete all keys."""
        self._delete(DeleteRangeRequest(key=b"\0", range_end=b"\0"), timeout=WAIT_SECONDS_MAX)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key."""
        kvs = self._range(RangeRequest(key=key), timeout=WAIT_SECONDS_MAX).kvs
        return bytes(kvs[0].value) if kvs else None

    def everything(self) -> RangeResponse:
        """Return all keys."""
        request = RangeRequest(key=b"\0", range_end=b"\0")
        return self._range(request, timeout=WAIT_SECONDS_MAX)  # type: ignore[no-any-return]

    def watch(self, requests: Iterator[WatchRequest]) -> Any:
        """Open a watch stream."""
        return self._watch(requests, timeout=WAIT_SECONDS_MAX)


@contextmanager
def connected(address: str) -> Iterator[Client]:
    """A client for as long as the block takes."""
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 10),
        ("grpc.max_receive_message_length", -1),
    ]
    with grpc.insecure_channel(address, options) as channel:
        yield Client(channel)
