"""A gRPC client of the library people use, with messages as plain bytes."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from tests.network.edge.service import WAIT_SECONDS


class Client:
    """One connection of grpcio."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel

    def unary(self, path: str, payload: bytes, seconds: float = WAIT_SECONDS, **more: Any) -> Any:
        return self.channel.unary_unary(path)(payload, timeout=seconds, **more)

    def unary_call(
        self, path: str, payload: bytes, seconds: float = WAIT_SECONDS, **more: Any
    ) -> Any:
        """Begin a call; returns a future that has metadata and code as well."""
        return self.channel.unary_unary(path).future(payload, timeout=seconds, **more)

    def stream(
        self, path: str, payloads: Iterable[bytes], seconds: float = WAIT_SECONDS, **more: Any
    ) -> Any:
        return self.channel.stream_stream(path)(iter(payloads), timeout=seconds, **more)


@contextmanager
def connect(address: str, credentials: Any = None) -> Iterator[Client]:
    # Without a pool of its own, channels to one address would share a connection.
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.enable_http_proxy", 0),
    ]
    target = f"ipv4:{address}" if address.startswith("127.") else address
    if credentials is not None:
        opened = grpc.secure_channel(target, credentials, options=options)
    else:
        opened = grpc.insecure_channel(target, options=options)
    with opened as channel:
        yield Client(channel)


def failure(future: Any) -> tuple[int, str]:
    """Return the code and the text of a call that failed."""
    error = future.exception(timeout=WAIT_SECONDS)
    assert error is not None, "the call succeeded"
    return error.code().value[0], error.details()
