"""Library users that make one request after the other, in the shape of etcd's requests.

The library retries reads; a user never repeats a write whose outcome is unknown.
"""

from random import Random

from kvorum.api.pb.etcdserverpb import (
    CompactionRequest,
    DeleteRangeRequest,
    LeaseGrantRequest,
    LeaseKeepAliveRequest,
    PutRequest,
    RangeRequest,
    TxnRequest,
)
from kvorum.client import operations, rpcs
from kvorum.client.rpcs import Rpc
from kvorum.sim.calls import PlannedRequest
from kvorum.sim.history import History
from kvorum.sim.library.shell import Shell
from kvorum.sim.shapes import EtcdShape
from kvorum.sim.workloads import Workload
from kvorum.sim.world import World

BACKLOG_SECONDS = 0.3
_TIMEOUTS = (0.3, 1.0, 5.0)


class LibraryClient:
    """One library user; it makes requests until it is stopped."""

    __slots__ = ("_random", "_requests", "_shape", "_think", "_world", "is_stopped", "shell")

    def __init__(
        self, world: World, shell: Shell, history: History, workload: Workload, number: int
    ) -> None:
        self._world = world
        self.shell = shell
        self._random: Random = world.stream(f"client {number}")
        self._shape = EtcdShape(world.stream(f"shape {number}"), history, workload, number)
        self._requests = workload.requests
        self._think = workload.think
        self.is_stopped = False

    async def run(self) -> None:
        """Make one request after the other."""
        random, world = self._random, self._world
        await self.shell.sleep(random.uniform(0.0, 0.5))
        for _ in range(self._requests):
            asked = self._shape.next()
            if self.is_stopped:
                return
            if isinstance(asked.request, LeaseKeepAliveRequest):
                # Only holders keep leases alive.
                continue
            if isinstance(asked.request, LeaseGrantRequest):
                asked.request.ID = random.getrandbits(62) + 1
            record = await self.shell.ask(asked, rpc_of(asked), random.choice(_TIMEOUTS))
            if record.is_answered:
                self._shape.learn(record)
            else:
                await self.shell.sleep(0.05)
            if world.now - record.started < BACKLOG_SECONDS and random.random() < 0.5:
                await self.shell.sleep(random.expovariate(1.0) * self._think)


def rpc_of(asked: PlannedRequest) -> Rpc:
    """Return the RPC that the library chooses for a request."""
    request = asked.request
    if isinstance(request, TxnRequest):
        return operations.txn_operation(request).rpc
    if isinstance(request, PutRequest):
        return rpcs.PUT
    if isinstance(request, DeleteRangeRequest):
        return rpcs.DELETE_RANGE
    if isinstance(request, RangeRequest):
        return operations.range_operation(b"", serializable=request.serializable).rpc
    if isinstance(request, CompactionRequest):
        return rpcs.COMPACT
    return rpcs.LEASE_GRANT if isinstance(request, LeaseGrantRequest) else rpcs.LEASE_REVOKE
