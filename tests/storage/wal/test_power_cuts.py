"""Power cuts before every single call, failing syncs, full disks: recovery always succeeds."""

import contextlib
import errno
import random
from collections.abc import Callable

import pytest

from kvorum.raft.entries import Entry
from kvorum.raft.messages import HardState
from kvorum.storage.files.memory import DiskCall, MemoryFiles
from kvorum.storage.wal import CorruptLogError, decoding
from tests.storage.wal.storage import Model, Storage, make_directories, recover

STEPS = 25


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let records lie across the pieces in which a segment is read."""
    monkeypatch.setattr(decoding, "PIECE_BYTES", 200)


def fates(seed: int) -> list[Callable[[], bool]]:
    """Unsynced changes are all lost, all kept, or torn in ways the seed decides."""
    torn = [random.Random(seed + each) for each in range(3)]
    return [
        lambda: False,
        lambda: True,
        lambda: torn[0].random() < 0.5,
        lambda: torn[1].random() < 0.9,
        lambda: torn[2].random() < 0.1,
    ]


def check_image(image: MemoryFiles, model: Model) -> None:
    """Recover, use the log, and find what was written when it is recovered again."""
    found = recover(image)
    model.check(found)
    if found is None:
        return
    content = found.content

    def before(_: DiskCall) -> None:
        """Cut the power while the first batch after the recovery is written."""
        if content.tear is not None:
            for survives in fates(content.end):
                again = recover(image.after_power_cut(survives))
                assert again is not None
                assert again.content.entries[: len(content.entries)] == content.entries

    last = content.entries[-1].index if content.entries else 0
    last = max(last, found.snapshot.index if found.snapshot else 0)
    more = Entry(0, 1 << 20, last + 1, b"after the power cut" * 50)
    job = found.log.save(HardState(1 << 20, 1, content.state.commit), [more])
    assert job is not None
    image.before = before
    job.run(image)
    image.before = None
    again = recover(image.after_power_cut(lambda: False))
    assert again is not None
    assert again.content.entries == [*content.entries, more]
    assert again.content.state.term == 1 << 20
    assert again.content.tear is None


class KilledError(Exception):
    """The process ends here."""


def run_history(files: MemoryFiles, seed: int, started: Callable[[Storage], None]) -> None:
    make_directories(files)
    storage = Storage(files, seed)
    started(storage)
    for _ in range(STEPS):
        storage.step()
    storage.close()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_power_cut_before_every_call(seed: int) -> None:
    calls = 0
    model = Model()

    def started(storage: Storage) -> None:
        nonlocal model
        model = storage.model

    def before(_: DiskCall) -> None:
        nonlocal calls
        calls += 1
        for survives in fates(calls * 100 + seed):
            image = files.after_power_cut(survives)
            check_image(image, model)

    files = MemoryFiles(before)
    run_history(files, seed, started)
    assert calls > 50
    assert files.open_descriptors() == 0


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_power_cut_during_recovery(seed: int) -> None:
    """The recovery after a tear is cut itself, before each of its calls."""
    cuts = 0
    model = Model()

    def started(storage: Storage) -> None:
        nonlocal model
        model = storage.model

    def before(call: DiskCall) -> None:
        if call.name != "fdatasync" or not model.created:
            return
        generator = random.Random(seed)
        image = files.after_power_cut(lambda: generator.random() < 0.6)

        def again(_: DiskCall) -> None:
            nonlocal cuts
            cuts += 1
            for survives in fates(cuts):
                model.check(recover(image.after_power_cut(survives)))

        image.before = again
        model.check(recover(image))

    files = MemoryFiles(before)
    run_history(files, seed, started)
    assert cuts > 100


@pytest.mark.parametrize("seed", range(2))
def test_kill_before_every_call_and_a_power_cut_later(seed: int) -> None:
    """What a killed process had written but not synced is acted upon, so it must stay."""

    calls = failing = 0

    def before(_: DiskCall) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise KilledError

    def live_until_killed() -> tuple[MemoryFiles, Model]:
        nonlocal calls
        calls = 0
        files = MemoryFiles(before)
        models = [Model()]
        with contextlib.suppress(KilledError):
            run_history(files, seed, lambda storage: models.append(storage.model))
        files.before = None
        files.kill()
        return files, models[-1]

    live_until_killed()
    for failing in range(1, calls + 1):  # noqa: B007 the hook reads it
        files, model = live_until_killed()
        found = recover(files) if files.exists("/member/snap") else None
        model.check(found)
        if found is not None:
            again = recover(files.after_power_cut(lambda: False))
            assert again is not None
            assert again.content.entries == found.content.entries
            assert again.content.state == found.content.state
        files, model = live_until_killed()
        if files.exists("/member/snap"):
            check_image(files, model)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("seed", range(2))
def test_every_call_fails_once(seed: int, number: int) -> None:
    """A call fails, the member stops at once and the power is cut: nothing promised is missing."""
    total = 0

    def count(_: DiskCall) -> None:
        nonlocal total
        total += 1

    run_history(MemoryFiles(count), seed, lambda _: None)
    for failing in range(1, total + 1):
        calls = 0
        model = Model()

        def started(storage: Storage) -> None:
            nonlocal model
            model = storage.model

        def before(call: DiskCall, failing: int = failing) -> None:
            nonlocal calls
            calls += 1
            # From then on a full disk stays full, and a broken one stays broken.
            if calls >= failing and call.name != "unlink":
                raise OSError(number, "injected", call.path)

        files = MemoryFiles(before)
        try:
            run_history(files, seed, started)
        except OSError:
            for survives in fates(failing):
                model.check(recover(files.after_power_cut(survives)))


@pytest.mark.parametrize("seed", range(2))
def test_disk_fills_up(seed: int) -> None:
    """The segment that is prepared ahead cannot be allocated; later the log itself stops."""
    model = Model()

    def started(storage: Storage) -> None:
        nonlocal model
        model = storage.model
        files.bytes_max = 12_000

    files = MemoryFiles()
    with pytest.raises(OSError, match="No space left"):
        run_history(files, seed, started)
    files.bytes_max = None
    for survives in fates(seed):
        model.check(recover(files.after_power_cut(survives)))


def test_a_lost_promise_is_noticed() -> None:
    """The check itself: without its syncs the disk loses what was promised."""

    class NeverSynced(MemoryFiles):
        def fdatasync(self, descriptor: int) -> None:
            pass

    files = NeverSynced()
    make_directories(files)
    storage = Storage(files, 1)
    storage.append()
    with pytest.raises(CorruptLogError, match="ends before its checksum"):
        storage.model.check(recover(files.after_power_cut(lambda: False)))
