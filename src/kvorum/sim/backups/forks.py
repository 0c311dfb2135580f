"""Fork a cluster: force a new one from a member that lacks writes the others had committed.

Forcing a new cluster is an operator's last resort and loses those writes, so a run forks only after
all its other checks. The archives then hold revisions that the new cluster never had and writes
again with other content; a backup must not combine the two.
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
"""Limit for each of the steps."""
_CHECK_SECONDS = 0.05
_RETRY_SECONDS = 0.1
_LOST_MAX = 12
"""At most this many writes are missing on the survivor."""
_MORE_MAX = 6
"""At most this many more writes follow the fork than it lost."""


class _Writer:
    """Puts keys, one after the other, until the given number is acknowledged."""

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
    """The steps of a fork."""

    def __init__(self, world: World, cluster: Cluster, fleet: BackupFleet) -> None:
        self._world = world
        self._cluster = cluster
        self._fleet = fleet
        self._random = world.stream("fork")

    def run(self) -> None:
        """Make the cluster lose writes that were backed up, and continue; then check archives."""
        cluster, random = self._cluster, self._random
        recorders = [each for each in self._fleet.services if isinstance(each, Recorder)]
        for service in self._fleet.services:
            service.resume()
        followers = [each for each in cluster.standing() if not _leads(each)]
        survivor = random.choice(followers)
        self._run_for(random.uniform(0.0, 3.0))
        assert survivor.member is not None
        revision = survivor.member.state.store.revision
        survivor.crash(power_cut=False)
        lost = random.randint(1, _LOST_MAX)
        self._write(lost)
        self._run_for(random.uniform(0.0, 2.0))
        if random.random() < 0.3:
            self._compact()
        for recorder in recorders:
            # When two programs share an archive, the one that missed the fork may write last, and
            # its records then differ until the next snapshot is compared with them.
            if random.random() < 0.6 and not self._fleet.is_shared:
                recorder.cut_off(random.uniform(0.3, 4.0))
            elif random.random() < 0.5 or self._fleet.is_shared:
                recorder.kill()
        self._go_back(survivor, revision)
        self._write(random.randint(0, lost + _MORE_MAX))
        if random.random() < 0.3:
            self._compact()
        self._run_for(random.uniform(0.0, 3.0))
        self._fleet.calm_down()
        self._fleet.expect_quiet(cluster.members)

    def _run_for(self, seconds: float) -> None:
        """Run the world for this many seconds."""
        self._world.run_until(self._world.now + seconds)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Run the world while a condition holds; raise Violation if it holds for too long."""
        deadline = self._world.now + _SECONDS_MAX
        if not self._world.run_while_polling(condition, deadline, _CHECK_SECONDS):
            raise Violation("the cluster serves in bounded time", what)

    def _write(self, count: int) -> None:
        writer = _Writer(self._world, self._cluster, count)
        self._wait(lambda: writer.left > 0, f"{count} writes before or after a fork")

    def _compact(self) -> None:
        """Send a compaction and ignore its answer."""
        cluster, history = self._cluster, self._cluster.history
        request = CompactionRequest(revision=self._random.randint(2, history.revision))
        record = Record(0, "compact", 0, request, history.moment(), self._world.now)
        history.records.append(record)
        path, _ = METHODS[CompactionRequest]
        cluster.call(cluster.members[0], path, request.SerializeToString(), lambda _: None)

    def _go_back(self, survivor: Machine, revision: int) -> None:
        """Destroy all other members, and force a new cluster from the survivor."""
        cluster = self._cluster
        for machine in cluster.standing():
            if machine is not survivor:
                machine.has_left = True
                machine.wipe()
        for service in self._fleet.services:
            if isinstance(service, Children):
                # These children ran on the lost machines.
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
