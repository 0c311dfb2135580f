"""Caches as Kubernetes has them: they list objects, and watch from that revision on.

After every response the cache must be the state of some revision, which is checked at the end.
When a compaction prevents resuming the watch, the cache lists again.
"""

from kvorum.api.pb.etcdserverpb import RangeRequest
from kvorum.api.pb.mvccpb import Event
from kvorum.sim.calls import Caller, Calls, PlannedRequest
from kvorum.sim.history import History, Record
from kvorum.sim.violation import Violation
from kvorum.sim.watchers import Watcher
from kvorum.sim.workloads import OBJECT_PREFIX, OBJECT_PREFIX_END, Workload
from kvorum.sim.world import World

PATIENCE = 2.0
FIRST_NUMBER = 2000


class Reflector(Watcher):
    """One cache of all objects."""

    __slots__ = ("_caller", "_objects", "states")

    def __init__(
        self, world: World, calls: Calls, history: History, workload: Workload, number: int
    ) -> None:
        super().__init__(world, calls, history, workload, FIRST_NUMBER + number)
        self.name = f"r{number}"
        self.key, self.end = OBJECT_PREFIX, OBJECT_PREFIX_END
        self.filters = []
        self.is_fragmented = False
        self._caller = Caller(world, calls, history, FIRST_NUMBER + number, self.name)
        self._objects: dict[bytes, bytes] = {}
        # Revisions, and the contents of the cache at each.
        self.states: list[tuple[int, dict[bytes, bytes]]] = []
        self.first = self.next = 0

    def start(self) -> None:
        """List soon."""
        self._world.after(self._random.uniform(0.0, 4.0), self._list)

    def _list(self) -> None:
        if self.is_stopped:
            return
        serializable = self._random.random() < 0.3
        request = RangeRequest(key=self.key, range_end=self.end, serializable=serializable)
        self._caller.ask(
            PlannedRequest("list", request, (), not serializable), PATIENCE, self._listed
        )

    def _listed(self, record: Record) -> None:
        if not record.is_answered:
            self._world.after(0.1, self._list)
            return
        revision = record.response.header.revision
        if revision + 1 < self.next:
            # The member lags behind the data that the cache has seen: list again later.
            self._world.after(0.1, self._list)
            return
        self._objects = {kv.key: kv.SerializeToString() for kv in record.response.kvs}
        self.states.append((revision, dict(self._objects)))
        if self.next:
            self.skipped.append((self.next, revision))
        else:
            self.first = revision + 1
        self.next = revision + 1
        self.connect()

    def compacted(self, revision: int) -> None:
        """List again."""
        del revision
        self._world.after(self._random.uniform(0.01, 0.3), self._list)

    def leave_removed(self) -> None:
        """List at another member, too, if this one was removed."""
        super().leave_removed()
        if self._caller.member not in self._streams.members:
            self._caller.member = self._random.choice(self._streams.members)

    def take(self, events: tuple[Event, ...]) -> None:
        """Apply the events to the cache."""
        for event in events:
            if event.type == Event.DELETE:
                self._objects.pop(event.kv.key, None)
            else:
                self._objects[event.kv.key] = event.kv.SerializeToString()
        self.states.append((events[-1].kv.mod_revision, dict(self._objects)))

    def check_states(self) -> None:
        """Require that the cache was always the state of its revision."""
        for revision, objects in self.states:
            expected = self._history.range_at(self.key, self.end, revision)
            if [objects[key] for key in sorted(objects)] != expected:
                raise Violation(
                    "caches are states of the store",
                    f"{self.name} had {sorted(objects)!r} at revision {revision}, where there "
                    f"was {expected!r}",
                )
