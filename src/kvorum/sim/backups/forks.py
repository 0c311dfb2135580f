"""A cluster that goes back: it is made anew of a member that lacks what others had committed.

That is an operator's last resort, and what it loses is lost, so it comes when everything else of a
run was judged. Backups have recorded revisions that the new cluster has never had, and makes again
with other content: they must not put the two together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import CompactionRequest, PutRequest
from kvorum.sim.backups.recorders import Children, Recorder
from kvorum.sim.calls import METHODS
from kvorum.sim.history import Record
from kvorum.sim.violation import Violation

if TYPE_CHECKING:
    from kvorum.sim.backups.fleet import BackupFleet
    from kvorum.sim.cluster import Cluster
    from kvorum.sim.machine import Machine
    from kvorum.sim.world import World

MEMBERS_MIN = 3
_SECONDS_MAX = 30.0
"""How long any of the steps takes at most."""
_LOOK_SECONDS = 0.05
_RETRY_SECONDS = 0.1
_LOST_MAX = 12
"""How many writes the survivor lacks, at most."""
_MORE_MAX = 6
"""How many more there are then afterwards, at most."""


class _Writer:
    """Puts keys, one after the other, until so many were acknowledged."""

    def __init__(self, world: World, cluster: Cluster, count: int) -> None:
        self._world = world
        self._cluster = cluster
        self._random = world.stream(f"writer {world.now}")
        self.left = count
        self._write()

    def _write(self) -> None:
        if self.left <= 0:
            return
        random = self._random
        key, value = b"fork/%d" % random.randrange(4), b"%.6f" % self._world.now
        path, _ = METHODS[PutRequest]
        standing = [each for each in self._cluster.standing() if each.member is not None]
        if not standing:
            self._world.after(_RETRY_SECONDS, self._write)
            return
        message = PutRequest(key=key, value=value).SerializeToString()
        self._cluster.call(random.choice(standing).number, path, message, self._answered)

    def _answered(self, result: bytes | Status | None) -> None:
        if isinstance(result, bytes):
            self.left -= 1
            self._write()
        else:
            self._world.after(_RETRY_SECONDS, self._write)


class Fork:
    """The steps of it."""

    def __init__(self, world: World, cluster: Cluster, fleet: BackupFleet) -> None:
        self._world = world
        self._cluster = cluster
        self._fleet = fleet
        self._random = world.stream("fork")

    def run(self) -> None:
        """Let the cluster lose writes that were backed up, and go on; then judge the archives."""
        cluster, random = self._cluster, self._random
        recorders = [each for each in self._fleet.services if isinstance(each, Recorder)]
        for service in self._fleet.services:
            service.resume()
        followers = [each for each in cluster.standing() if not _leads(each)]
        survivor = random.choice(followers)
        self._let(random.uniform(0.0, 3.0))
        assert survivor.member is not None
        revision = survivor.member.store.revision
        survivor.crash(power_cut=False)
        lost = random.randint(1, _LOST_MAX)
        self._write(lost)
        self._let(random.uniform(0.0, 2.0))
        if random.random() < 0.3:
            self._compact()
        for recorder in recorders:
            # Of two that share an archive, one that does not know of the fork may write last, and
            # what is recorded then differs until the next snapshot is compared with it.
            if random.random() < 0.6 and not self._fleet.is_shared:
                recorder.cut_off(random.uniform(0.3, 4.0))
            elif random.random() < 0.5 or self._fleet.is_shared:
                recorder.kill()
        self._go_back(survivor, revision)
        self._write(random.randint(0, lost + _MORE_MAX))
        if random.random() < 0.3:
            self._compact()
        self._let(random.uniform(0.0, 3.0))
        self._fleet.calm_down()
        self._fleet.expect_quiet(cluster.members)

    def _let(self, seconds: float) -> None:
        """Let things happen."""
        self._world.run_until(self._world.now + seconds)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Let things happen while a condition holds."""
        deadline = self._world.now + _SECONDS_MAX
        if not self._world.look_while(condition, deadline, _LOOK_SECONDS):
            raise Violation("the cluster serves in bounded time", what)

    def _write(self, count: int) -> None:
        writer = _Writer(self._world, self._cluster, count)
        self._wait(lambda: writer.left > 0, f"{count} writes before or after a fork")

    def _compact(self) -> None:
        """Ask for a compaction, whose answer nobody waits for."""
        cluster, history = self._cluster, self._cluster.history
        request = CompactionRequest(revision=self._random.randint(2, history.revision))
        record = Record(0, "compact", 0, request, history.moment(), self._world.now)
        history.records.append(record)
        path, _ = METHODS[CompactionRequest]
        cluster.call(cluster.members[0], path, request.SerializeToString(), lambda _: None)

    def _go_back(self, survivor: Machine, revision: int) -> None:
        """Let all others be lost, and make a new cluster of the one that was away."""
        cluster = self._cluster
        for machine in cluster.standing():
            if machine is not survivor:
                machine.has_left = True
                machine.wipe()
        for service in self._fleet.services:
            if isinstance(service, Children):
                # They were on the machines that are lost.
                service.kill()
        cluster.members[:] = [survivor.number]
        cluster.fork()
        self._fleet.fork(revision)
        survivor.config = replace(survivor.config, force_new_cluster=True)
        survivor.start()
        self._wait(lambda: not _leads(survivor), f"{survivor.name} was to be a cluster of its own")
        survivor.config = replace(survivor.config, force_new_cluster=False)


def _leads(machine: Machine) -> bool:
    return machine.member is not None and machine.member.is_leader
