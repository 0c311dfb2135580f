"""A log file that rotates by size, with the names and rules of the Go library lumberjack.

Before a write that would exceed the size limit, the file is renamed to `<stem>-<time><extension>`
and a new one is created. A thread compresses and deletes old files.

No written line is lost, whenever the process ends: a renamed file keeps its content, no two old
files get the same name, and an old file is removed only once its compressed copy is synced. While
no new file can be created, lines go to the current one.
"""

import gzip
import os
import re
import shutil
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kvorum.server.telemetry.rotation_rules import RotationRules
from kvorum.storage.platform.files import sync_all

COMPRESSED = ".gz"
UNFINISHED = ".part"
"""Suffix of an incomplete compressed copy; the next attempt overwrites it."""
MODE_NEW = 0o600
_APPENDED = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3}", re.ASCII)


def current_time() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


class RotatingFile:
    """A file with a size limit. Writing never raises."""

    def __init__(
        self, path: str, rules: RotationRules, now: Callable[[], datetime] = current_time
    ) -> None:
        """Open or create the file and its directories; raise OSError on failure."""
        self._path = Path(path)
        self._rules = rules
        self._now = now
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.descriptor = os.open(path, _APPENDED, MODE_NEW)
        found = os.fstat(self.descriptor)
        self._size = found.st_size
        # As in lumberjack, an existing file must at first stay below the limit, not just within it.
        self._limit = rules.bytes_max - 1 if self._size else rules.bytes_max
        self._is_rotated = stat.S_ISREG(found.st_mode)
        self._lock = threading.Lock()
        self._is_tidying = self._is_tidied_again = False
        self._tidy_soon()

    def write(self, data: bytes) -> bool:
        """Write whole lines; return whether the write succeeded."""
        if self._is_rotated and self._size and self._size + len(data) > self._limit:
            # If rotation fails, the lines go to the current file.
            with suppress(OSError):
                self._rotate()
        self._limit = self._rules.bytes_max
        try:
            while data:
                count = os.write(self.descriptor, data)
                self._size += count
                data = data[count:]
        except OSError:
            return False
        return True

    def _rotate(self) -> None:
        found = os.fstat(self.descriptor)
        with suppress(FileNotFoundError):
            self._path.rename(self._free_name())
        descriptor = os.open(self._path, _APPENDED, stat.S_IMODE(found.st_mode))
        with suppress(OSError):
            os.fchown(descriptor, found.st_uid, found.st_gid)
        os.close(self.descriptor)
        self.descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self._tidy_soon()

    def _free_name(self) -> Path:
        moment = self._now()
        while True:
            found = backup_path(self._path, moment, local=self._rules.local_time)
            if not found.exists() and not Path(f"{found}{COMPRESSED}").exists():
                return found
            moment += timedelta(milliseconds=1)

    def _tidy_soon(self) -> None:
        rules = self._rules
        if not (rules.compress or rules.days_max > 0 or rules.backups_max > 0):
            return
        with self._lock:
            self._is_tidied_again = self._is_tidying
            if self._is_tidying:
                return
            self._is_tidying = True
        try:
            # A daemon thread does not delay the end of the process; the next start does the rest.
            threading.Thread(target=self._tidy, name="log rotation", daemon=True).start()
        except RuntimeError:
            self._is_tidying = False

    def _tidy(self) -> None:
        while True:
            with suppress(OSError):
                tidy(self._path, self._rules, self._now())
            with self._lock:
                self._is_tidying = self._is_tidied_again
                self._is_tidied_again = False
                if not self._is_tidying:
                    return


def backup_path(path: Path, moment: datetime, *, local: bool) -> Path:
    """Return the path of a file that is rotated at this moment."""
    moment = moment.astimezone(None if local else UTC)
    stem, extension = _split(path.name)
    text = f"{moment:%Y-%m-%dT%H-%M-%S}.{moment.microsecond // 1000:03}"
    return path.with_name(f"{stem}-{text}{extension}")


def tidy(path: Path, rules: RotationRules, now: datetime) -> None:
    """Delete surplus and expired old files, and compress the others; raise OSError on failure."""
    kept: list[Path] = []
    names: set[str] = set()
    oldest = now - timedelta(days=rules.days_max) if rules.days_max > 0 else None
    for moment, found in old_files(path, local=rules.local_time):
        # A file and its compressed copy count once.
        names.add(found.name.removesuffix(COMPRESSED))
        is_one_too_many = 0 < rules.backups_max < len(names)
        if is_one_too_many or (oldest is not None and moment < oldest):
            found.unlink(missing_ok=True)
        else:
            kept.append(found)
    if rules.compress:
        for found in kept:
            if found.suffix != COMPRESSED:
                _compress(found)


def old_files(path: Path, *, local: bool) -> list[tuple[datetime, Path]]:
    """Return the rotated files with the times in their names, newest first."""
    stem, extension = _split(path.name)
    files: list[tuple[datetime, Path]] = []
    for found in path.parent.iterdir():
        name = found.name.removesuffix(COMPRESSED) if found.name != path.name else ""
        if not (name.startswith(f"{stem}-") and name.endswith(extension)):
            continue
        text = name[len(stem) + 1 : len(name) - len(extension)]
        if _TIME.fullmatch(text) and not found.is_dir():
            with suppress(ValueError):
                moment = datetime.strptime(text, "%Y-%m-%dT%H-%M-%S.%f")
                zoned = moment.astimezone() if local else moment.replace(tzinfo=UTC)
                files.append((zoned, found))
    return sorted(files, key=lambda each: each[0], reverse=True)


def _split(name: str) -> tuple[str, str]:
    """Split a name before its last dot, even a leading one."""
    stem, dot, extension = name.rpartition(".")
    return (stem, dot + extension) if dot else (name, "")


def _compress(path: Path) -> None:
    """Replace a file by a compressed copy with the same mode and owner."""
    unfinished = f"{path}{COMPRESSED}{UNFINISHED}"
    with path.open("rb") as source:
        found = os.fstat(source.fileno())
        mode = stat.S_IMODE(found.st_mode)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with os.fdopen(os.open(unfinished, flags, mode), "wb") as target:
            with suppress(OSError):
                os.fchown(target.fileno(), found.st_uid, found.st_gid)
            with gzip.GzipFile(path.name, "wb", fileobj=target) as packed:
                shutil.copyfileobj(source, packed)
            target.flush()
            sync_all(target.fileno())
    Path(unfinished).rename(f"{path}{COMPRESSED}")
    path.unlink()
