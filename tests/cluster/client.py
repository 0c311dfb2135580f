"""A gRPC client of one member: unary calls with a time limit, and streams."""

import queue
from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from tests.server.rpc.oracle import by_name, status_of

CALL_SECONDS_MAX = 20.0
# A stream is open for as long as a test needs it.
STREAM_SECONDS_MAX = 200.0
OPTIONS = [
    # A member that was killed is dialled again as soon as it is back.
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 50),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
]
LEADER_REQUIRED = (("hasleader", "true"),)

Metadata = Sequence[tuple[str, str]]


class Client:
    """Calls are given as `Service/Method` and a message."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.metadata: Metadata = ()
        """What goes with every call that is given nothing else."""
        self._channel = grpc.insecure_channel(address, OPTIONS)
        self._calls: dict[str, Any] = {}

    def _with(self, metadata: Metadata | None) -> Metadata:
        return self.metadata if metadata is None else metadata

    def _unary(self, name: str) -> Any:
        if name not in self._calls:
            method = by_name(name)
            self._calls[name] = self._channel.unary_unary(
                method.path, method.request.SerializeToString, method.response.FromString
            )
        return self._calls[name]

    def ask(
        self,
        name: str,
        request: Message,
        timeout: float = CALL_SECONDS_MAX,
        metadata: Metadata | None = None,
    ) -> Any:
        """Make a unary call; return the response or the status."""
        try:
            return self._unary(name)(request, timeout=timeout, metadata=self._with(metadata))
        except grpc.RpcError as error:
            return status_of(error)

    def ask_bytes(
        self, path: str, request: bytes, timeout: float, metadata: Metadata | None = None
    ) -> bytes:
        """Make a unary call that succeeds, and leave the answer as it comes."""
        call = self._channel.unary_unary(path)
        answer: bytes = call(request, timeout=timeout, metadata=self._with(metadata))
        return answer

    def begin(
        self,
        name: str,
        request: Message,
        timeout: float = CALL_SECONDS_MAX,
        metadata: Metadata | None = None,
    ) -> Any:
        """Begin a unary call; return grpc's future of the response."""
        return self._unary(name).future(request, timeout=timeout, metadata=self._with(metadata))

    def pieces(
        self,
        name: str,
        request: Message,
        timeout: float = STREAM_SECONDS_MAX,
        metadata: Metadata | None = None,
    ) -> Any:
        """Make a call whose answer is a stream; iterate over it."""
        method = by_name(name)
        call = self._channel.unary_stream(
            method.path, method.request.SerializeToString, method.response.FromString
        )
        return call(request, timeout=timeout, metadata=self._with(metadata))

    def pieces_of_bytes(
        self, path: str, request: bytes, timeout: float, metadata: Metadata | None = None
    ) -> Any:
        """Make a call whose answer is a stream; its messages are left as they come."""
        call = self._channel.unary_stream(path)
        return call(request, timeout=timeout, metadata=self._with(metadata))

    def talk(
        self,
        name: str,
        metadata: Metadata | None = None,
        timeout: float = STREAM_SECONDS_MAX,
    ) -> "Talk":
        """Open a stream in both directions."""
        method = by_name(name)
        call = self._channel.stream_stream(
            method.path, method.request.SerializeToString, method.response.FromString
        )
        return Talk(call, self._with(metadata), timeout)

    def watch(self, metadata: Metadata | None = None, **create: Any) -> "Talk":
        """Open a watch, and wait until it is created."""
        talk = self.talk("Watch/Watch", metadata)
        talk.say(pb.WatchRequest(create_request=pb.WatchCreateRequest(**create)))
        assert talk.hear().created
        return talk

    def close(self) -> None:
        self._channel.close()


class Talk:
    """A stream in both directions, one message at a time."""

    def __init__(self, call: Any, metadata: Metadata, timeout: float) -> None:
        self._requests: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._call = call(iter(self._requests.get, None), metadata=metadata, timeout=timeout)

    def say(self, message: Message) -> None:
        self._requests.put(message)

    def hear(self) -> Any:
        return next(self._call)

    def end(self) -> Status:
        """Take messages until the other side ends the stream; return how it ended."""
        try:
            for _ in self._call:
                pass
        except grpc.RpcError as error:
            return status_of(error)
        raise AssertionError("the stream ended well")

    def close(self) -> None:
        self._call.cancel()
        self._requests.put(None)
