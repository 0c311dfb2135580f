"""Library users that own the keys they read, and therefore read them without a call.

They share a few keys, and write keys that others own, which forces the owners to give them up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from kvorum.api.pb.mvccpb import KeyValue
from kvorum.client.aio.client import AsyncClient
from kvorum.client.errors import ClosedError, KvorumError
from kvorum.sim.history import History
from kvorum.sim.library.shell import Shell, SimulatedClient
from kvorum.sim.library.tasks import Task
from kvorum.sim.violation import Violation
from kvorum.sim.workloads import Workload
from kvorum.sim.world import World
from kvorum.state.mvcc.keyvalue import key_of

CURRENT = "what a leasing client reads is current"
KEYS = (b"leased/1", b"leased/2", b"leased/3")
OWNERS = b"leasing/"
_READ_CHANCE = 0.7
_PUT_CHANCE = 0.25
_TIMEOUTS = (0.5, 2.0)


@dataclass(slots=True)
class Read:
    """One read of a key, and the revision it returned; 0 if the key did not exist."""

    reader: str
    key: bytes
    started: float
    finished: float
    revision: int


class Leaser:
    """One leasing client; it reads and writes until it is stopped."""

    __slots__ = ("_client", "_random", "_ttl", "_world", "is_stopped", "reads", "shell")

    def __init__(self, world: World, shell: Shell, workload: Workload, number: int) -> None:
        self._world = world
        self.shell = shell
        self._random: Random = world.stream(f"leaser {number}")
        low, high = workload.lease_seconds
        self._ttl = self._random.randint(low, min(high, low + 2))
        self._client = SimulatedClient(shell)
        self.reads: list[Read] = []
        self.is_stopped = False

    async def run(self) -> None:
        """Read and write random keys."""
        random = self._random
        leased = self._client.leasing(OWNERS, ttl=self._ttl)
        self.shell.process.on_resume = lambda: self._read_leased(leased)
        value = 0
        while not self.is_stopped:
            key, choice = random.choice(KEYS), random.random()
            timeout = random.choice(_TIMEOUTS)
            try:
                if choice < _READ_CHANCE:
                    await self._read(leased, key, timeout)
                elif choice < _READ_CHANCE + _PUT_CHANCE:
                    value += 1
                    text = b"%s.%d" % (self.shell.process.name.encode(), value)
                    await leased.put(key, text, timeout=timeout)
                else:
                    await leased.delete(key, timeout=timeout)
            except ClosedError:
                return
            except KvorumError as error:
                self._line(f"goes on: {error}")
            await self.shell.sleep(random.uniform(0.0, 0.3))

    def stop(self) -> None:
        """Stop reading and end the process."""
        self.is_stopped = True
        self.shell.end()

    def _read_leased(self, leased: AsyncClient) -> None:
        """Read all keys before anything else runs in the resumed process."""
        for key in KEYS:
            Task(self._world, self.shell.process, self._read_key(leased, key), at_once=True)

    async def _read_key(self, leased: AsyncClient, key: bytes) -> None:
        try:
            await self._read(leased, key, _TIMEOUTS[0])
        except KvorumError as error:
            self._line(f"did not read {key!r}: {error}")

    async def _read(self, leased: AsyncClient, key: bytes, timeout: float) -> None:
        started = self._world.now
        found = await leased.get(key, timeout=timeout)
        revision = 0 if found is None else found.mod_revision
        name = self.shell.process.name
        self.reads.append(Read(name, key, started, self._world.now, revision))
        self._line(f"read {key!r} of revision {revision}, asked at {started:.6f}")

    def _line(self, what: str) -> None:
        if self._world.trace is not None:
            self._world.trace.line(self._world.now, self.shell.process.name, what)


def check_reads(history: History, reads: Sequence[Read]) -> None:
    """Require that no read returned a state older than the key had when the read started."""
    changes: dict[bytes, list[tuple[int, float, bool]]] = {key: [] for key in KEYS}
    for main in sorted(history.effects):
        for revision, kv in history.effects[main]:
            if (key := key_of(kv)) in changes:
                changes[key].append((main, history.first_seen[main], not revision & 1))
    for read in reads:
        # The key's changes before the read started.
        before = [main for main, at, _ in changes[read.key] if at < read.started]
        newest = before[-1] if before else 0
        if read.revision:
            found = history.at(read.key, read.revision)
            is_there = found and KeyValue.FromString(found).mod_revision == read.revision
            is_right = bool(is_there) and read.revision >= newest
        else:
            gone = [
                main
                for main, at, is_put in changes[read.key]
                if not is_put and newest <= main and at <= read.finished
            ]
            is_right = not before or bool(gone)
        if not is_right:
            raise Violation(
                CURRENT,
                f"{read.reader} asked for {read.key!r} at {read.started:.3f} and got revision "
                f"{read.revision}; it was changed by {newest} before",
            )
