"""What a client gives its calls to: its connections, or a layer of rules above them."""

from typing import Protocol

from kvorum.client.rpcs import Rpc


class AsyncCarrier(Protocol):
    """Makes calls; layers can be put above each other."""

    async def call(
        self, rpc: Rpc, message: bytes, seconds_max: float, at: int | None = None
    ) -> bytes:
        """Make a call; raises what it ended with if that is not an answer."""
        ...
