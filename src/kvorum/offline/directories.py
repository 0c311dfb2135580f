"""Data directories made beside their place, and moved there when they are complete.

Until then the place stays as it was, whatever happens, and unfinished work is removed. If the place
is an empty directory already, it stays and gets the content: it may be a mount point.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kvorum.cli.errors import CommandError
from kvorum.files.real import RealFiles

_ENDING = ".unfinished"


class Stage(NamedTuple):
    """Where the parts of a data directory are made."""

    member: Path
    wal: Path


class DataDirectory(NamedTuple):
    """A data directory, and where its log is if that is elsewhere."""

    data: Path
    wal: Path | None = None

    @property
    def member(self) -> Path:
        """The member's part of it."""
        return self.data / "member"

    @property
    def snap(self) -> Path:
        """Where its snapshots are."""
        return self.member / "snap"

    @property
    def log(self) -> Path:
        """Where its log is."""
        return self.wal or self.member / "wal"


def check_vacant(data: Path, wal: Path | None) -> None:
    """Refuse places where something is, in etcd's words."""
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise CommandError(f'data-dir "{data}" not empty or could not be read')
    if wal is not None and wal.exists():
        raise CommandError(f'wal-dir "{wal}" exists')


@contextmanager
def staged(data: Path, wal: Path | None) -> Iterator[Stage]:
    """Make a data directory, and its log elsewhere if a place is given, in the block."""
    check_vacant(data, wal)
    data = data.absolute()
    wal = wal and wal.absolute()
    files = RealFiles()
    is_there = data.exists()
    root = data / _ENDING.lstrip(".") if is_there else data.with_name(data.name + _ENDING)
    member = root / "member"
    wal_stage = member / "wal" if wal is None else wal.with_name(wal.name + _ENDING)
    # What a killed attempt left beside the place belongs to nobody.
    _remove(root)
    if wal is not None:
        _remove(wal_stage)
    made = _make_parents(data if is_there else root.parent)
    if wal is not None:
        made += _make_parents(wal_stage.parent)
    try:
        member.mkdir(0o700, parents=True)
        root.chmod(0o700)
        yield Stage(member, wal_stage)
        for path in (member, root):
            files.sync_directory(str(path))
        if wal is not None:
            wal_stage.rename(wal)
            files.sync_directory(str(wal.parent))
        try:
            (member if is_there else root).rename(data / "member" if is_there else data)
        except OSError:
            if wal is not None:
                wal.rename(wal_stage)
            raise
        files.sync_directory(str(data))
        files.sync_directory(str(data.parent))
        if is_there:
            root.rmdir()
    except BaseException:
        _remove(root)
        if wal is not None:
            _remove(wal_stage)
        for path in reversed(made):
            path.rmdir()
        raise


def _make_parents(path: Path) -> list[Path]:
    """Make a directory and those above it; return the ones that were not there."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(0o700)
    return missing[::-1]


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
