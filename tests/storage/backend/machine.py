"""A machine that drives a backend through its protocol, step by step, against a plain model.

The log is a list of entries that never gets lost. Applying an entry changes the backend and the
model alike. After a crash the backend knows how many entries it holds: at least those it reported
durable, and its content must be the model's after exactly that many. Then the rest is applied
again, as a member does.

Every step takes a number that decides what it does; a step that makes no sense at the moment does
nothing. So any list of steps and numbers is a history.
"""

import contextlib
import random
from typing import Any

import pytest

from kvorum.api.limits import WorkLimits
from kvorum.storage.backend import Backend, BufferLimits, CorruptionError, opening
from kvorum.storage.backend.buckets import AUTH_USERS, LEASE
from kvorum.storage.backend.defragment import CopyChanges, CopyDatabase, RemoveDatabase
from kvorum.storage.backend.encoding import revision_of
from kvorum.storage.backend.flush import CommitFlush, StageFlush
from tests.storage.backend.disks import Crash, Disk
from tests.storage.backend.model import NAMES, Entry, Model

# A handful of rows, so that both halves of the cache are used, and change.
BUFFERS = BufferLimits(cache_bytes_max=1_500)
# So few that a defragmentation takes several rounds.
LIMITS = WorkLimits(defragment_switch_writes_max=3)


