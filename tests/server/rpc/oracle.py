"""A real etcd to ask: any call of the contract, with its answer or its error."""

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from kvorum.api.descriptors import Method, methods
from kvorum.api.errors import Code, Status
from kvorum.api.pb import etcdserverpb as pb
from tests.etcd import is_target
from tests.servers import running_server
from tests.waiting import WAIT_SECONDS_MAX, until

METHODS: dict[str, Method] = {method.path: method for method in methods()}
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    # Otherwise it reads ahead, the quicker the network the more, what nobody has asked for.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 64 * 1024),
]
NONE_BEHIND = b"\netcd_debugging_mvcc_slow_watcher_total 0\n"


def by_name(name: str) -> Method:
    """Return a method by `Service/Method`, e.g. `KV/Put`."""
    (found,) = [method for path, method in METHODS.items() if path.split(".")[-1] == name]
    return found


def status_of(error: grpc.RpcError) -> Status:
    found: Any = error
    return Status(Code(found.code().value[0]), found.details())


class Oracle:
    """A gRPC client of a server; calls are given as `Service/Method` and a message."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.insecure_channel(address, OPTIONS)
        self._calls: dict[str, Any] = {}

    def ask(self, name: str, request: Message) -> Message | Status:
        if name not in self._calls:
            method = by_name(name)
            self._calls[name] = self.channel.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        try:
            answer: Message = self._calls[name](request, timeout=WAIT_SECONDS_MAX)
        except grpc.RpcError as error:
            return status_of(error)
        return answer

    def ask_bytes(self, path: str, payload: bytes) -> bytes | Status:
        """Send bytes as they are, to any path."""
        try:
            answer: bytes = self.channel.unary_unary(path)(payload, timeout=WAIT_SECONDS_MAX)
        except grpc.RpcError as error:
            return status_of(error)
        return answer

    def stream(self, name: str, requests: Iterator[Message]) -> Any:
        """Open a stream; requests are taken from the iterator as it yields them."""
        method = by_name(name)
        open_stream = self.channel.stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return open_stream(requests, timeout=WAIT_SECONDS_MAX)

    def wait_for_watchers(self) -> None:
        """Wait until no watcher of the server is behind; the server checks ten times a second."""
        host, _, port = self.address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=WAIT_SECONDS_MAX)
        try:
            until("no watcher is behind", lambda: NONE_BEHIND in _page(connection, "/metrics"))
        finally:
            connection.close()

    def close(self) -> None:
        self.channel.close()


def _page(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("GET", path)
    return connection.getresponse().read()


def settled(server: Oracle) -> Oracle:
    """Return a server once it has stored the version of its data."""
    if is_target():
        until("the version of the data is stored", lambda: storage_version(server) == "3.7.0")
    return server


def storage_version(server: Oracle) -> str:
    """Return the version of a server's data; nothing while it has not stored one."""
    status: Any = server.ask("Maintenance/Status", pb.StatusRequest())
    version: str = status.storageVersion
    return version


@contextmanager
def running_oracle(directory: Path, *flags: str, kind: str = "etcd") -> Iterator[Oracle]:
    """Run an etcd, or a server of another kind, for as long as the block takes."""
    with running_server(kind, directory, *flags) as address:
        oracle = Oracle(address)
        try:
            yield oracle
        finally:
            oracle.close()
