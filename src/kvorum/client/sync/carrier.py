# Written by `make client` from kvorum/client/aio; change that.
"""The interface through which a client makes calls: its shell, or a layer of rules above it."""

from typing import Protocol

from kvorum.client.rpcs import Rpc


class Carrier(Protocol):
    """Makes calls; one layer can use another."""

    def call(self, rpc: Rpc, message: bytes, seconds_max: float, at: int | None = None) -> bytes:
        """Make a call and return its answer; raises the error that it ended with."""
        ...
