"""An ordering client: its answers never go back in revision."""

from typing import Any, Final

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.client.aio.carrier import AsyncCarrier
from kvorum.client.core import RETRY_SECONDS
from kvorum.client.errors import MembersBehindError, RevisionWentBackError
from kvorum.client.loop import LoopClient as Shell
from kvorum.client.loop import Waiter, clock
from kvorum.client.rpcs import Rpc

ROUNDS_MAX: Final = 5
"""How often the client tries all endpoints before it raises MembersBehindError."""

_RESPONSES: Final[dict[str, Any]] = {
    rpcs.RANGE.path: pb.RangeResponse,
    rpcs.PUT.path: pb.PutResponse,
    rpcs.DELETE_RANGE.path: pb.DeleteRangeResponse,
    rpcs.TXN.path: pb.TxnResponse,
}


class AsyncOrdering:
    """Carries the calls of an ordering client."""

    def __init__(self, below: AsyncCarrier, shell: Shell) -> None:
        self._below = below
        self._shell = shell
        self._revision = 0
        """The newest revision that the client has returned."""

    async def call(
        self, rpc: Rpc, message: bytes, seconds_max: float, at: int | None = None
    ) -> bytes:
        """Make a call; if its answer is too old, repeat it at another endpoint."""
        kind = _RESPONSES.get(rpc.path)
        if kind is None:
            return await self._below.call(rpc, message, seconds_max, at)
        until = clock() + seconds_max
        shown = self._revision
        attempts = 0
        while True:
            answer = await self._below.call(rpc, message, max(until - clock(), 0.0), at)
            revision: int = kind.FromString(answer).header.revision
            with self._shell.turn():
                if revision >= shown:
                    self._revision = max(self._revision, revision)
                    return answer
                endpoints, now = self._shell.core.endpoints, self._shell.core.now
                # The member lags behind; the next call goes to another one, if there is any.
                endpoints.avoid(endpoints.pick(now), now)
                count = len(endpoints.all)
            attempts += 1
            if not rpc.is_repeatable:
                raise RevisionWentBackError(shown, revision)
            if attempts >= ROUNDS_MAX * count:
                raise MembersBehindError(shown, revision)
            if attempts % count == 0:
                await self._shell.wait(Waiter(), clock() + RETRY_SECONDS)
