"""Examine a stopped member: its log, its snapshots and its database.

The examination changes nothing; it reports what a start would repair.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from google.protobuf.message import DecodeError

from kvorum.api.pb.etcdserverpb import Metadata
from kvorum.raft.entries import Entry
from kvorum.raft.messages import Snapshot
from kvorum.state.membership.cluster import MembershipError
from kvorum.state.membership.documents import MemberDocument, decode_member
from kvorum.storage.backend.buckets import MEMBERS
from kvorum.storage.backend.directory import FORMAT_VERSION
from kvorum.storage.files import Files
from kvorum.storage.files.interface import read_file
from kvorum.storage.files.real import RealFiles
from kvorum.storage.snap import SnapError, database_path, decode
from kvorum.storage.snap.format import parse_name
from kvorum.storage.wal import (
    CorruptLogError,
    LogContent,
    SnapshotNotInLogError,
    WalError,
    valid_snapshots,
)
from kvorum.storage.wal.decoding import SegmentScanner
from kvorum.storage.wal.framing import METADATA
from kvorum.tools.doctor.databases import ExaminedDatabase, UnreadableError, read_etcds, read_ours
from kvorum.tools.doctor.filesystem import examine_filesystem, in_use, not_readable, unreadable
from kvorum.tools.doctor.findings import Certainty, Finding, Unknown, command_line
from kvorum.tools.offline.directories import DataDirectory
from kvorum.tools.offline.histories import read_history

_CERTAIN, _LIKELY, _POSSIBLE = Certainty
_FORMAT = b"kvorum backend format "


class StoppedProgress(NamedTuple):
    """How far a stopped member got; numbers that its files do not hold are zero."""

    directory: DataDirectory
    program: str
    """The program that starts from the directory: `kvorum` or `etcd`."""
    cluster_id: int
    member_id: int
    members: list[MemberDocument]
    term: int
    commit: int
    """The index of the newest entry that is known to be committed."""
    last_index: int
    last_term: int
    checksums: dict[int, int]
    """A checksum of each committed entry that the log keeps, by its index."""

    @property
    def member(self) -> MemberDocument | None:
        """The stopped member itself; None if `members` lacks it."""
        return next((each for each in self.members if each.id == self.member_id), None)


class Examination(NamedTuple):
    """The result of examining a data directory."""

    findings: list[Finding]
    record: StoppedProgress | None
    """None if no member can start from the directory."""


def examine_directory(directory: DataDirectory) -> Examination:
    """Examine the data directory of a stopped member."""
    try:
        hindered = unreadable(directory) or in_use(directory)
        if hindered is not None:
            return Examination([hindered], None)
        examiner = _Examiner(directory)
        findings = [*examine_filesystem(directory), *examiner.findings()]
        return Examination(findings, examiner.record())
    except OSError as error:
        return Examination([not_readable(directory, error)], None)


def _checksum(entry: Entry) -> int:
    return crc32(entry.data, entry.term ^ entry.type << 31)


class _Examiner:
    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        self._files = RealFiles()
        self._backend = directory.member / "backend"
        self._etcds = directory.snap / "db"
        self._is_ours = (self._backend / "CURRENT").exists()
        self._is_whole = True
        self._snapshot: Snapshot | None = None
        self._log: LogContent | None = None
        self._database: ExaminedDatabase | None = None

    def findings(self) -> Iterator[Finding]:
        for part in (self._kind(), self._content(), self._history(), self._together()):
            for finding in part:
                self._is_whole = self._is_whole and finding.severity.value != "critical"
                yield finding

    def record(self) -> StoppedProgress | None:
        """Return how far the member got, or None if it cannot start from its directory."""
        if not self._is_whole or self._log is None or self._database is None:
            return None
        try:
            cluster = self._database.facts.cluster(self._log.metadata)
        except (MembershipError, ValueError):
            return None
        log, applied = self._log, self._database.facts.index
        commit = max(log.state.commit, applied)
        last_term = self._snapshot.term if self._snapshot is not None else 0
        return StoppedProgress(
            self._directory,
            "kvorum" if self._is_ours else "etcd",
            cluster.cluster_id,
            cluster.local_id,
            cluster.members,
            log.state.term,
            commit,
            self._last_index,
            log.entries[-1].term if log.entries else last_term,
            {each.index: _checksum(each) for each in log.entries if each.index <= commit},
        )

    @property
    def _last_index(self) -> int:
        assert self._log is not None, "the log was read"
        return (self._snapshot.index if self._snapshot else 0) + len(self._log.entries)

    def _kind(self) -> Iterator[Finding]:
        data = self._directory.data
        if self._is_ours and self._etcds.exists():
            yield Finding(
                "directories-of-two-kinds",
                _CERTAIN,
                str(data),
                "it holds a database of etcd's beside one of ours, and kvorum does not start on "
                "it; move away the one that is not the member's",
                {"etcd_database": str(self._etcds), "kvorum_database": str(self._backend)},
                (command_line("ls", "-la", str(self._etcds), str(self._backend)),),
            )
        elif self._etcds.exists():
            yield Finding(
                "directory-of-etcd",
                _CERTAIN,
                str(data),
                "it is the data directory of an etcd; kvorum starts from a directory that is made "
                "of it, and leaves this one as it is",
                {"database": str(self._etcds), "database_bytes": self._etcds.stat().st_size},
                (
                    command_line(
                        *("kvorumutl", "migrate", f"--data-dir={data}"),
                        *self._wal_flag(),
                        Unknown("--output-dir=<new data directory>"),
                    ),
                ),
            )

    def _wal_flag(self) -> tuple[str, ...]:
        return () if self._directory.wal is None else (f"--wal-dir={self._directory.wal}",)

    def _history(self) -> Iterator[Finding]:
        log = str(self._directory.log)
        try:
            known = valid_snapshots(self._files, log)
        except CorruptLogError as error:
            yield self._corrupt(error)
            return
        except WalError as error:
            yield self._unusable("log-missing", str(error))
            return
        yield from self._broken_snapshots()
        try:
            self._snapshot, self._log = read_history(
                self._files, self._directory.snap, self._directory.log
            )
        except CorruptLogError as error:
            yield self._corrupt(error)
            return
        except WalError as error:
            is_snapshot = isinstance(error, SnapshotNotInLogError) or known[-1].index > 0
            yield self._unusable("snapshot-missing" if is_snapshot else "log-missing", str(error))
            return
        tear = self._log.tear
        if tear is not None:
            yield Finding(
                "log-torn",
                _CERTAIN,
                tear.path,
                "the log ends in a batch that was being written when the machine stopped; nobody "
                "was promised anything of it, and the next start cuts it off",
                {
                    "offset": tear.offset,
                    "record": tear.record,
                    "bytes_lost": tear.bytes_lost,
                    "last_index": self._last_index,
                    "problem": tear.problem,
                },
            )

    def _corrupt(self, error: CorruptLogError) -> Finding:
        return Finding(
            "log-corrupt",
            _CERTAIN,
            error.path,
            "what was durable in the log is damaged, and the member must not start from it. If the "
            "others have a quorum, replace this member by an empty one; otherwise restore a "
            "snapshot. Check the disk and the memory of this machine",
            {"offset": error.offset, "record": error.record, "problem": error.problem},
            self._replace(),
        )

    def _unusable(self, name: str, problem: str) -> Finding:
        what = {
            "log-missing": "files of the log are missing",
            "snapshot-missing": "the log goes on from a snapshot whose file is missing or broken",
        }[name]
        return Finding(
            name,
            _CERTAIN,
            str(self._directory.snap if name == "snapshot-missing" else self._directory.log),
            f"{what}, so that the member cannot start. Put back what was moved; otherwise replace "
            "this member by an empty one, or restore a snapshot if it is the only one",
            {"problem": problem},
            self._replace(),
        )

    def _replace(self) -> tuple[str, ...]:
        """Return commands that replace the member by an empty one, filled in from its files."""
        ids = _ids(self._files, self._directory.log)
        members = _members(self._database) if self._database is not None else []
        own = next((each for each in members if ids is not None and each.id == ids.NodeID), None)
        others = ",".join(url for each in members if each is not own for url in each.client_urls)
        where = f"--endpoints={others}" if others else Unknown("--endpoints=<the others>")
        name: str = Unknown("<name>")
        peers: str = Unknown("--peer-urls=<peer url>")
        if own is not None:
            name, peers = own.name, f"--peer-urls={','.join(own.peer_urls)}"
        member = f"{ids.NodeID:x}" if ids is not None else Unknown("<member id>")
        return (
            command_line("kvorumctl", where, "member", "remove", member),
            command_line("mv", str(self._directory.data), f"{self._directory.data}.damaged"),
            command_line("kvorumctl", where, "member", "add", name, peers),
        )

    def _broken_snapshots(self) -> Iterator[Finding]:
        snap = self._directory.snap
        for name in self._files.list(str(snap)) if snap.exists() else ():
            if parse_name(name) is None:
                continue
            path = str(snap / name)
            try:
                decode(path, read_file(self._files, path))
            except SnapError as error:
                yield Finding(
                    "snapshot-broken",
                    _CERTAIN,
                    path,
                    "the file of a snapshot cannot be read; a start renames it and takes the one "
                    "before. Check the disk",
                    {"problem": str(error)},
                    (command_line("ls", "-la", str(snap)),),
                )

    def _content(self) -> Iterator[Finding]:
        if not self._is_ours and not self._etcds.exists():
            yield Finding(
                "database-missing",
                _CERTAIN,
                str(self._directory.data),
                "there is no database: neither CURRENT of a kvorum nor snap/db of an etcd",
                {"looked_for": f"{self._backend / 'CURRENT'}, {self._etcds}"},
                self._replace(),
            )
            return
        if self._is_ours:
            newer = _newer_format(self._backend / "CURRENT")
            if newer:
                yield Finding(
                    "format-too-new",
                    _CERTAIN,
                    str(self._backend),
                    "a newer kvorum wrote the database; start that version, or a newer one",
                    {"format": newer, "format_max": FORMAT_VERSION},
                    ("kvorum --version",),
                )
                return
        try:
            self._database = read_ours(self._backend) if self._is_ours else read_etcds(self._etcds)
        except UnreadableError as error:
            yield Finding(
                "database-corrupt",
                _CERTAIN,
                str(self._backend if self._is_ours else self._etcds),
                "the database is damaged, and the member must not start from it. If the others "
                "have a quorum, replace this member by an empty one; otherwise restore a snapshot. "
                "Check the disk and the memory of this machine",
                {"problem": str(error)},
                self._replace(),
            )
            return
        if self._database.alarms:
            yield Finding(
                "alarm-stored",
                _CERTAIN,
                str(self._directory.data),
                "an alarm is stored, and will be in force again after a start",
                {"alarms": ", ".join(self._database.alarms)},
                ("kvorumctl --endpoints=<its client url> doctor",),
            )

    def _together(self) -> Iterator[Finding]:
        """Compare the database with the log."""
        if self._log is None or self._database is None:
            return
        applied, begin = self._database.facts.index, self._snapshot.index if self._snapshot else 0
        evidence = {"applied_index": applied, "log_begin": begin, "log_end": self._last_index}
        if applied > self._last_index:
            yield Finding(
                "database-ahead-of-log",
                _CERTAIN,
                str(self._directory.data),
                "the database holds the effects of entries that the log does not have: the log has "
                "lost entries, or the two are not of one member and one time",
                evidence,
                self._replace(),
            )
        elif applied < begin and not self._has_received(begin):
            yield Finding(
                "database-behind-log",
                _CERTAIN,
                str(self._directory.data),
                "the log begins behind what the database holds, so that entries are missing in "
                "between; the two are not of one time, or a received database is missing",
                evidence,
                self._replace(),
            )

    def _has_received(self, index: int) -> bool:
        return Path(database_path(str(self._directory.snap), index)).exists()


def _members(database: ExaminedDatabase) -> list[MemberDocument]:
    try:
        return [decode_member(value) for _, value in database.facts.items(MEMBERS)]
    except ValueError:
        return []


def _ids(files: Files, log: Path) -> Metadata | None:
    """Return the cluster and member that a log belongs to, even if parts of it are damaged."""
    for path in sorted(log.glob("*.wal"), reverse=True):
        with suppress(WalError, DecodeError):
            for record in SegmentScanner(
                str(path), read_file(files, str(path)), None, is_last=True
            ):
                if record.type == METADATA:
                    return Metadata.FromString(record.data)
    return None


def _newer_format(current: Path) -> int:
    """Return a format version newer than FORMAT_VERSION; 0 if it is known or unreadable."""
    head = current.read_bytes().partition(b"\n")[0]
    version = head.removeprefix(_FORMAT)
    if head.startswith(_FORMAT) and version.isdigit() and int(version) > FORMAT_VERSION:
        return int(version)
    return 0
