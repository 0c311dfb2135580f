"""A store with a watch hub, beside a model that knows every event ever, and clients that check.

The model is a list of the events of all revisions and the state after each. A client keeps for each
of its watchers the next revision it may receive. Whatever it receives must be exactly what the
model has from there up to the response's revision: so nothing is lost, repeated, reordered or
split, and no progress overtakes events, or the next response does not fit.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvorum.api.codec import HeaderEncoder
from kvorum.api.limits import PRODUCTION, WorkLimits
from kvorum.api.pb.etcdserverpb import WatchResponse
from kvorum.api.pb.mvccpb import Event, KeyValue
from kvorum.state.mvcc.restore import restore_store
from kvorum.state.mvcc.store import Store
from kvorum.state.mvcc.watch import WatchHub, WatchStream
from kvorum.state.mvcc.watch import hub as hub_module
from kvorum.storage.backend import open_backend
from kvorum.storage.backend.memory import MemoryEnvironments
from kvorum.storage.files.memory import MemoryFiles

Put = tuple[bytes, bytes]
Delete = tuple[bytes, bytes, None]
Operation = Put | Delete
"""(key, value), or (key, range_end, None)."""

PROGRESS_SECONDS = 10.0


@contextmanager
def exact_fragments() -> Iterator[None]:
    """Let responses have as many bytes as requests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub_module, "FRAGMENT_OVERHEAD_BYTES", 0)
        yield


def is_in(key: bytes, begin: bytes, range_end: bytes) -> bool:
    begin = begin or b"\0"
    if not range_end:
        return key == begin
    return begin <= key and (range_end == b"\0" or key < range_end)


class Model:
    """Every event ever, in revision order, and the state after every revision."""

    def __init__(self) -> None:
        self.revision = 1
        self.compacted = -1
        self.events: dict[int, list[Event]] = {}
        self.states: dict[int, dict[bytes, KeyValue]] = {1: {}}

    def commit(self, operations: list[Operation]) -> None:
        main = self.revision + 1
        state = dict(self.states[self.revision])
        events = []
        for operation in operations:
            if len(operation) == 2:
                key, value = operation
                old = state.get(key)
                state[key] = KeyValue(
                    key=key,
                    value=value,
                    create_revision=main if old is None else old.create_revision,
                    mod_revision=main,
                    version=1 if old is None else old.version + 1,
                )
                events.append(Event(kv=state[key]))
            else:
                for key in sorted(key for key in state if is_in(key, *operation[:2])):
                    del state[key]
                    deleted = KeyValue(key=key, mod_revision=main)
                    events.append(Event(type=Event.DELETE, kv=deleted))
        if events:
            self.revision = main
            self.events[main] = events
            self.states[main] = state

    def between(self, watch: "Watch", first: int, last: int) -> list[Event]:
        """Return what a watcher has to be sent of these revisions."""
        return [
            event
            for main in range(max(first, 2), last + 1)
            for event in self.events.get(main, [])
            if is_in(event.kv.key, watch.key, watch.range_end) and event.type not in watch.filters
        ]

    def value_before(self, event: Event) -> KeyValue | None:
        return self.states[event.kv.mod_revision - 1].get(event.kv.key)


@dataclass(eq=False)
class Watch:
    """A client's watcher."""

    watch_id: int
    key: bytes
    range_end: bytes
    start: int
    next: int
    filters: tuple[int, ...] = ()
    prev_kv: bool = False
    fragment: bool = False
    progress_notify: bool = False
    is_ended: bool = False
    gathered: list[Event] = field(default_factory=list)
    received: int = 0
    header_revision: int = 0


