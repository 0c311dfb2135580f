"""What watches promise holds through a proxy, whatever happens between it, its clients and members.

Requests and answers are held back, connections break, clients do not read, history is compacted,
and one of two members lags behind. A naive model of each client's stream knows all of history and
checks every response.
"""

from collections import deque
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.mvccpb import Event
from kvorum.network.edge.interface import EdgeEventKind
from kvorum.proxy import watch
from tests.proxy.standing import ADDRESS, Standing
from tests.server.rpc.harness import Harness

LAGGING = "127.0.0.1:2"
WATCH = "/etcdserverpb.Watch/Watch"
KEYS = (b"a", b"b", b"c")
RANGES = ((b"a", b""), (b"b", b""), (b"a", b"c"), (b"", b"\0"))
STREAMS = 3
CHUNK_BYTES = 100
"""What a client does not take before it counts as slow."""

small = st.integers(0, 3)
steps = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(KEYS), st.integers(0, 100)),
    st.tuples(st.just("put"), st.sampled_from(KEYS), st.just(100)),
    st.tuples(st.just("delete"), st.sampled_from(KEYS)),
    st.tuples(st.just("txn"), st.sets(st.sampled_from(KEYS), min_size=2)),
    st.tuples(st.just("compact"), small),
    st.tuples(
        st.just("create"),
        st.integers(0, STREAMS - 1),
        st.sampled_from(RANGES),
        st.one_of(st.just(None), st.integers(-8, 2)),
        st.booleans(),
        st.sampled_from(((), (), (0,), (1,))),
    ),
    st.tuples(st.just("cancel"), st.integers(0, STREAMS - 1), small),
    st.tuples(st.just("progress"), st.integers(0, STREAMS - 1)),
    st.tuples(st.just("leave"), st.integers(0, STREAMS - 1)),
    st.tuples(st.just("arrive"), small),
    st.tuples(st.just("turn"), st.integers(0, 4)),
    st.tuples(st.just("turn"), st.integers(0, 4)),
    st.tuples(st.just("follow"), st.integers(0, 5)),
    st.tuples(st.just("settle")),
    st.tuples(st.just("lose"), st.sampled_from((None, ADDRESS, LAGGING))),
    st.tuples(st.just("wait"), st.sampled_from((0.02, 0.2, 11.0))),
    st.tuples(st.just("stall"), st.integers(0, STREAMS - 1)),
    st.tuples(st.just("read"), st.integers(0, STREAMS - 1)),
)


class History:
    """All events there ever were, from a stream of its own to the member."""

    def __init__(self, harness: Harness) -> None:
        self._stream = harness.open("Watch/Watch")
        create = pb.WatchCreateRequest(key=b"\0", range_end=b"\0", prev_kv=True)
        self._stream.send(pb.WatchRequest(create_request=create))
        self._store = harness.member.state.store
        self.events: list[Event] = []

    @property
    def revision(self) -> int:
        return self._store.revision

    @property
    def compacted(self) -> int:
        return self._store.compacted_revision

    def look(self) -> None:
        for response in self._stream.received():
            self.events += response.events

    def wanted(self, watcher: "Model") -> list[Event]:
        """Return what a watcher has to be told, from its start on."""
        return [
            event
            for event in self.events
            if event.kv.mod_revision >= watcher.first
            and watcher.contains(event.kv.key)
            and int(event.type) not in watcher.filters
        ]


class Model:
    """A watcher as its client knows it."""

    def __init__(self, request: pb.WatchCreateRequest, revision: int) -> None:
        self.key, self.range_end = request.key or b"\0", request.range_end
        self.has_previous = request.prev_kv
        self.filters = set(map(int, request.filters))
        self.start = request.start_revision
        self.first = request.start_revision or revision + 1
        self.told = 0
        self.is_compacted = False

    def contains(self, key: bytes) -> bool:
        if not self.range_end:
            return key == self.key
        return key >= self.key and (self.range_end == b"\0" or key < self.range_end)


