"""Whatever happens in whatever order, every watcher is told exactly what the model says."""

from contextlib import ExitStack

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvorum.api.limits import WorkLimits
from kvorum.api.ranges import prefix_end
from tests.state.mvcc.watch_world import Client, Operation, World, exact_fragments

KEYS = [b"a", b"a/1", b"a/2", b"a/3", b"b", b"b\xff", b"c", b"\xff\xff"]
keys = st.sampled_from(KEYS)
values = st.sampled_from([b"", b"x", b"y" * 40, b"z" * 300])
puts = st.tuples(keys, values)
deletes = st.one_of(
    keys.map(lambda key: (key, b"", None)),
    keys.map(lambda key: (key, b"\0", None)),
    st.tuples(keys, keys, st.none()),
)
ranges = st.one_of(
    keys.map(lambda key: (key, b"")),
    keys.map(lambda key: (key, prefix_end(key))),
    st.sampled_from([(b"", b"\0"), (b"a", b"\0"), (b"a/2", b"\0"), (b"a", b"c"), (b"a/1", b"b")]),
    st.tuples(keys, keys),
)
limits = st.builds(
    WorkLimits,
    watch_catch_up_watchers_max=st.sampled_from([1, 2, 3, 512]),
    watch_history_rows_max=st.sampled_from([1, 2, 5, 1000]),
    watch_history_bytes_max=st.sampled_from([1, 100, 1 << 20]),
    watch_changes_per_step=st.sampled_from([1, 3, 1000]),
    watch_deliveries_per_step=st.sampled_from([1, 2, 1000]),
    watch_stream_unsent_bytes_max=st.sampled_from([100, 1 << 20]),
    watch_spread_bytes_max=st.sampled_from([0, 100, 1 << 20]),
    watch_unsent_bytes_max=st.sampled_from([300, 16 << 20]),
    watch_catch_up_bytes_per_step=st.sampled_from([1, 100, 4 << 20]),
    watchers_removed_per_step=st.sampled_from([1, 2, 1000]),
)


def transactions(size: int) -> st.SearchStrategy[list[Operation]]:
    """Several changes; as in the API, no key is put twice or put and deleted."""
    several = st.lists(puts, max_size=size, unique_by=lambda put: put[0])
    return st.one_of(several, st.lists(deletes, max_size=2))


class Watching(RuleBasedStateMachine):
    """Streams and watchers over a store, each step of each in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()

    @initialize(
        limits=limits,
        fragment_bytes=st.sampled_from([60, 500]),
        before=st.lists(transactions(4), max_size=6),
    )
    def begin(self, limits: WorkLimits, fragment_bytes: int, before: list[list[Operation]]) -> None:
        self.stack.enter_context(exact_fragments())
        self.world = World(limits, fragment_bytes)
        for operations in before:
            self.world.write(operations)
        self.world.open()

    def client(self, data: st.DataObject) -> Client:
        return self.world.clients[data.draw(st.sampled_from(sorted(self.world.clients)))]

    def revision(self, data: st.DataObject) -> int:
        """A revision of any kind: none, past, compacted, now, future, nonsense."""
        current = self.world.model.revision
        return data.draw(st.one_of(st.integers(0, current), st.integers(-1, current + 4)))

    @rule(put=puts)
    def put(self, put: tuple[bytes, bytes]) -> None:
        self.world.write([put])

    @rule(operations=transactions(8))
    def write(self, operations: list[Operation]) -> None:
        self.world.write(operations)

    @rule(delete=deletes)
    def delete(self, delete: Operation) -> None:
        self.world.write([delete])

    @precondition(lambda self: len(self.world.clients) < 4)
    @rule()
    def open(self) -> None:
        self.world.open()

    @rule(
        data=st.data(),
        where=ranges,
        watch_id=st.sampled_from([0, 0, 0, 1, 2, 7, -5]),
        filters=st.sampled_from([(), (), (0,), (1,), (0, 1), (9,)]),
        prev_kv=st.booleans(),
        fragment=st.booleans(),
        progress_notify=st.booleans(),
    )
    def create(
        self,
        data: st.DataObject,
        where: tuple[bytes, bytes],
        watch_id: int,
        filters: tuple[int, ...],
        prev_kv: bool,
        fragment: bool,
        progress_notify: bool,
    ) -> None:
        self.client(data).create(
            *where,
            self.revision(data),
            watch_id,
            filters,
            prev_kv=prev_kv,
            fragment=fragment,
            progress_notify=progress_notify,
        )

    @rule(data=st.data(), unknown=st.integers(-2, 9))
    def cancel(self, data: st.DataObject, unknown: int) -> None:
        client = self.client(data)
        known = st.sampled_from(sorted(client.used)) if client.used else st.just(unknown)
        client.cancel(data.draw(st.one_of(known, st.just(unknown))))

    @precondition(lambda self: len(self.world.clients) > 1)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.world.close(self.client(data))

    @rule(data=st.data())
    def ask_progress(self, data: st.DataObject) -> None:
        self.client(data).stream.request_progress()

    @rule(data=st.data(), is_paused=st.booleans())
    def pause(self, data: st.DataObject, is_paused: bool) -> None:
        self.world.pause(self.client(data), is_paused)

    @rule(times=st.integers(1, 4))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.world.hub.step()

    @rule()
    def drain(self) -> None:
        self.world.drain()

    @rule(seconds=st.sampled_from([0.1, 5.0, 11.0]))
    def tick(self, seconds: float) -> None:
        self.world.tick(seconds)

    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        self.world.compact(self.revision(data))

    @rule(times=st.integers(1, 6))
    def clear_compacted(self, times: int) -> None:
        for _ in range(times):
            self.world.clear_compacted()

    @rule()
    def flush(self) -> None:
        self.world.flush()

    @rule(batches=st.lists(transactions(3), max_size=4), data=st.data())
    def restore(self, batches: list[list[Operation]], data: st.DataObject) -> None:
        self.world.restore(batches, self.revision(data))

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.world.settle()
        finally:
            self.stack.close()


def run_machine(examples: int) -> None:
    run_state_machine_as_test(
        Watching,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_every_watcher_is_told_what_the_model_says() -> None:
    run_machine(150)