class Client:
    """One stream, seen from its client: knows what it asked and checks what it gets."""

    def __init__(self, world: "World", stream: WatchStream) -> None:
        self.world = world
        self.stream = stream
        self.watches: dict[int, Watch] = {}
        self.used: set[int] = set()  # ids, including those of watches that are being cancelled
        self.next_id = 0
        self.answers: deque[Callable[[WatchResponse], None]] = deque()
        self.is_paused = False
        self.progress_seen = 0

    def create(
        self,
        key: bytes,
        range_end: bytes = b"",
        start: int = 0,
        watch_id: int = 0,
        filters: tuple[int, ...] = (),
        *,
        prev_kv: bool = False,
        fragment: bool = False,
        progress_notify: bool = False,
    ) -> None:
        revision = self.world.model.revision
        requested = watch_id
        reason = ""
        if start < 0:
            reason = "etcdserver: mvcc: required revision has been compacted"
        elif range_end not in (b"", b"\0") and (key or b"\0") >= range_end:
            reason = "mvcc: watcher range is empty"
        elif watch_id in self.used and watch_id != 0:
            reason = "mvcc: duplicate watch ID provided on the WatchStream"
        if reason:

            def refused(response: WatchResponse) -> None:
                assert response.created and response.canceled and response.watch_id == -1
                assert response.cancel_reason == reason and not response.compact_revision
                assert response.header.revision == revision

            self.answers.append(refused)
        else:
            if watch_id == 0:
                while self.next_id in self.used:
                    self.next_id += 1
                watch_id = self.next_id
                self.next_id += 1
            self.used.add(watch_id)
            first = start or revision + 1
            watch = Watch(watch_id, key, range_end, start, first, filters, prev_kv, fragment)
            watch.progress_notify = progress_notify

            def created(response: WatchResponse) -> None:
                assert response.created and not response.canceled
                assert response.watch_id == watch.watch_id
                assert response.header.revision == revision
                self.watches[watch.watch_id] = watch

            self.answers.append(created)
        self.stream.create(
            key,
            range_end,
            start,
            watch_id=requested,
            filters=filters,
            prev_kv=prev_kv,
            fragment=fragment,
            progress_notify=progress_notify,
        )

    def cancel(self, watch_id: int) -> None:
        if watch_id in self.used:
            self.used.remove(watch_id)
            revision = self.world.model.revision

            def canceled(response: WatchResponse) -> None:
                assert response.canceled and not response.created
                assert response.watch_id == watch_id and not response.compact_revision
                assert response.header.revision == revision
                watch = self.watches.pop(watch_id)
                assert not watch.gathered

            self.answers.append(canceled)
        self.stream.cancel(watch_id)

    def receive(self, data: bytes) -> None:
        response = WatchResponse.FromString(data)
        assert response.SerializeToString(deterministic=True) == data
        header = response.header
        assert (header.cluster_id, header.member_id, header.raft_term) == (1 << 63, 77, 5)
        assert header.revision <= self.world.model.revision
        if response.compact_revision:
            self._end(response)
        elif response.created or response.canceled:
            self.answers.popleft()(response)
        elif response.events:
            assert not self.is_paused
            self._take_events(self.watches[response.watch_id], response)
        else:
            self._take_progress(response)

    def _end(self, response: WatchResponse) -> None:
        watch = self.watches[response.watch_id]
        assert response.canceled and not response.cancel_reason and not response.created
        assert response.header.revision == 0
        assert watch.next < response.compact_revision <= self.world.model.compacted
        assert not watch.is_ended and not watch.gathered
        watch.is_ended = True

    def _take_events(self, watch: Watch, response: WatchResponse) -> None:
        assert not watch.is_ended
        assert response.fragment <= watch.fragment
        if response.fragment:
            assert len(response.events) == 1 or response.ByteSize() < self.world.fragment_bytes
        watch.gathered += response.events
        if response.fragment:
            return
        events, watch.gathered = watch.gathered, []
        model = self.world.model
        last = events[-1].kv.mod_revision
        expected = model.between(watch, watch.next, last)
        for event in events:
            self._check_value_before(watch, event)
            event.ClearField("prev_kv")
        assert events == expected, f"{watch}: {events} instead of {expected}"
        assert (
            len({event.kv.mod_revision for event in events})
            <= self.world.limits.watch_history_rows_max
        )
        # Either the transaction's own revision, or the store's when it was read from history.
        assert last <= response.header.revision
        assert response.header.revision >= watch.header_revision
        watch.header_revision = response.header.revision
        watch.next = last + 1
        watch.received += len(events)

    def _check_value_before(self, watch: Watch, event: Event) -> None:
        before = self.world.model.value_before(event)
        if event.HasField("prev_kv"):
            assert watch.prev_kv and event.prev_kv == before
        elif watch.prev_kv and before is not None:
            assert event.kv.mod_revision - 1 < self.world.model.compacted
        if event.type == Event.PUT:
            is_create = event.kv.create_revision == event.kv.mod_revision
            assert is_create == (before is None)

    def _take_progress(self, response: WatchResponse) -> None:
        revision = response.header.revision
        if response.watch_id == -1 and -1 not in self.watches:
            concerned = list(self.watches.values())
        else:
            concerned = [self.watches[response.watch_id]]
            assert concerned[0].progress_notify
        assert concerned
        for watch in concerned:
            assert not watch.is_ended and watch.start <= revision
            missing = self.world.model.between(watch, watch.next, revision)
            assert not missing, f"progress {revision} came before {missing}"
            watch.next = max(watch.next, revision + 1)
        self.progress_seen += 1


