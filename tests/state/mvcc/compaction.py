"""A store that is compacted, interrupted and read: stories that tests of compaction share."""

from kvorum.api.limits import PRODUCTION
from kvorum.state.lease import Lessor
from kvorum.state.mvcc.history import bound
from kvorum.state.mvcc.ranges import RangeOptions
from kvorum.state.mvcc.restore import restore_store
from kvorum.storage.backend import open_backend
from kvorum.storage.backend.memory import MemoryEnvironments
from kvorum.storage.files.memory import MemoryFiles
from tests.state.mvcc.machine import DIRECTORY, Recorder, answer, set_slice
from tests.state.mvcc.model import Model

EVERYTHING = RangeOptions(b"\0", b"\0")


class World:
    """A store that is flushed after everything it does, and its model."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.files.make_directory(DIRECTORY)
        self.files.sync_directory("/")
        self.environments = MemoryEnvironments(self.files)
        self.model = Model()
        self.start()

    def start(self) -> None:
        self.backend = open_backend(self.files, self.environments, DIRECTORY)
        self.store = restore_store(
            self.backend, Lessor(self.backend, PRODUCTION), Recorder(), PRODUCTION
        )
        set_slice(self.store, 2)

    def flush(self) -> None:
        stage = self.backend.seal()
        if stage is not None:
            commit = self.backend.take_staged(stage.run(self.files, self.environments))
            self.backend.take_committed(commit.run(self.files, self.environments))

    def crash(self) -> None:
        files = self.files.after_power_cut(lambda: False)
        self.environments = self.environments.after_power_cut(files, lambda: False)
        self.files = files
        self.start()

    def write(self) -> None:
        """Let some keys be changed, deleted and made again."""
        for number in range(1, 25):
            key = b"%d" % (number % 5)
            if number % 7 == 0:
                transaction = self.store.begin()
                assert transaction.delete_range(key, b"") == self.model.delete(key, b"")
                transaction.commit()
            else:
                value = b"v%d" % number
                assert self.store.put(key, value, 0) == self.model.put(key, value, 0)

    def compact(self, main: int) -> None:
        self.store.compact(main)
        self.model.compact(main)

    def step(self) -> None:
        job = self.store.compaction.step()
        if job is not None:
            self.store.compaction.take_hash(job, job.run(self.files, self.environments))

    def finish(self) -> None:
        while self.store.compaction.is_pending:
            assert self.store.compaction.is_runnable
            self.step()

    def check(self) -> None:
        assert self.store.revision == self.model.revision
        assert self.store.compacted_revision == self.model.compacted
        for main in range(max(1, self.model.compacted), self.model.revision + 1):
            options = EVERYTHING._replace(revision=main)
            expected = self.model.range(options, main, self.model.revision)
            assert answer(self.store.range(options)) == expected
        if not self.store.compaction.is_pending:
            assert self.backend.scan_rows(0, bound(1 << 40), 1000) == self.model.rows()


def interrupt_everywhere() -> None:
    """Cut the power after each number of steps, all of them flushed."""
    steps = 0
    is_done = False
    while not is_done:
        world = World()
        world.write()
        world.compact(world.model.revision - 3)
        for _ in range(steps):
            world.flush()
            world.step()
        is_done = not world.store.compaction.is_pending
        world.flush()
        world.crash()
        world.check()
        world.finish()
        world.check()
        assert is_done or world.store.compaction.hashes() == []
        steps += 1


def outlive_compaction() -> None:
    """Begin reads and hashes at old revisions, compact, and end them."""
    world = World()
    world.write()
    current = world.model.revision
    reads = []
    for main in range(current - 9, current + 1):
        options = EVERYTHING._replace(revision=main)
        slices = world.store.range_slices(options)
        next(slices)
        reads.append((slices, world.model.range(options, main, current)))
    world.compact(current - 4)
    for slices, expected in reads:
        try:
            while True:
                next(slices)
                world.step()
        except StopIteration as end:
            result = end.value
        assert answer(result) == expected
        if world.store.compaction.is_runnable:
            world.step()
    world.finish()
    world.check()


def start_without_the_newest_row() -> None:
    """Compact a deletion away, as etcd does before 3.5.16, and stop before anything is written."""
    for is_finished in (False, True):
        world = World()
        world.store.put(b"a", b"", 0)
        world.store.put(b"b", b"", 0)
        transaction = world.store.begin()
        transaction.delete_range(b"b", b"")
        main = transaction.commit()
        world.store.compact(main)
        while is_finished and world.store.compaction.is_pending:
            world.step()
        world.backend.delete_row(main << 32 | 1)
        world.flush()
        world.crash()
        assert (world.store.revision, world.store.compacted_revision) == (main, main)
        assert world.store.compaction.is_pending != is_finished
        assert world.store.put(b"c", b"", 0) == main + 1


def compact_at_a_deletion() -> None:
    """Compact at the revision of a deletion, whose row must stay."""
    world = World()
    world.store.put(b"a", b"", 0)
    world.model.put(b"a", b"", 0)
    transaction = world.store.begin()
    transaction.delete_range(b"a", b"")
    main = transaction.commit()
    world.model.delete(b"a", b"")
    world.compact(main)
    world.finish()
    world.flush()
    world.crash()
    assert world.backend.scan_rows(main << 32, bound(main), 10) == [(main << 32 | 1, b"\x0a\x01a")]
    assert world.store.put(b"c", b"", 0) == main + 1
    world.model.put(b"c", b"", 0)
    world.compact(main + 1)
    world.finish()
    world.check()
