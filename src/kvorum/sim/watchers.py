"""Clients that watch a range of keys and must not miss, repeat or mix up an event.

A watcher that lost its connection continues after its last revision, at another member, which may
lag behind that revision. Sometimes it stops reading for a while, so that the member must hold
events back. `kvorum.sim.watch_checks` compares its responses with the history.
"""

from random import Random
from typing import NamedTuple

from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import (
    WatchCreateRequest,
    WatchProgressRequest,
    WatchRequest,
    WatchResponse,
)
from kvorum.api.pb.mvccpb import Event
from kvorum.sim.calls import Calls
from kvorum.sim.history import History, is_in_range
from kvorum.sim.moments import Kind
from kvorum.sim.permissions import REFUSALS
from kvorum.sim.violation import Violation
from kvorum.sim.workloads import (
    ETCD,
    KEY_PREFIX,
    KEY_PREFIX_END,
    KUBERNETES,
    OBJECT_PREFIX,
    OBJECT_PREFIX_END,
    Workload,
)
from kvorum.sim.world import World
from kvorum.state.mvcc.keyvalue import key_of

PATH = "/etcdserverpb.Watch/Watch"
EVERYTHING = b"\0"


class Got(NamedTuple):
    """A response of a watch: its events, or a revision up to which everything was sent."""

    revision: int
    events: tuple[Event, ...]
    wanted: int
    """The first revision that the watcher wanted at that time."""
    connection: int
    """The number of the watcher's connection that brought the response."""


