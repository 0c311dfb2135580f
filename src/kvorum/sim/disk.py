"""The disk of one machine: it outlives processes, loses power, fails, fills up and decays.

Every call that changes the disk passes here before it takes effect. The process may end at any of
these calls, or the call may fail. Durable data may decay: a bit of a file of the log, of a `.snap`
file or of an entry of the database flips silently. A member that finds the flip must report it and
stop; then the disk is restored: the bit flips back, and later writes stay.
"""

import errno
import re
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from kvorum.member.errors import StartRefused
from kvorum.sim.environments import DamagedEntry, SimulatedEnvironments
from kvorum.sim.moments import Kind
from kvorum.storage.backend.buckets import KEY
from kvorum.storage.backend.encoding import parse_row_key
from kvorum.storage.backend.errors import BackendError
from kvorum.storage.files.interface import parent, read_file
from kvorum.storage.files.memory import SECTOR_BYTES, DiskCall, MemoryFiles
from kvorum.storage.snap import SnapError
from kvorum.storage.wal.errors import CorruptLogError, WalError

# Errors that production raises for files that lack what was written into them, or hold what was
# never written.
_DAMAGE = (BackendError, WalError, SnapError, StartRefused, AssertionError)
_FAILURES = (errno.EIO, errno.ENOSPC)
_FLIPPED_BIT = re.compile(r"with bit (\d+) flipped back")
_FILE_ENDINGS = {"log": ("wal", ".wal"), "snapshot": ("snap", ".snap")}


class ProcessEnd(BaseException):
    """Ends the process. No production code may catch it."""


class DamagedFile(NamedTuple):
    """A byte of a file that differs from the byte written."""

    path: str
    offset: int
    mask: int
    byte: int
    """The byte now."""


