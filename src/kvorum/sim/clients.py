"""Clients that send one request after the other; a client's shape decides which requests.

A client retries a read that failed. It never resends a write whose outcome is unknown, since the
write may have taken effect. A client of Kubernetes' shape reads the object again and continues.
"""

from collections.abc import Callable
from random import Random
from typing import Protocol

from kvorum.api.pb.etcdserverpb import RangeRequest
from kvorum.sim.calls import Caller, Calls, PlannedRequest
from kvorum.sim.history import History, Record
from kvorum.sim.objects import KubernetesShape
from kvorum.sim.range_streams import StreamShape
from kvorum.sim.shapes import CachedShape, EtcdShape, ReaderShape
from kvorum.sim.workloads import CACHED, ETCD, KUBERNETES, READER, STREAMER, Workload
from kvorum.sim.world import World

BACKLOG_SECONDS = 0.3
LOGIN_CHECK_SECONDS = 0.02
READER_PATIENCE = (0.2, 1.0)


class Shape(Protocol):
    """Chooses a client's requests, and learns from the answers."""

    def next(self) -> PlannedRequest:
        """Return the next request."""

    def learn(self, record: Record) -> None:
        """Take an answer that is neither lost nor a refusal."""


SHAPES: dict[str, Callable[[Random, History, Workload, int], Shape]] = {
    ETCD: EtcdShape,
    KUBERNETES: KubernetesShape,
    READER: ReaderShape,
    STREAMER: StreamShape,
    CACHED: CachedShape,
}
CACHED_TIMES = 6
"""How many times as many requests clients of shape `CACHED` send, with pauses as much shorter."""


class Client:
    """One client, which sends its requests until they are used up or it is stopped."""

    __slots__ = (
        "_asked",
        "_caller",
        "_calls",
        "_number",
        "_patience",
        "_random",
        "_requests",
        "_requests_max",
        "_shape",
        "_think",
        "_workload",
        "_world",
        "is_stopped",
    )

    def __init__(
        self, world: World, calls: Calls, history: History, workload: Workload, number: int
    ) -> None:
        self._world = world
        self._calls = calls
        self._workload = workload
        self._number = number
        self._random: Random = world.stream(f"client {number}")
        self._caller = Caller(world, calls, history, number, f"c{number}")
        shape = workload.shapes[number - 1]
        self._shape: Shape = SHAPES[shape](
            world.stream(f"shape {number}"), history, workload, number
        )
        self._requests = 0
        self._asked: PlannedRequest
        self._patience = workload.patience
        times = CACHED_TIMES if shape == CACHED else 1
        self._requests_max = times * workload.requests
        self._think = workload.think / times
        if shape == READER:
            self._patience = READER_PATIENCE
            self._caller.member = calls.members[number % len(calls.members)]
            self._caller.roams = 0.0
        self.is_stopped = False

    def start(self) -> None:
        """Send the first request soon."""
        self._world.after(self._random.uniform(0.0, 0.5), self._next)

    def _next(self) -> None:
        if not self._calls.is_ready() and not self.is_stopped:
            self._world.after(LOGIN_CHECK_SECONDS, self._next)
            return
        self._requests += 1
        if self.is_stopped or self._requests > self._requests_max:
            return
        asked = self._shape.next()
        if (self._number, self._requests) in self._workload.left_out:
            self._world.after(self._random.expovariate(1.0) * self._think, self._next)
            return
        self._ask(asked)

    def _ask(self, asked: PlannedRequest) -> None:
        self._asked = asked
        patience = self._random.uniform(*self._patience)
        self._caller.ask(asked, patience, self._answered)

    def _answered(self, record: Record) -> None:
        world, random = self._world, self._random
        failed = not record.is_answered
        if not failed:
            self._shape.learn(record)
        pause = 0.0
        # A client that had to wait has a backlog, and sends its next request at once.
        if world.now - record.started < BACKLOG_SECONDS and random.random() < 0.5:
            pause = random.expovariate(1.0) * self._think
        if failed:
            pause += 0.05
        if failed and isinstance(record.request, RangeRequest) and random.random() < 0.5:
            world.after(pause, self._retry)
        else:
            world.after(pause, self._next)

    def _retry(self) -> None:
        if not self.is_stopped:
            self._ask(self._asked)