class Machine:
    def __init__(self, disk: Disk, backend_class: type[Backend] = Backend) -> None:
        self.disk = disk
        self.backend_class = backend_class
        self.log: list[Entry] = []
        self.durable = 0
        self.main = 1
        self.open()

    def open(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(opening, "Backend", self.backend_class)
            self.backend = opening.open_backend(
                self.disk.files,
                self.disk.environments,
                self.disk.directory,
                buffers=BUFFERS,
                limits=LIMITS,
            )
        self.flush: StageFlush | CommitFlush | None = None
        self.result: Any = None
        self.helper: CopyDatabase | CopyChanges | None = None
        self.removals: list[RemoveDatabase] = []
        self.model = Model()

    def recover(self) -> None:
        self.open()
        remembered = self.backend.applied_index
        assert self.durable <= remembered <= len(self.log)
        assert self.backend.durable_index == remembered
        assert self.backend.applied_term == (remembered and remembered // 3 + 1)
        self.durable = remembered
        for entry in self.log[:remembered]:
            entry.apply_to_model(self.model)
        self.model.check(self.backend)
        names = self.disk.files.list(self.disk.directory)
        assert [name for name in names if not name.endswith("-lock")] == [
            "CURRENT",
            "LOCK",
            self.backend.path.rpartition("/")[2],
        ]
        for index, entry in enumerate(self.log[remembered:], remembered + 1):
            self.apply(index, entry)

    def apply(self, index: int, entry: Entry) -> None:
        entry.apply(self.backend)
        entry.apply_to_model(self.model)
        self.backend.set_applied(index, index // 3 + 1)

    def run_job(self, job: Any) -> Any:
        return job.run(self.disk.files, self.disk.environments)

    # What the member does.

    def apply_entry(self, chance: random.Random) -> None:
        rows = chance.choice([0, 1, 2, 4])
        if rows:
            self.main += 1
        puts = [
            (
                revision_of(self.main, sub, tombstone=sub == 2),
                b"%d.%d" % (self.main, sub) * (sub < 3),
            )
            for sub in range(rows)
        ]
        # Compaction removes old rows and young ones alike.
        present = sorted(self.model.rows)
        deletes = chance.sample(present, min(len(present), chance.choice([0, 0, 1, 3])))
        if present and present[-1] not in deletes and chance.random() < 0.2:
            deletes.append(present[-1])
        changes = [
            (
                chance.choice([AUTH_USERS, LEASE]),
                chance.choice(NAMES),
                chance.choice([None, b"", b"%d" % len(self.log)]),
            )
            for _ in range(chance.choice([0, 0, 1, 3]))
        ]
        conf_state = b'{"voters":[%d]}' % len(self.log) if chance.random() < 0.3 else None
        entry = Entry(puts, deletes, changes, conf_state)
        self.log.append(entry)
        self.apply(len(self.log), entry)

    def end_turn(self, chance: random.Random) -> None:
        del chance
        self.backend.end_turn()

    def flush_step(self, chance: random.Random) -> None:
        """Seal, run the job of the flusher, or take its result, whichever is next."""
        del chance
        if self.flush is None:
            self.flush = self.backend.seal()
        elif self.result is None:
            self.result = self.run_job(self.flush)
        elif not isinstance(self.flush, CommitFlush):
            self.flush, self.result = self.backend.take_staged(self.result), None
        else:
            assert self.backend._sealed is not None
            index = self.backend._sealed.index
            removal = self.backend.take_committed(self.result)
            if removal is not None:
                self.removals.append(removal)
            self.flush = self.result = None
            self.durable = self.backend.durable_index
            assert self.durable == index

    def flush_whole(self, chance: random.Random) -> None:
        self.flush_step(chance)
        while self.flush is not None:
            self.flush_step(chance)

    def defragment_step(self, chance: random.Random) -> None:
        """Begin, or run the job of the helper."""
        del chance
        if not self.backend.is_defragmenting:
            self.helper = self.backend.defragment()
        elif self.helper is not None:
            self.run_job(self.helper)
            self.helper = self.backend.take_copied()

    def helper_fails(self, chance: random.Random) -> None:
        if self.helper is not None and chance.random() < 0.2:
            self.helper = None
            self.removals.append(self.backend.abandon_defragmentation())

    def remove(self, chance: random.Random) -> None:
        if self.removals:
            self.run_job(self.removals.pop(chance.randrange(len(self.removals))))

    # What happens to it.

    def crash(self, chance: random.Random) -> None:
        """Crash between two steps, between two calls of a job, or in the middle of a commit."""
        jobs: list[Any] = [None, *self.removals]
        if self.flush is not None and self.result is None:
            jobs += [self.flush] * 3
        if self.helper is not None:
            jobs += [self.helper] * 3
        job = chance.choice(jobs)
        if job is not None:
            self.disk.crash_after(chance.randrange(8))
            with contextlib.suppress(Crash):
                self.run_job(job)
        self.disk = self.disk.crash(lambda: chance.random() < 0.5)
        self.recover()

    def restart(self, chance: random.Random) -> None:
        del chance
        if not self.backend.is_flushing:
            for removal in self.removals:
                self.run_job(removal)
            self.backend.close()
            self.recover()

    # What must hold.

    def read(self, chance: random.Random) -> None:
        backend, rows = self.backend, self.model.rows
        present = sorted(rows)
        wanted = chance.choices(present, k=chance.randrange(6)) if present else []
        expected = [rows[revision] for revision in wanted]
        if chance.random() < 0.5:
            assert backend.rows(wanted) == expected
        else:
            assert [backend.row(revision) for revision in wanted] == expected
        gone = sorted({revision for entry in self.log for revision in entry.deletes})
        if gone:
            deleted = chance.choice(gone)
            with pytest.raises(CorruptionError, match=r"backend\.[0-9]+: .*it is missing"):
                backend.rows([deleted, *wanted])
            with pytest.raises(CorruptionError, match=f"revision {deleted >> 32}, .*it is missing"):
                backend.row(deleted)
        first, last = chance.randint(0, self.main) << 32, chance.randint(0, self.main + 1) << 32
        limit = chance.randint(1, 8)
        in_range = [revision for revision in present if first <= revision <= last]
        assert backend.scan_rows(first, last, limit) == [
            (revision, rows[revision]) for revision in in_range[:limit]
        ]
        name = chance.choice(NAMES)
        assert backend.get(LEASE, name) == self.model.entries.get((LEASE, name))

    def read_all(self, chance: random.Random) -> None:
        del chance
        self.model.check(self.backend)

    def check_sizes(self) -> None:
        backend = self.backend
        assert 0 < backend.size_in_use_bytes <= backend.size_bytes
        waiting = backend._active.writes + (backend._sealed.writes if backend._sealed else 0)
        assert (backend.pending_bytes == 0) == (waiting == 0)

    def step(self, name: str, number: int) -> None:
        getattr(self, name)(random.Random(number))
        self.check_sizes()


# The commoner ones are named more often; long stretches without a crash find more.
STEPS = [
    *["apply_entry"] * 5,
    *["flush_step"] * 6,
    *["defragment_step"] * 3,
    *["read"] * 3,
    "flush_whole",
    "end_turn",
    "helper_fails",
    "remove",
    "read_all",
    "crash",
    "restart",
]
