"""The rules of watching one by one, and the incidents of the field that broke them."""

import gc
import random
from typing import Any

import pytest

from kvorum.api.limits import PRODUCTION
from kvorum.api.pb.etcdserverpb import WatchResponse
from kvorum.api.pb.mvccpb import Event
from kvorum.state.mvcc.watch.hub import PROGRESS_JITTER
from kvorum.state.mvcc.watch.watcher import WatcherState
from tests.state.mvcc.watch_world import PROGRESS_SECONDS, Client, World

EVERYTHING = (b"", b"\0")


@pytest.fixture
def world() -> World:
    return World()


def responses(world: World) -> list[WatchResponse]:
    return [WatchResponse.FromString(data) for _, data in world.hub.take_outgoing()]


def put(world: World, *keys: bytes, value: bytes = b"v") -> None:
    world.write([(key, value) for key in keys])


def catch_up(world: World) -> list[WatchResponse]:
    found = responses(world)
    while world.hub.has_work:
        world.hub.step()
        found += responses(world)
    return found


# Live watchers.


def test_a_transaction_is_one_response_with_its_revision(world: World) -> None:
    client = world.open()
    client.create(*EVERYTHING)
    responses(world)
    put(world, b"a", b"b", b"c")
    world.write([(b"a", b"c", None)])
    first, second = responses(world)
    assert [event.kv.key for event in first.events] == [b"a", b"b", b"c"]
    assert [event.kv.key for event in second.events] == [b"a", b"b"]
    assert (first.header.revision, second.header.revision) == (2, 3)


def test_nobody_watching_costs_nothing(world: World) -> None:
    assert not world.hub.is_watched
    client = world.open()
    client.create(b"k")
    assert world.hub.is_watched
    client.cancel(0)
    assert not world.hub.is_watched
    client.create(b"k", start=1)
    assert not world.hub.is_watched, "it is behind until it has caught up"
    world.settle()
    assert world.hub.is_watched
    world.close(client)
    assert not world.hub.is_watched and world.hub.streams_open == world.hub.watchers_open == 0


def test_who_begins_in_the_future_is_not_told_with_others(world: World) -> None:
    now, later = world.open(), world.open()
    now.create(b"k")
    later.create(b"k", start=4)
    world.drain()
    for _ in range(3):
        put(world, b"k")
    sent = [call for call, _ in world.hub.take_outgoing()]
    assert sent == [now.stream.call] * 3 + [later.stream.call]


def test_who_has_left_is_not_told_with_others(world: World) -> None:
    stays, leaves = world.open(), world.open()
    for client in (stays, leaves):
        client.create(b"k")
    world.drain()
    put(world, b"k")
    assert len(world.hub.take_outgoing()) == 2
    leaves.cancel(0)
    world.drain()
    put(world, b"k")
    assert [call for call, _ in world.hub.take_outgoing()] == [stays.stream.call]


def test_streams_with_the_same_watch_share_one_response(world: World) -> None:
    for _ in range(3):
        world.open().create(b"k")
    world.drain()
    put(world, b"k")
    sent = [data for _, data in world.hub.take_outgoing()]
    assert len(sent) == 3 and all(data is sent[0] for data in sent)


@pytest.mark.parametrize("extra", [0, 1])
def test_a_large_transaction_is_published_in_steps(world: World, extra: int) -> None:
    client = world.open()
    client.create(*EVERYTHING)
    client.create(b"00001", prev_kv=True)
    world.drain()
    put(world, *(b"%05d" % number for number in range(PRODUCTION.watch_changes_per_step + extra)))
    assert world.hub.is_publishing == bool(extra)
    client.stream.request_progress()
    while world.hub.is_publishing:
        assert not responses(world), "neither events nor progress before all is matched"
        world.hub.step()
    assert [len(response.events) for response in responses(world)][:2] == [
        PRODUCTION.watch_changes_per_step + extra,
        1,
    ]


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_very_many_watchers_are_told_in_steps(world: World, extra: int) -> None:
    client = world.open()
    for _ in range(PRODUCTION.watch_deliveries_per_step + extra):
        client.create(b"k")
    world.drain()
    put(world, b"k")
    assert world.hub.is_publishing == (extra > 0)
    put(world, b"k")
    world.settle()
    assert all(watch.received == 2 for watch in client.watches.values())


