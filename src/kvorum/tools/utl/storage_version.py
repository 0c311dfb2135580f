"""`migrate` in place: raise or lower the version of a stopped member's storage.

The version decides which etcd may start from the directory. So far versions differ in one entry of
the database. To lower a version, the log must have no entry that the older version does not know.
The change is one transaction, in a database of etcd's as well as of ours: it happens completely or
not at all.
"""

import sys
from pathlib import Path
from typing import Final

from kvorum.network.edge import native_rows
from kvorum.state.membership.versions import Version, parse_version
from kvorum.storage.backend import Backend, Environments, open_backend
from kvorum.storage.backend.bbolt import replace_bucket
from kvorum.storage.backend.buckets import META, STORAGE_VERSION, TERM
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files import Files
from kvorum.storage.files.real import RealFiles
from kvorum.storage.wal import WalError, read_log, valid_snapshots
from kvorum.storage.wal.version import minimal_etcd_version
from kvorum.tools.cli.errors import BAD_ARGUMENTS, CommandError
from kvorum.tools.cli.invocation import Invocation
from kvorum.tools.cli.text import quoted
from kvorum.tools.offline.directories import DataDirectory
from kvorum.tools.offline.facts import ClusterBuckets
from kvorum.tools.offline.members import (
    backend_of,
    database_of,
    is_ours,
    open_database,
    require_stopped,
)

OLDEST: Final = Version(3, 5)
KNOWN: Final = (Version(3, 6), Version(3, 7))
"""Versions that a storage names; a storage of 3.5 names none."""


def run(invocation: Invocation) -> None:
    """Change the version of a member's storage."""
    invocation.require_flags("data-dir", "target-version")
    target = _target(invocation.text("target-version"))
    directory = DataDirectory(Path(invocation.text("data-dir")))
    files, environments = RealFiles(), LmdbEnvironments(native_rows())
    with require_stopped(files, directory, invocation.seconds("timeout")):
        change_version(files, environments, directory, target, is_forced=invocation.switch("force"))


def change_version(
    files: Files,
    environments: Environments,
    directory: DataDirectory,
    target: Version,
    *,
    is_forced: bool = False,
) -> None:
    """Set the storage version of a stopped member, and report the changes.

    With `is_forced` the version is set even if no migration path exists, or if the log forbids it.
    """
    with open_database(files, environments, directory) as database:
        facts = ClusterBuckets(database)
    present = _detected(facts)
    if present == target:
        _print_error_line(f"storage version up-to-date: {target.major}.{target.minor}")
        return
    needed = _needed_version(files, directory)
    try:
        steps = _steps(present.level, target)
        if target < present and target < needed:
            raise CommandError(
                "cannot downgrade storage, WAL contains newer entries, as the target version "
                f"({target}) is lower than the version ({needed}) detected from WAL logs"
            )
    except CommandError as error:
        if not is_forced:
            raise
        _print_error_line(f"normal migrate failed, trying with force: {error}")
        _write(files, environments, directory, facts, target)
        if target < KNOWN[0]:
            _print_error_line("forcefully cleared storage version")
        else:
            _print_error_line(f"forcefully set storage version: {target.major}.{target.minor}")
        return
    _write(files, environments, directory, facts, target)
    for step in steps:
        _print_error_line(f"updated storage version: {step}")


def _target(text: str) -> Version:
    if text.count(".") != 1:
        problem = f'wrong target version format, expected "X.Y", got {quoted(text)}'
        raise CommandError(problem, BAD_ARGUMENTS)
    major, minor = text.split(".")
    if not all(part.isascii() and part.isdigit() for part in (major, minor)):
        problem = f"failed to parse target version: {quoted(text)} is not of the form X.Y"
        raise CommandError(problem, BAD_ARGUMENTS)
    target = Version(int(major), int(minor))
    if target < OLDEST:
        problem = f'target version "{target.major}.{target.minor}" not supported. Minimal "3.5"'
        raise CommandError(problem, BAD_ARGUMENTS)
    return target


def _detected(facts: ClusterBuckets) -> Version:
    try:
        return parse_version((facts.get(META, STORAGE_VERSION) or b"").decode())
    except ValueError:
        if not int.from_bytes(facts.get(META, TERM) or b"", "big"):
            raise CommandError(
                "missing term information",
                hint="failed to detect storage version. Please make sure you are using data dir "
                "from etcd v3.5 and older",
            ) from None
        return OLDEST


def _needed_version(files: Files, directory: DataDirectory) -> Version:
    """Return the oldest version that knows all entries of the log after its last snapshot."""
    try:
        snapshots = valid_snapshots(files, str(directory.log))
    except (WalError, OSError) as error:
        raise CommandError(f"failed to get the lastest snapshot: {error}") from error
    try:
        log = read_log(files, str(directory.log), snapshots[-1])
        return Version(*minimal_etcd_version(log.entries))
    except (WalError, OSError, ValueError) as error:
        raise CommandError(f"failed to read wal: {error}") from error


def _steps(present: Version, target: Version) -> list[Version]:
    """Return the versions on the migration path, one minor version at a time."""
    if present.major != target.major:
        raise CommandError(
            "cannot create migration plan: changing major storage version is not supported"
        )
    steps = []
    while present != target:
        is_upgrade = present < target
        following = Version(present.major, present.minor + (1 if is_upgrade else -1))
        higher = following if is_upgrade else present
        if higher not in KNOWN:
            raise CommandError(f'cannot create migration plan: version "{higher}" is not supported')
        steps.append(following)
        present = following
    return steps


def _write(
    files: Files,
    environments: Environments,
    directory: DataDirectory,
    facts: ClusterBuckets,
    target: Version,
) -> None:
    if target < KNOWN[0]:
        facts.buckets[META].pop(STORAGE_VERSION, None)
    else:
        facts.buckets[META][STORAGE_VERSION] = str(target).encode()
    if not is_ours(directory):
        replace_bucket(files, str(database_of(directory)), META, facts.items(META))
        return
    path = str(backend_of(directory))
    backend = open_backend(files, environments, path, quota_bytes=-1)
    try:
        _put(backend, files, environments, facts.get(META, STORAGE_VERSION))
    finally:
        backend.close()


def _put(backend: Backend, files: Files, environments: Environments, version: bytes | None) -> None:
    if version is None:
        backend.delete(META, STORAGE_VERSION)
    else:
        backend.put(META, STORAGE_VERSION, version)
    stage = backend.seal()
    assert stage is not None, "there is something to write"
    commit = backend.take_staged(stage.run(files, environments))
    backend.take_committed(commit.run(files, environments))


def _print_error_line(text: str) -> None:
    sys.stderr.write(f"{text}\n")
