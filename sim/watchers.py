"""Clients that watch a range of keys and never want to miss, repeat or mix up an event.

A watcher that lost its connection goes on at the revision after the last one it saw, at another
member, which may not have got that far. Sometimes it takes nothing for a while, so that the
member must hold it back. What it got is compared with the history of effects in the end.
"""

from random import Random
from typing import Protocol

from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import (
    WatchCreateRequest,
    WatchProgressRequest,
    WatchRequest,
    WatchResponse,
)
from kvorum.api.pb.mvccpb import Event
from kvorum.mvcc.keyvalue import key_of
from sim.clients import KEY_PREFIX, KEY_PREFIX_END, Calls, Workload
from sim.history import History
from sim.violation import Violation
from sim.world import World

PATH = "/etcdserverpb.Watch/Watch"
GUARANTEE = "watch"


class Streams(Calls, Protocol):
    """How watchers reach members: as other clients, and they may stop taking."""

    def stall(self, member: int, call: int, seconds: float) -> None:
        """Take nothing from a stream for a while."""

    def hang_up(self, member: int, call: int) -> None:
        """Break a stream off."""


class Watcher:
    """One watcher; the same one over all its connections."""

    __slots__ = (
        "_call",
        "_history",
        "_member",
        "_random",
        "_streams",
        "_world",
        "end",
        "events",
        "first",
        "is_created",
        "is_stopped",
        "key",
        "name",
        "next",
        "prev_kv",
        "progress",
        "skipped",
    )

    def __init__(
        self, world: World, streams: Streams, history: History, workload: Workload, number: int
    ) -> None:
        self._world = world
        self._streams = streams
        self._history = history
        self._random: Random = world.stream(f"watcher {number}")
        random = self._random
        self.name = f"w{number}"
        self.key, self.end = KEY_PREFIX, KEY_PREFIX_END
        if random.random() < 0.4:
            self.key, self.end = KEY_PREFIX + b"%02d" % random.randrange(workload.keys), b""
        self.prev_kv = random.random() < 0.5
        # The revision of the next event at the least; 0 until it is known.
        self.next = random.choice([0, 1, 1, 5])
        self.first = self.next
        self.events: list[Event] = []
        # Revisions told to be complete, and how many events had come by then.
        self.progress: list[tuple[int, int]] = []
        # Revisions that were compacted before this watcher got to see them: from, to.
        self.skipped: list[tuple[int, int]] = []
        self.is_created = False
        self.is_stopped = False
        self._member = random.choice(streams.members)
        self._call: int | None = None

    def start(self) -> None:
        """Begin soon."""
        self._world.after(self._random.uniform(0.0, 4.0), self._connect)

    def _connect(self) -> None:
        if self.is_stopped or self._call is not None:
            return
        self._member = self._random.choice(self._streams.members)
        self.is_created = False
        call = -1

        def ended(result: bytes | Status | None) -> None:
            if self._call == call:
                self._lost(result)

        def message(data: bytes) -> None:
            if self._call == call:
                self._received(data)

        call = self._call = self._streams.open_stream(self._member, PATH, ended, message)
        create = WatchCreateRequest(
            key=self.key, range_end=self.end, start_revision=self.next, prev_kv=self.prev_kv
        )
        self._line(f"watch at m{self._member} from {self.next}")
        self._streams.send(
            self._member, call, WatchRequest(create_request=create).SerializeToString()
        )
        self._world.after(self._random.expovariate(0.5), self._disturb, call)

    def _line(self, what: str) -> None:
        if self._world.trace is not None:
            self._world.trace.line(self._world.now, self.name, what)

    def _disturb(self, call: int) -> None:
        """Do what clients do now and then."""
        if self.is_stopped or self._call != call:
            return
        choice = self._random.random()
        if choice < 0.3:
            self._line("hangs up")
            self._streams.hang_up(self._member, call)
            self._lost(None)
            return
        if choice < 0.6:
            request = WatchRequest(progress_request=WatchProgressRequest())
            self._streams.send(self._member, call, request.SerializeToString())
        elif choice < 0.8:
            self._streams.stall(self._member, call, self._random.uniform(0.1, 2.0))
        self._world.after(self._random.expovariate(0.5), self._disturb, call)

    def _lost(self, result: bytes | Status | None) -> None:
        self._call = None
        self._line("lost" if result is None else f"ended {result!r}")
        self._world.after(self._random.uniform(0.01, 0.5), self._connect)

    def _received(self, data: bytes) -> None:
        response = WatchResponse.FromString(data)
        revision = response.header.revision
        if response.created:
            if response.canceled:
                raise Violation(GUARANTEE, f"{self.name} was refused: {response.cancel_reason}")
            self.is_created = True
            if self.next == 0:
                self.next = self.first = revision + 1
            self._line(f"created at revision {revision}")
            return
        if response.canceled:
            self._line(f"cancelled, compacted {response.compact_revision}")
            if response.compact_revision < self.next:
                raise Violation(
                    GUARANTEE,
                    f"{self.name} wants {self.next} and was cancelled at compaction "
                    f"{response.compact_revision}: {response.cancel_reason}",
                )
            self.skipped.append((self.next, response.compact_revision - 1))
            self.next = response.compact_revision
            assert self._call is not None
            self._streams.hang_up(self._member, self._call)
            self._lost(None)
            return
        if not self.is_created:
            raise Violation(GUARANTEE, f"{self.name} got events before it was created")
        if not response.events:
            self._line(f"progress {revision}")
            self.progress.append((revision, len(self.events)))
            return
        self._take(response, revision)

    def _take(self, response: WatchResponse, revision: int) -> None:
        mains = [event.kv.mod_revision for event in response.events]
        self._line(f"got {len(mains)} events {mains[0]}..{mains[-1]} at {revision}")
        if mains[0] < self.next:
            raise Violation(
                GUARANTEE, f"{self.name} got {mains[0]}, which is before {self.next}: repeated"
            )
        if mains != sorted(mains):
            raise Violation(GUARANTEE, f"{self.name} got events out of order: {mains}")
        if mains[-1] > revision:
            raise Violation(GUARANTEE, f"{self.name} got {mains[-1]} under header {revision}")
        self.events += response.events
        self.next = mains[-1] + 1

    # In the end.

    def is_complete(self) -> bool:
        """Return whether everything up to the last revision has come."""
        history = self._history
        wanted = [
            main
            for main in range(max(self.next, 2), history.revision + 1)
            for row in history.effects.get(main, ())
            if self._watches(key_of(row[1]))
        ]
        return self.is_created and not wanted

    def _watches(self, key: bytes) -> bool:
        return KEY_PREFIX <= key < KEY_PREFIX_END if self.end else key == self.key

    def check(self) -> None:
        """Compare what came with the history."""
        if not self.first:
            return
        history = self._history
        expected = [
            row
            for row in history.changes(self.first, self.next - 1, self.key, self.end)
            if not any(low <= row[0] >> 32 <= high for low, high in self.skipped)
        ]
        # Of what was compacted while it was away, it may have got the part before.
        events = [
            event
            for event in self.events
            if not any(low <= event.kv.mod_revision <= high for low, high in self.skipped)
        ]
        for place, row in enumerate(expected):
            if place >= len(events):
                raise Violation(GUARANTEE, f"{self.name} missed revision {row[0] >> 32}")
            self._compare(events[place], row)
        if len(events) > len(expected):
            extra = events[len(expected)].kv
            raise Violation(GUARANTEE, f"{self.name} got {extra.key!r}@{extra.mod_revision}")
        for revision, count in self.progress:
            later = [each.kv.mod_revision for each in self.events[count:]]
            if later and later[0] <= revision:
                raise Violation(
                    GUARANTEE,
                    f"{self.name} was told that {revision} is complete, then got {later[0]}",
                )

    def _compare(self, event: Event, row: tuple[int, bytes]) -> None:
        main, kv = row[0] >> 32, row[1]
        is_delete = bool(row[0] & 1)
        text = f"{self.name} got {event!r} where revision {main} has {kv!r}"
        if is_delete != (event.type == Event.DELETE) or event.kv.mod_revision != main:
            raise Violation(GUARANTEE, text)
        if event.kv.key != key_of(kv):
            raise Violation(GUARANTEE, text)
        if not is_delete and event.kv.SerializeToString() != kv:
            raise Violation(GUARANTEE, text)
        if self.prev_kv and event.HasField("prev_kv"):
            before = self._history.at(event.kv.key, main - 1)
            if before is None or event.prev_kv.SerializeToString() != before:
                raise Violation(GUARANTEE, f"{text}; before it was {before!r}")
        elif event.HasField("prev_kv"):
            raise Violation(GUARANTEE, f"{text}; nobody asked for the value before")