class Client:
    """A client's stream, with all that it may expect."""

    def __init__(self, standing: Standing, history: History) -> None:
        self._standing = standing
        self._history = history
        self.stream = standing.stream(WATCH)
        self._asked: deque[pb.WatchCreateRequest] = deque()
        self.watchers: dict[int, Model] = {}
        self._told = 0

    def create(self, fields: dict[str, Any]) -> None:
        request = pb.WatchCreateRequest(**fields)
        self._asked.append(request)
        self.stream.send(pb.WatchRequest(create_request=request))

    def send(self, **fields: Any) -> None:
        self.stream.send(pb.WatchRequest(**fields))

    def stall(self) -> None:
        self._standing.edge.pending.setdefault(self.stream.call, 0)

    def read(self) -> None:
        if self._standing.edge.pending.pop(self.stream.call, None) is not None:
            self._standing.happen((EdgeEventKind.WRITABLE, self.stream.call, None))

    def look(self) -> None:
        assert self.stream.status is None
        for response in self.stream.received():
            self._check(response)

    def _check(self, response: pb.WatchResponse) -> None:
        revision = response.header.revision
        assert revision <= self._history.revision
        # Revisions do not go back, though members differ.
        if not response.events and not response.compact_revision:
            assert revision >= self._told
        self._told = max(self._told, revision)
        watcher = self.watchers.get(response.watch_id)
        if response.created:
            request = self._asked.popleft()
            assert not response.canceled
            assert watcher is None
            self.watchers[response.watch_id] = Model(request, revision)
        elif response.canceled and response.compact_revision:
            assert watcher is not None
            assert not watcher.is_compacted
            assert revision == 0
            assert response.compact_revision <= self._history.compacted
            assert watcher.first < response.compact_revision
            watcher.is_compacted = True
        elif response.canceled:
            del self.watchers[response.watch_id]
        elif response.watch_id == -1:
            assert not any(each.is_compacted for each in self.watchers.values())
            for each in self.watchers.values():
                assert each.start <= revision
                self._check_complete(each, revision)
        else:
            assert watcher is not None
            assert not watcher.is_compacted
            self._check_events(watcher, response)

    def _check_events(self, watcher: Model, response: pb.WatchResponse) -> None:
        assert response.events
        wanted = self._history.wanted(watcher)
        expected = wanted[watcher.told : watcher.told + len(response.events)]
        watcher.told += len(expected)
        for found, event in zip(response.events, expected, strict=True):
            assert (found.type, found.kv) == (event.type, event.kv)
            assert not found.HasField("prev_kv") or found.prev_kv == event.prev_kv
            if watcher.has_previous and event.HasField("prev_kv"):
                is_kept = event.kv.mod_revision - 1 >= self._history.compacted
                assert found.HasField("prev_kv") or not is_kept
            else:
                assert not found.HasField("prev_kv")
        last = expected[-1].kv.mod_revision
        assert response.header.revision >= last
        # A revision is told as a whole.
        for event in wanted[watcher.told : watcher.told + 1]:
            assert event.kv.mod_revision > last

    def _check_complete(self, watcher: Model, revision: int) -> None:
        wanted = self._history.wanted(watcher)
        assert watcher.told >= sum(each.kv.mod_revision <= revision for each in wanted)

    def check_all_told(self) -> None:
        assert not self._asked
        for watcher in self.watchers.values():
            if not watcher.is_compacted:
                self._check_complete(watcher, self._history.revision)