class Disk:
    """Files and databases. `line` takes lines of the trace; `directory` is a real directory."""

    __slots__ = (
        "_calls_left",
        "_damage",
        "_directory",
        "_errors_left",
        "_fills_at",
        "_line",
        "_numbers",
        "_random",
        "_spare_bytes",
        "damage_count",
        "environments",
        "files",
        "is_cut_off",
        "member_directory",
        "takes_copies",
    )

    def __init__(
        self,
        random: Random,
        directory: str,
        member_directory: str,
        line: Callable[[str, Kind], None],
    ) -> None:
        self._random = random
        self._directory = directory
        self._line = line
        self.member_directory = member_directory
        self._numbers = 0
        # How many calls are left until the process ends, or until one fails; None: never.
        self._calls_left: int | None = None
        self._errors_left: int | None = None
        # The room that is left while the disk is full; None: enough.
        self._spare_bytes: int | None = None
        # Whether the disk fills up at a given call; None: at no call.
        self._fills_at: Callable[[DiskCall], bool] | None = None
        self._damage: list[DamagedFile | DamagedEntry] = []
        # How often bits have flipped, there and back.
        self.damage_count = 0
        self.is_cut_off = False
        # Whether its member accepts copies of databases, besides images in etcd's format.
        self.takes_copies = True
        self.files: MemoryFiles
        self.environments: SimulatedEnvironments
        self.wipe()

    def wipe(self) -> None:
        """Replace the disk with an empty one; no process may use it."""
        self._damage = []
        self.files = MemoryFiles()
        self.files.make_directory("/data")
        self.files.sync_directory("/")
        self.environments = SimulatedEnvironments(
            self.files, self._directory, self._next_number, self._survives
        )
        self.environments.takes_copies = self.takes_copies
        self.relieve()

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _survives(self) -> bool:
        return self._random.random() < 0.5

    # The process that uses it.

    def power_on(self) -> None:
        """Let a process use the disk."""
        self.is_cut_off = False
        self.files.before = self._before
        if self._spare_bytes is not None:
            self.fill_up(self._spare_bytes)

    def power_off(self, *, power_cut: bool) -> None:
        """End the process that uses the disk; a power cut may lose unsynced writes."""
        self._calls_left = self._errors_left = None
        self.environments.crash()
        self.files.before = None
        self.is_cut_off = False
        if power_cut:
            self.files = self.files.after_power_cut(self._survives)
        else:
            self.files.kill()
        strayed = self.environments.strayed
        self.environments = SimulatedEnvironments(
            self.files, self._directory, self._next_number, self._survives
        )
        self.environments.strayed = strayed
        self.environments.takes_copies = self.takes_copies

    def close(self) -> None:
        """Remove the real files."""
        self.environments.crash()

    def _before(self, call: DiskCall) -> None:
        """Count a call before it changes the disk; end the process or fail the call if due."""
        if self.environments.pause is not None:
            self.environments.pause()
        if self._calls_left is not None:
            self._calls_left -= 1
            if self._calls_left < 0:
                # Code that runs while the process ends must not reach the disk.
                if not self.is_cut_off:
                    self.is_cut_off = True
                    self._line(f"cut off before {call.name} of {call.path}", Kind.CUT_OFF)
                raise ProcessEnd
        if self._errors_left is not None:
            self._errors_left -= 1
            if self._errors_left < 0:
                self._errors_left = None
                self._line(f"{call.name} of {call.path} fails", Kind.DISK_ERROR)
                raise OSError(errno.EIO, "Input/output error", call.path)
        if self._fills_at is not None and self._fills_at(call):
            self.fill_up(0)
            self._line(f"full at {call.name} of {call.path}", Kind.DISK_FULL)
            raise OSError(errno.ENOSPC, "No space left on device", call.path)
        if self._spare_bytes is not None and call.name == "commit" and self._survives():
            raise OSError(errno.ENOSPC, "No space left on device", call.path)

    # Faults.

    def cut_off_after(self, calls: int | None) -> None:
        """End the process after `calls` further calls; None: let it run."""
        self._calls_left = calls

    def fail_after(self, calls: int | None) -> None:
        """Make one call fail after `calls` further ones; None: let none fail."""
        self._errors_left = calls

    def fill_up(self, spare_bytes: int) -> None:
        """Leave `spare_bytes` of room; files cannot grow beyond it."""
        self._fills_at = None
        self._spare_bytes = spare_bytes
        self.files.bytes_max = self.files.used_bytes() + spare_bytes

    def fill_at(self, is_the_one: Callable[[DiskCall], bool]) -> None:
        """Leave enough room until this call: it fails, and so does every growth after it."""
        self._fills_at = is_the_one

    @property
    def is_full(self) -> bool:
        """Whether files cannot grow."""
        return self._spare_bytes is not None

    def relieve(self) -> None:
        """End all failures: there is room, and no call fails."""
        self._calls_left = self._errors_left = self._spare_bytes = None
        self._fills_at = None
        self.files.bytes_max = None

    @property
    def is_damaged(self) -> bool:
        """Whether a flipped bit was not restored."""
        return bool(self._damage)

    def damaged_row(self) -> int | None:
        """Return the revision of a key's row that is damaged on the disk, if there is one."""
        directory = f"{self.member_directory}/backend"
        for each in self._damage:
            if (
                isinstance(each, DamagedEntry)
                and each.bucket == KEY
                and self.environments.is_damaged(directory, each)
            ):
                return parse_row_key(each.key)
        return None

    def flip(self, kind: str) -> bool:
        """Flip a durable bit of the log, a snapshot or the database, if there is one.

        Bits flip one at a time: no checksum promises to find any two.
        """
        if self._damage:
            return False
        if kind == "database":
            damage: DamagedFile | DamagedEntry | None = self.environments.flip(
                f"{self.member_directory}/backend", self._random
            )
        else:
            damage = self._flip_file(*_FILE_ENDINGS[kind])
        if damage is None:
            return False
        self._damage.append(damage)
        self.damage_count += 1
        self._line(f"a bit flips: {damage}", Kind.BIT_FLIPPED)
        return True

    def _flip_file(self, directory: str, ending: str) -> DamagedFile | None:
        files, random = self.files, self._random
        directory = f"{self.member_directory}/{directory}"
        if not files.exists(directory):
            return None
        paths = [f"{directory}/{name}" for name in files.list(directory) if name.endswith(ending)]
        paths = [path for path in paths if files.is_durable(path)]
        if not paths:
            return None
        # A start reads the newest file.
        path = paths[-1] if random.random() < 0.6 else random.choice(paths)
        content = read_file(files, path)
        length = len(content.rstrip(b"\0"))
        if not length:
            return None
        offset = random.randrange(length)
        mask = 1 << random.randrange(8)
        files.flip(path, offset, mask)
        return DamagedFile(path, offset, mask, content[offset] ^ mask)

    def restore(self) -> None:
        """Flip back every flipped bit that is still there; no process may use the disk."""
        damage, self._damage = self._damage, []
        self.damage_count += 1
        for each in reversed(damage):
            if isinstance(each, DamagedEntry):
                self.environments.restore(f"{self.member_directory}/backend", each)
                continue
            if not self.files.exists(each.path) and self.files.exists(f"{each.path}.broken"):
                # A start has renamed the damaged file.
                self.files.rename(f"{each.path}.broken", each.path)
                self.files.sync_directory(parent(each.path))
            if self.files.exists(each.path):
                content = read_file(self.files, each.path)
                if each.offset < len(content) and content[each.offset] == each.byte:
                    self.files.flip(each.path, each.offset, each.mask)
        if damage:
            self._line("disk restored", Kind.DISK_RESTORED)

    def explains(self, error: BaseException) -> bool:
        """Return whether a fault explains this error of a process that stopped.

        A failed call is among the error's causes, or the error reports damage, and there is some.
        """
        if any(isinstance(each, OSError) and each.errno in _FAILURES for each in causes(error)):
            return True
        if self._damage:
            return is_caused_by(error, *_DAMAGE)
        return any(
            isinstance(each, CorruptLogError) and self._lacks(each) for each in causes(error)
        )

    def _lacks(self, error: CorruptLogError) -> bool:
        """Return whether a log is refused for one bit that was all that a lost sector held.

        A lost bit looks like a flipped one; production refuses both, and `restore` sets the bit.
        """
        found = _FLIPPED_BIT.search(error.problem)
        if found is None:
            return False
        offset, bit = divmod(int(found[1]), 8)
        sector = offset // SECTOR_BYTES * SECTOR_BYTES
        content = read_file(self.files, error.path)
        if any(content[max(sector, error.offset) : sector + SECTOR_BYTES]):
            return False
        self._damage.append(DamagedFile(error.path, offset, 1 << bit, 0))
        self.damage_count += 1
        return True


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that it was raised from."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def is_caused_by(error: BaseException, *kinds: type[BaseException]) -> bool:
    """Return whether an error, or one that it was raised from, is of some kind."""
    return any(isinstance(each, kinds) for each in causes(error))