# Catching up.


class CountingRows:
    """Counts the rows that are read from history."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.count = 0

    def scan_rows(self, first: int, last: int, limit: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = self._backend.scan_rows(first, last, limit)
        self.count += len(found)
        return found


@pytest.mark.sources
def test_history_is_read_once_for_many_watchers(world: World) -> None:
    for number in range(100):
        put(world, b"k%d" % (number % 10))
    rows = CountingRows(world.backend)
    world.store.backend = rows  # type: ignore[assignment]
    client = world.open()
    for number in range(PRODUCTION.watch_catch_up_watchers_max):
        client.create(b"k%d" % (number % 10), start=2 + number % 50)
    world.hub.step()
    assert not world.hub.has_work
    assert rows.count == 100
    client.create(b"k0", start=2)
    world.hub.step()
    assert rows.count == 200
    world.settle()


def test_watchers_far_apart_are_all_served(world: World) -> None:
    """New watchers from old revisions do not keep the others waiting."""
    client = world.open()
    for _ in range(3000):
        put(world, b"k")
    client.create(b"k", start=1500)
    waited = 0
    while client.stream._watchers[0].next_revision < 2900:
        client.create(b"k", start=2)
        world.hub.step()
        waited += 1
        world.drain()
    assert waited <= 4


def test_a_paused_stream_keeps_only_a_revision(world: World) -> None:
    client = world.open()
    client.create(*EVERYTHING)
    world.pause(client, True)
    for _ in range(2000):
        put(world, b"k", value=bytes(1000))
    assert not world.hub.take_outgoing() and not world.hub.has_work
    assert not world.hub.is_watched, "nothing is published for it meanwhile"
    assert world.hub.watchers_behind == 1
    world.settle()
    assert client.watches[0].received == 2000
    assert world.hub.watchers_behind == 0


def test_a_stream_is_full_by_what_it_was_sent_in_a_turn(world: World) -> None:
    client, other = world.open(), world.open()
    client.create(b"large")
    other.create(b"small")
    world.drain()
    for _ in range(5):
        put(world, b"large", value=bytes(PRODUCTION.watch_stream_unsent_bytes_max // 3))
        put(world, b"small")
    sent = [call for call, _ in world.hub._outgoing]
    assert sent.count(client.stream.call) == 3
    assert sent.count(other.stream.call) == 5
    world.settle()
    assert client.watches[0].received == 5


def test_all_streams_together_are_sent_a_bounded_amount(world: World) -> None:
    clients = [world.open() for _ in range(40)]
    for number, client in enumerate(clients):
        client.create(b"large", watch_id=number + 1)
    world.drain()
    put(world, b"large", value=bytes(PRODUCTION.watch_stream_unsent_bytes_max))
    size = sum(len(data) for _, data in world.hub._outgoing)
    assert (
        PRODUCTION.watch_unsent_bytes_max
        <= size
        <= PRODUCTION.watch_unsent_bytes_max + 2 * PRODUCTION.watch_stream_unsent_bytes_max
    )
    world.settle()
    assert [watch.received for client in clients for watch in client.watches.values()] == [1] * 40


# Compaction.


def test_a_watch_of_compacted_revisions(world: World) -> None:
    for _ in range(5):
        put(world, b"k")
    world.compact(4)
    client = world.open()
    client.create(b"k", start=3)
    client.create(b"k", start=4)
    created, ended, _ = responses(world)
    assert created.created and not created.canceled
    assert ended.canceled and not ended.created and ended.watch_id == 0
    assert (ended.compact_revision, ended.header.revision, ended.cancel_reason) == (4, 0, "")
    assert [len(response.events) for response in catch_up(world)] == [3]

    client.stream.request_progress()
    assert responses(world) == [], "it blocks the progress of the whole stream"
    client.stream.create(b"k", watch_id=1)
    assert responses(world)[0].canceled, "ids stay taken"
    client.stream.cancel(0)
    (canceled,) = responses(world)
    assert canceled.canceled and canceled.compact_revision == 0
    client.stream.request_progress()
    assert [response.watch_id for response in responses(world)] == [-1]


def test_a_slow_watcher_is_overtaken_by_a_compaction(world: World) -> None:
    client = world.open()
    client.create(b"k")
    world.pause(client, True)
    for _ in range(3):
        put(world, b"k")
    world.compact(3)
    assert catch_up(world) == []
    world.pause(client, False)
    (ended,) = catch_up(world)
    assert ended.canceled and ended.compact_revision == 3


# Progress.


def progress(world: World, seconds: float) -> list[tuple[int, int]]:
    world.tick(seconds)
    return [(r.watch_id, r.header.revision) for r in responses(world) if not r.events]


def test_periodic_progress(world: World) -> None:
    world.tick(0)
    client = world.open()
    client.create(b"k", progress_notify=True)
    client.create(b"k")
    client.create(b"k", start=4, progress_notify=True)
    responses(world)
    assert progress(world, PROGRESS_SECONDS * 0.99) == []
    late = PROGRESS_SECONDS * (PROGRESS_JITTER + 0.01)
    assert progress(world, late) == [(0, 1)]
    assert world.hub.next_deadline <= world.now + PROGRESS_SECONDS * (1 + PROGRESS_JITTER)

    put(world, b"k")
    assert progress(world, 2 * PROGRESS_SECONDS) == [], "it had events since"
    assert progress(world, 2 * PROGRESS_SECONDS) == [(0, 2)]
    put(world, b"other")
    put(world, b"other")
    assert progress(world, 2 * PROGRESS_SECONDS) == [(0, 4), (2, 4)]
    world.pause(client, True)
    assert progress(world, 2 * PROGRESS_SECONDS) == []
    client.stream.close()
    del world.clients[client.stream.call]
    assert progress(world, 2 * PROGRESS_SECONDS) == []
    assert world.hub.next_deadline == float("inf")


def test_periodic_progress_waits_for_a_transaction_that_is_being_published(world: World) -> None:
    client = world.open()
    client.create(b"k", progress_notify=True)
    responses(world)
    put(world, *(b"%05d" % number for number in range(PRODUCTION.watch_changes_per_step + 1)))
    assert progress(world, 2 * PROGRESS_SECONDS) == []
    world.hub.step()
    assert progress(world, 0) == [(0, 2)]


# What went wrong elsewhere; the numbers are those of the field's tracker.


def test_periodic_progress_of_very_many_is_told_in_steps(world: World) -> None:
    client = world.open()
    count = 2 * PRODUCTION.watch_deliveries_per_step + 10
    for _ in range(count):
        client.create(b"a", b"", progress_notify=True)
    responses(world)
    world.hub.tick(world.hub.next_deadline)
    told = [len(responses(world))]
    while world.hub.has_work:
        world.hub.step()
        told.append(len(responses(world)))
    assert told == [PRODUCTION.watch_deliveries_per_step, PRODUCTION.watch_deliveries_per_step, 10]


@pytest.mark.parametrize("seed", range(40))
def test_progress_is_told_exactly_while_everybody_is_current(world: World, seed: int) -> None:
    """The counts that answer a request agree with a look at every watcher."""
    rng = random.Random(seed)
    client = world.open()
    stream, hub = client.stream, world.hub
    for _ in range(150):
        step = rng.random()
        if step < 0.3:
            start = rng.choice([0, 0, hub.history.revision + rng.randint(0, 3), 1])
            client.create(b"a", b"", start)
        elif step < 0.6 and stream._watchers:
            client.cancel(rng.choice(list(stream._watchers)))
        elif step < 0.7:
            put(world, rng.choice([b"a", b"b"]))
        elif step < 0.8 and hub.has_work:
            hub.step()
        responses(world)
        watchers = stream._watchers.values()
        is_current = all(
            watcher.standing is WatcherState.SYNCED
            and watcher.start_revision <= hub.history.revision
            for watcher in watchers
        )
        stream.request_progress()
        assert len(responses(world)) == (bool(watchers) and is_current and not hub.is_publishing)


def test_15220_progress_comes_behind_the_events_before_it(world: World) -> None:
    client = world.open()
    client.create(b"k")
    put(world, b"k")
    client.stream.request_progress()
    assert [bool(response.events) for response in responses(world)] == [False, True, False]
    client.create(b"k", start=2)
    client.stream.request_progress()
    assert len(responses(world)) == 1, "nothing but the creation before it has caught up"


def test_15271_a_watch_never_goes_back(world: World) -> None:
    """A follower that gets a snapshot goes on behind what it has told."""
    client = world.open()
    client.create(b"k")
    put(world, b"k")
    world.drain()
    world.restore([[(b"k", b"ahead")], [(b"k", b"further")]], -1)
    put(world, b"k")
    world.settle()
    assert client.watches[0].received == 4


def test_17247_a_key_changed_once_is_told_once(world: World) -> None:
    client = world.open()
    client.create(b"a", prev_kv=True)
    client.create(b"a", prefix(b"a"), prev_kv=True)
    put(world, b"a", b"b")
    world.write([(b"a", b"2"), (b"b", b"2")])
    world.settle()
    assert [watch.received for watch in client.watches.values()] == [2, 2]


def prefix(key: bytes) -> bytes:
    return key[:-1] + bytes((key[-1] + 1,))


def test_17529_a_starved_stream_loses_nothing(world: World) -> None:
    client = world.open()
    client.create(*EVERYTHING, progress_notify=True)
    for number in range(500):
        put(world, b"k%d" % (number % 3))
        world.pause(client, number % 7 < 5)
        if number % 3 == 0:
            world.hub.step()
        client.stream.request_progress()
        world.tick(PROGRESS_SECONDS)
    world.settle()
    assert client.watches[0].received == 500


def test_18089_a_deletion_at_the_compacted_revision_is_told(world: World) -> None:
    put(world, b"k")
    world.write([(b"k", b"", None)])
    world.compact(3)
    while world.store.compaction.is_pending:
        world.clear_compacted()
    client = world.open()
    client.create(b"k", start=3, prev_kv=True)
    events = [event for response in catch_up(world) for event in response.events]
    assert [(event.type, event.kv.mod_revision) for event in events] == [(Event.DELETE, 3)]
    assert not events[0].HasField("prev_kv"), "the value before is compacted"


def test_20221_a_future_start_hears_nothing_before(world: World) -> None:
    client = world.open()
    client.create(b"k", start=4, progress_notify=True)
    responses(world)
    for _ in range(2):
        put(world, b"k")
        client.stream.request_progress()
        assert progress(world, 2 * PROGRESS_SECONDS) == []
    world.restore([], -1)
    catch_up(world)
    put(world, b"k")
    (told,) = responses(world)
    assert told.header.revision == 4


# Memory.


def workload(world: World) -> None:
    clients: list[Client] = []
    for number in range(30):
        client = world.open()
        clients.append(client)
        client.create(b"k", start=number % 3, progress_notify=True)
        client.create(*EVERYTHING, prev_kv=True, fragment=True)
        client.create(b"k%d" % number, b"k9")
        put(world, b"k", b"k%d" % number)
        if number % 4 == 0:
            world.pause(client, True)
        if number % 3 == 0:
            client.cancel(1)
        world.hub.step()
        world.tick(PROGRESS_SECONDS / 3)
        world.drain()
    put(world, *(b"%05d" % number for number in range(PRODUCTION.watch_changes_per_step + 1)))
    world.restore([[(b"k", b"")]], 20)
    for client in clients:
        world.close(client)
    world.hub.step()


def test_nothing_is_left_to_collect(world: World) -> None:
    workload(world)  # what protobuf and the imports make once
    gc.collect()
    flags = gc.get_debug()
    gc.disable()
    try:
        workload(world)
        assert world.hub.streams_open == world.hub.watchers_open == 0
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [each for each in gc.garbage if type(each).__module__.startswith("kvorum")]
        assert left == []
    finally:
        gc.set_debug(flags)
        gc.garbage.clear()
        gc.enable()