class Run:
    """One run of steps."""

    def __init__(self) -> None:
        self.harness = Harness()
        self.history = History(self.harness)
        self.lagging = Harness()
        self.lag: deque[tuple[str, Any]] = deque()
        members = {ADDRESS: self.harness, LAGGING: self.lagging}
        self.standing = Standing(members, cache_bytes_max=0)
        self.clients = [Client(self.standing, self.history) for _ in range(STREAMS)]
        self.clients[0].stall()

    def take(self, step: tuple[Any, ...]) -> None:
        getattr(self, f"_{step[0]}")(*step[1:])
        self.history.look()
        for client in self.clients:
            client.look()

    def _write(self, name: str, request: Any) -> None:
        self.harness.ask(name, request)
        self.lag.append((name, request))

    def _follow(self, count: int) -> None:
        for _ in range(min(count, len(self.lag))):
            self.lagging.ask(*self.lag.popleft())

    def _put(self, key: bytes, size: int) -> None:
        self._write("KV/Put", pb.PutRequest(key=key, value=bytes(size)))

    def _delete(self, key: bytes) -> None:
        self._write("KV/DeleteRange", pb.DeleteRangeRequest(key=key))

    def _txn(self, keys: set[bytes]) -> None:
        puts = [pb.RequestOp(request_put=pb.PutRequest(key=key)) for key in sorted(keys)]
        self._write("KV/Txn", pb.TxnRequest(success=puts))

    def _compact(self, back: int) -> None:
        revision = self.history.revision - back
        self._write("KV/Compact", pb.CompactionRequest(revision=revision, physical=True))

    def _create(
        self,
        client: int,
        where: tuple[bytes, bytes],
        offset: int | None,
        prev_kv: bool,
        filters: tuple[int, ...],
    ) -> None:
        start = 0 if offset is None else max(1, self.history.revision + offset)
        self.clients[client].create(
            {
                "key": where[0],
                "range_end": where[1],
                "start_revision": start,
                "prev_kv": prev_kv,
                "filters": filters,
            }
        )

    def _cancel(self, client: int, watch_id: int) -> None:
        self.clients[client].send(cancel_request=pb.WatchCancelRequest(watch_id=watch_id))

    def _progress(self, client: int) -> None:
        self.clients[client].send(progress_request=pb.WatchProgressRequest())

    def _leave(self, client: int) -> None:
        self.clients[client].look()
        self.clients[client].stream.leave()
        self.clients[client] = Client(self.standing, self.history)

    def _arrive(self, count: int) -> None:
        self.standing.upstream.arrive(count)

    def _turn(self, count: int) -> None:
        told = self.standing.upstream.poll(count, 1 << 20)
        self.standing.proxy.turn(self.standing.now, [], [], told)

    def _settle(self) -> None:
        self.standing.settle()

    def _lose(self, address: str | None) -> None:
        self.standing.upstream.lose_all(address)

    def _wait(self, seconds: float) -> None:
        self.standing.pass_time(seconds, max(0.02, seconds / 10))

    def _stall(self, client: int) -> None:
        self.clients[client].stall()

    def _read(self, client: int) -> None:
        self.clients[client].read()

    def finish(self) -> None:
        """Let everything arrive, and see that nothing is missing or left over."""
        for client in self.clients:
            client.read()
        for _ in range(2):
            self.take(("put", b"z", 0))
            self.take(("follow", len(self.lag)))
            self.take(("wait", 12.0))
        for client in self.clients:
            client.check_all_told()
        watchers = [
            watcher
            for client in self.clients
            for watcher in client.watchers.values()
            if not watcher.is_compacted
        ]
        ranges = {(watcher.key, watcher.range_end) for watcher in watchers}
        assert self._watches() == len(ranges)
        for client in self.clients:
            client.stream.leave()
        self.standing.settle()
        assert not self._watches()

    def _watches(self) -> int:
        """Return how many watches the proxy has at the members."""
        hubs = self.harness.member.hub, self.lagging.member.hub
        return sum(hub.watchers_open for hub in hubs) - 1


@pytest.mark.long
@given(st.lists(steps, min_size=10, max_size=60))
@settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_promises(sequence: list[tuple[Any, ...]]) -> None:
    with (
        patch.object(watch, "STREAM_PENDING_BYTES_MAX", CHUNK_BYTES),
        patch.object(watch, "UNSENT_BYTES_MAX", CHUNK_BYTES),
    ):
        run = Run()
        for step in sequence:
            run.take(step)
        run.finish()
