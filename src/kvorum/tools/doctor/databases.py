"""Check that every page, row and entry of a stopped member's database can be read.

LMDB trusts its files, so a damaged file may crash the process that reads it. A child process, which
runs this module as a program, therefore reads Kvorum's databases first.
"""

import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import Signals
from typing import NamedTuple

from kvorum.api.pb.etcdserverpb import AlarmMember, AlarmType
from kvorum.network.edge import native_rows
from kvorum.storage.backend import BackendError, View, dump, open_view
from kvorum.storage.backend.bbolt import ImageError, open_image
from kvorum.storage.backend.buckets import ALARM
from kvorum.storage.backend.images import checked_content
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles
from kvorum.tools.offline.facts import ClusterBuckets

PROBLEM_CHARACTERS_MAX = 2_000


class UnreadableError(Exception):
    """A damaged database; the text says how it is damaged."""


class ExaminedDatabase(NamedTuple):
    """The facts and alarms that a database holds."""

    path: Path
    facts: ClusterBuckets
    alarms: list[str]
    """The stored alarms, each as `NOSPACE of <member>`."""


def read_etcds(path: Path) -> ExaminedDatabase:
    """Read a whole etcd database; raises UnreadableError."""
    try:
        image = open_image(RealFiles(), str(path))
        try:
            facts = ClusterBuckets(image)
            alarms: list[str] = []
            for bucket, entries in checked_content(image):
                if bucket == ALARM:
                    alarms = [_alarm(name) for name, _ in entries]
                else:
                    deque(entries, maxlen=0)
            return ExaminedDatabase(path, facts, alarms)
        finally:
            image.close()
    except (ImageError, ValueError) as error:
        raise UnreadableError(str(error)) from error


def read_ours(directory: Path) -> ExaminedDatabase:
    """Read a whole Kvorum database; raises UnreadableError."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-P", "-m", "kvorum.tools.doctor.databases", str(directory)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode < 0:
        raise UnreadableError(f"who reads it dies of {Signals(-done.returncode).name}")
    if done.returncode:
        raise UnreadableError(done.stderr.strip()[-PROBLEM_CHARACTERS_MAX:])
    with _opened(directory) as view:
        alarms = [_alarm(name) for name, _ in view.items(ALARM)]
        return ExaminedDatabase(Path(view.path), ClusterBuckets(view), alarms)


def _alarm(name: bytes) -> str:
    alarm = AlarmMember.FromString(name)
    return f"{AlarmType.Name(alarm.alarm)} of {alarm.memberID:x}"


@contextmanager
def _opened(directory: Path) -> Iterator[View]:
    with open_view(RealFiles(), LmdbEnvironments(native_rows()), str(directory)) as view:
        yield view


def _check(directory: Path) -> int:
    try:
        with _opened(directory) as view:
            for _, entries in dump(view):
                deque(entries, maxlen=0)
    except (BackendError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_check(Path(sys.argv[1])))
