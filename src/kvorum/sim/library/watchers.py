"""Library users that watch: however streams break, they must receive every event exactly once.

They never see a stream because the library resumes watches. They take events late, so that the
library parks their watch, and sometimes end a watch and start another where it stopped.
"""

from kvorum.api.pb.mvccpb import Event, KeyValue
from kvorum.client import values
from kvorum.client.aio.client import AsyncWatch
from kvorum.client.endpoints import parse_endpoint
from kvorum.client.errors import ClosedError, KvorumError, WatchCompactedError
from kvorum.client.values import Changes, EventKind
from kvorum.sim.calls import Calls
from kvorum.sim.history import History
from kvorum.sim.library.shell import Shell, SimulatedClient
from kvorum.sim.library.tasks import Task
from kvorum.sim.moments import Kind
from kvorum.sim.watchers import EVERYTHING, Got, Watcher
from kvorum.sim.workloads import Workload
from kvorum.sim.world import World

FIRST_NUMBER = 3000


class LibraryWatcher(Watcher):
    """One watcher; it stays the same over all its watches."""

    __slots__ = ("_client", "_is_served", "_slow_chance", "shell")

    def __init__(
        self,
        world: World,
        streams: Calls,
        history: History,
        workload: Workload,
        number: int,
        shell: Shell,
    ) -> None:
        super().__init__(world, streams, history, workload, FIRST_NUMBER + number)
        self.name = shell.process.name
        self.shell = shell
        self._client = SimulatedClient(shell)
        self._slow_chance = self._random.choice([0.0, 0.1, 0.5])
        # Whether a call was answered after faults had ended.
        self._is_served = False

    def start(self) -> None:
        """Do nothing: the fleet runs `run` as a task."""

    async def run(self) -> None:
        """Watch again and again until stopped."""
        await self.shell.sleep(self._random.uniform(0.0, 2.0))
        while not self.is_stopped:
            watch = self._begin()
            try:
                await self._follow(watch)
            except WatchCompactedError as error:
                self.line(f"{error}", Kind.WATCH_ENDED)
                # A watch from the compacted revision itself still gets everything.
                if error.compacted <= self.next:
                    self.violate("reliable", f"wants {self.next}, and is told: {error}")
                self.skipped.append((self.next, error.compacted - 1))
                self.next = error.compacted
            except ClosedError:
                return
            except KvorumError as error:
                self.violate("reliable", f"wants {self.next}, and its watch ended: {error!r}")
            finally:
                await watch.close()

    def _begin(self) -> AsyncWatch:
        self.connections += 1
        self.line(f"watches from {self.next}", Kind.WATCH_BEGUN)
        is_single = not self.end
        everything = self.key == EVERYTHING
        return self._client.watch(
            None if everything else self.key,
            from_key=self.key if everything else None,
            end=None if everything or is_single else self.end,
            revision=self.next,
            previous=self.has_prev_kv,
            progress=self.is_fragmented,
            puts=Event.PUT not in self.filters,
            deletes=Event.DELETE not in self.filters,
        )

    async def _follow(self, watch: AsyncWatch) -> None:
        """Read changes for a while; after faults have ended, until the client closes."""
        random = self._random
        started = await watch.wait_started()
        if not self.next:
            self.next = self.first = started
        self.is_created = True
        ends_at = self._world.now + random.expovariate(0.3)
        while self._world.now < ends_at or self._is_peace():
            changes = await watch.changes()
            self._note_changes(changes)
            if random.random() < self._slow_chance and not self._is_peace():
                await self.shell.sleep(random.uniform(0.0, 1.0))
            if random.random() < 0.1:
                with self.shell.turn():
                    self.shell.watching.request_progress()

    def _is_peace(self) -> bool:
        return self._world.now >= self.shell.process.peace_at

    def _note_changes(self, changes: Changes) -> None:
        events = tuple(map(_message, changes.events))
        self.got.append(Got(changes.revision, events, self.next, self.connections))
        what = f"got {len(events)} events" if events else "progress"
        self.line(f"{what} up to {changes.revision}", Kind.WATCH_GOT)
        self.next = max(self.next, changes.revision + 1)

    def leave_removed(self) -> None:
        """Use only the current members, and make a call, which must be answered as well."""
        urls = [parse_endpoint(f"m{member}:2379") for member in self._streams.members]
        self.shell.set_endpoints(urls)
        Task(self._world, self.shell.process, self._ask())

    async def _ask(self) -> None:
        while not self._is_served:
            try:
                await self._client.get(self.key)
                self._is_served = True
            except ClosedError:
                return
            except KvorumError as error:
                self.line(f"is not served: {error}", Kind.WATCH_ENDED)
                await self.shell.sleep(0.1)

    def is_complete(self) -> bool:
        """Return whether all events have arrived and a call was answered."""
        return self._is_served and super().is_complete()

    def hang_up(self) -> None:
        """Close the client."""
        self.shell.end()


def _message(event: values.Event) -> Event:
    """Convert the library's event back to its protobuf message."""
    kind = Event.PUT if event.kind is EventKind.PUT else Event.DELETE
    message = Event(type=kind, kv=_key_value(event.kv))
    if event.previous is not None:
        message.prev_kv.CopyFrom(_key_value(event.previous))
    return message


def _key_value(found: values.KeyValue) -> KeyValue:
    return KeyValue(**found._asdict())