class NoLeases:
    """No key has a lease here."""

    def attach(self, *_: Any, **__: Any) -> None:
        raise AssertionError

    def detach(self, *_: Any, **__: Any) -> None:
        raise AssertionError

    def reattach(self, *_: Any, **__: Any) -> bool:
        raise AssertionError

    def detach_all(self, keys: list[bytes]) -> None:
        pass

    def lease_of(self, key: bytes) -> int:  # noqa: ARG002
        return 0


class World:
    """The store, the hub, the model, and clients by call number."""

    def __init__(
        self, limits: WorkLimits = PRODUCTION, fragment_bytes: int = 2 << 20, seed: int = 0
    ) -> None:
        self.limits = limits
        self.fragment_bytes = fragment_bytes
        self.model = Model()
        self.clients: dict[int, Client] = {}
        self.next_call = 1
        self.now = 0.0
        files = MemoryFiles()
        files.make_directory("/database")
        self.files = files
        self.environments = MemoryEnvironments(files)
        self.backend = open_backend(files, self.environments, "/database")
        self.hub = self._new_hub(seed)
        self.store = restore_store(self.backend, NoLeases(), self.hub, self.limits)
        self.hub.history = self.store

    def _new_hub(self, seed: int) -> WatchHub:
        return WatchHub(
            HeaderEncoder(1 << 63, 77, 5),
            random.Random(seed),
            self.limits,
            request_bytes_max=self.fragment_bytes,
            progress_seconds=PROGRESS_SECONDS,
        )

    # Writing.

    def write(self, operations: list[Operation]) -> None:
        """Run one write transaction, as a put or as several changes."""
        self._write(self.store, operations)

    def _write(self, store: Store, operations: list[Operation]) -> None:
        self.model.commit(operations)
        if len(operations) == 1 and len(operations[0]) == 2:
            store.put(*operations[0], 0)
        else:
            transaction = store.begin()
            for operation in operations:
                if len(operation) == 2:
                    transaction.put(*operation, 0)
                else:
                    transaction.delete_range(*operation[:2])
            transaction.commit()
        assert store.revision == self.model.revision

    def compact(self, revision: int) -> None:
        if self.model.compacted < revision <= self.model.revision:
            self.model.compacted = revision
            self.store.compact(revision)

    def clear_compacted(self) -> None:
        """Run a step of the compaction's physical work."""
        job = self.store.compaction.step()
        if job is not None:
            self.store.compaction.take_hash(job, None)

    def flush(self) -> None:
        stage = self.backend.seal()
        if stage is not None:
            commit = self.backend.take_staged(stage.run(self.files, self.environments))
            self.backend.take_committed(commit.run(self.files, self.environments))
        self.backend.end_turn()

    def restore(self, batches: list[list[Operation]], compacted: int) -> None:
        """Exchange the store for one that is further: a snapshot was received."""
        self.flush()
        ahead = restore_store(self.backend, NoLeases(), self._new_hub(0), self.limits)
        for operations in batches:
            self._write(ahead, operations)
        if self.model.compacted < compacted <= self.model.revision:
            self.model.compacted = compacted
            ahead.compact(compacted)
        self.flush()
        self.store = restore_store(self.backend, NoLeases(), self.hub, self.limits)
        assert self.store.revision == self.model.revision
        self.hub.history = self.store
        self.hub.resync()

    # Watching.

    def open(self) -> Client:
        call = self.next_call
        self.next_call += 1
        client = self.clients[call] = Client(self, self.hub.open_stream(call))
        return client

    def close(self, client: Client) -> None:
        self.drain()
        client.stream.close()
        del self.clients[client.stream.call]

    def pause(self, client: Client, is_paused: bool) -> None:
        self.drain()
        client.is_paused = is_paused
        if is_paused:
            client.stream.pause()
        else:
            client.stream.resume()

    def drain(self) -> None:
        for call, data in self.hub.take_outgoing():
            self.clients[call].receive(data)

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.hub.tick(self.now)

    def settle(self) -> None:
        """Resume everything, finish the work, and check that nothing is missing."""
        for client in self.clients.values():
            self.pause(client, False)
        for _ in range(10_000):
            more = self.hub.step()
            self.drain()
            if not more and not self.hub.has_work:
                break
        else:
            raise AssertionError("the hub does not come to an end")
        model = self.model
        for client in self.clients.values():
            assert not client.answers
            assert client.used == set(client.watches)
            for watch in client.watches.values():
                assert watch.is_ended or not model.between(watch, watch.next, model.revision), watch
            seen = client.progress_seen
            client.stream.request_progress()
            self.drain()
            watches = client.watches.values()
            is_answered = bool(watches) and not any(
                watch.is_ended or watch.start > model.revision for watch in watches
            )
            assert client.progress_seen == seen + is_answered