class Watcher:
    """One watcher, over all its connections."""

    __slots__ = (
        "_call",
        "_fragments",
        "_history",
        "_member",
        "_random",
        "_streams",
        "_world",
        "connections",
        "end",
        "filters",
        "first",
        "got",
        "has_prev_kv",
        "is_created",
        "is_fragmented",
        "is_patient",
        "is_stopped",
        "key",
        "name",
        "next",
        "skipped",
    )

    def __init__(
        self, world: World, streams: Calls, history: History, workload: Workload, number: int
    ) -> None:
        self._world = world
        self._streams = streams
        self._history = history
        self.name = f"w{number}"
        self._random: Random = world.stream(f"watcher {number}")
        random = self._random
        ranges = [(EVERYTHING, EVERYTHING)]
        if ETCD in workload.shapes:
            single = KEY_PREFIX + b"%02d" % random.randrange(workload.keys)
            ranges += [(KEY_PREFIX, KEY_PREFIX_END), (single, b"")]
        if KUBERNETES in workload.shapes:
            ranges.append((OBJECT_PREFIX, OBJECT_PREFIX_END))
        self.key, self.end = random.choice(ranges)
        self.has_prev_kv = random.random() < 0.5
        self.is_fragmented = random.random() < 0.3
        # Kinds of events that the watcher does not want.
        self.filters: list[int] = random.choice([[], [], [], [Event.PUT], [Event.DELETE]])
        # The lowest revision of the next event; 0 until it is known.
        self.next = random.choice([0, 1, 1, 5, 30])
        self.first = self.next
        self.got: list[Got] = []
        # Revisions that were compacted before this watcher saw them: from, to.
        self.skipped: list[tuple[int, int]] = []
        self.connections = 0
        self.is_created = False
        self.is_stopped = False
        # Whether it keeps a stream for as long as the stream lasts.
        self.is_patient = False
        self._member = 0
        self._call: int | None = None
        self._fragments: list[Event] = []

    def start(self) -> None:
        """Connect soon."""
        self._world.after(self._random.uniform(0.0, 4.0), self.connect)

    def connect(self) -> None:
        """Open a stream, and watch from the next revision on."""
        if self.is_stopped or self._call is not None:
            return
        member = self._random.choice(self._streams.members)
        if not self._streams.stays(self.name, self._member):
            self._member = member
        self.is_created = False
        self._fragments = []
        self.connections += 1
        call = -1

        def ended(result: bytes | Status | None) -> None:
            if self._call == call:
                self._lost(result)

        def message(data: bytes) -> None:
            if self._call == call:
                self._received(data)

        call = self._call = self._streams.open_stream(self._member, PATH, ended, message)
        create = WatchCreateRequest(
            key=self.key,
            range_end=self.end,
            start_revision=self.next,
            prev_kv=self.has_prev_kv,
            fragment=self.is_fragmented,
            progress_notify=True,
            filters=self.filters,  # type: ignore[arg-type]
        )
        self.line(f"watch at m{self._member} from {self.next}", Kind.WATCH_BEGUN)
        self._streams.send(
            self._member, call, WatchRequest(create_request=create).SerializeToString()
        )
        self._world.after(self._random.expovariate(0.5), self._disturb, call)

    def line(self, what: str, kind: Kind) -> None:
        """Add a line to the trace and to pictures."""
        if self._world.trace is not None:
            self._world.trace.line(self._world.now, self.name, what, kind)

    def _disturb(self, call: int) -> None:
        """Hang up, ask for progress, or stop reading for a while."""
        if self.is_stopped or self._call != call:
            return
        choice = self._random.random()
        if choice < 0.3 and not self.is_patient:
            self.line("hangs up", Kind.WATCH_ENDED)
            self.hang_up()
            self._reconnect()
            return
        if choice < 0.6:
            request = WatchRequest(progress_request=WatchProgressRequest())
            self._streams.send(self._member, call, request.SerializeToString())
        elif choice < 0.8:
            self._streams.stall(self._member, call, self._random.uniform(0.1, 2.0))
        self._world.after(self._random.expovariate(0.5), self._disturb, call)

    def hang_up(self) -> None:
        """End the stream, if there is one."""
        if self._call is not None:
            call, self._call = self._call, None
            self._streams.hang_up(self._member, call)

    def leave_removed(self) -> None:
        """Continue at a current member if this one was removed: it may get no more events."""
        if self._call is not None and self._member not in self._streams.members:
            self.line("leaves a removed member", Kind.WATCH_ENDED)
            self.hang_up()
            self._reconnect()

    def _lost(self, result: bytes | Status | None) -> None:
        self._call = None
        self.line("lost" if result is None else f"ended {result!r}", Kind.WATCH_ENDED)
        self._reconnect()

    def _reconnect(self) -> None:
        self._world.after(self._random.uniform(0.01, 0.5), self.connect)

    def _received(self, data: bytes) -> None:
        response = WatchResponse.FromString(data)
        revision = response.header.revision
        if response.created:
            if response.canceled:
                self._refused(response.cancel_reason)
                return
            self.is_created = True
            if self.next == 0:
                self.next = self.first = revision + 1
            self.line(f"created at revision {revision}", Kind.WATCH_GOT)
        elif response.canceled:
            self._cancelled(response)
        elif not self.is_created:
            self.violate("reliable", "got something before it was created")
        else:
            self._take(response, revision)

    def _refused(self, reason: str) -> None:
        """Reconnect if the refusal is about the caller; other checks judge whether it is right."""
        if not any(each in reason for each in REFUSALS):
            self.violate("reliable", f"was refused: {reason}")
        self.line(f"refused: {reason}", Kind.WATCH_ENDED)
        self.hang_up()
        self._reconnect()

    def violate(self, promise: str, text: str) -> None:
        """Raise that one of the nine promises of a watch was broken."""
        raise Violation(f"watch: {promise}", f"{self.name} {text}")

    def _cancelled(self, response: WatchResponse) -> None:
        compacted = response.compact_revision
        self.line(f"cancelled, compacted {compacted}", Kind.WATCH_ENDED)
        # A watch from the compacted revision itself still gets everything.
        if compacted <= self.next:
            self.violate(
                "reliable",
                f"wants {self.next} and was cancelled at compaction {compacted}: "
                f"{response.cancel_reason}",
            )
        self.hang_up()
        self.compacted(compacted)

    def compacted(self, revision: int) -> None:
        """Continue at the compacted revision."""
        self.skipped.append((self.next, revision - 1))
        self.next = revision
        self._reconnect()

    def _take(self, response: WatchResponse, revision: int) -> None:
        self._fragments += response.events
        if response.fragment:
            # The rest of the response follows; if the connection breaks, all of it comes again.
            return
        events, self._fragments = tuple(self._fragments), []
        self.got.append(Got(revision, events, self.next, self.connections))
        if not events:
            self.line(f"progress {revision}", Kind.WATCH_GOT)
            # Everything up to there was sent: the next connection begins after it.
            self.next = max(self.next, revision + 1)
            return
        mains = [event.kv.mod_revision for event in events]
        what = f"got {len(mains)} events {mains[0]}..{mains[-1]} at {revision}"
        self.line(what, Kind.WATCH_GOT)
        self.take(events)
        self.next = max(self.next, mains[-1] + 1)

    def take(self, events: tuple[Event, ...]) -> None:
        """Take events; subclasses that do more than collect them override this."""

    def is_complete(self) -> bool:
        """Return whether every event up to the last revision has arrived."""
        history = self._history
        wanted = any(
            self.wants(row)
            for main in range(max(self.next, 2), history.revision + 1)
            for row in history.effects.get(main, ())
        )
        return self.is_created and not wanted

    def wants(self, row: tuple[int, bytes]) -> bool:
        """Return whether a row of the history is an event for this watcher."""
        kind = Event.DELETE if row[0] & 1 else Event.PUT
        return kind not in self.filters and is_in_range(key_of(row[1]), self.key, self.end)
