"""Reads a log: the entries after a snapshot, the newest state, and the valid snapshots.

Reading changes nothing and takes no lock, so a tool may read the log of a running member.

The checksum covers the data of a record, but not its type, and the messages of the types resemble
each other. Reading therefore also checks Raft's guarantees: terms and the commit index never go
back, and no entry replaces a committed one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from kvorum.api.codec import read_varint
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.messages import NO_HARD_STATE, NO_MEMBERS, ConfState, HardState
from kvorum.raft.wire import decode_conf_state, decode_entry, decode_hard_state, encode_hard_state
from kvorum.storage.files import Files, Opening
from kvorum.storage.wal.decoding import HEAD, LogRecord, SegmentScanner, Tear, unproved_checksum
from kvorum.storage.wal.errors import CorruptLogError, SegmentsMissingError, SnapshotNotInLogError
from kvorum.storage.wal.framing import ENTRY, METADATA, RECORD_NAMES, SNAPSHOT, STATE
from kvorum.storage.wal.segments import Segment, check_gapless, list_segments, segments_from
from kvorum.storage.wal.skimming import Skim, Skimmed

_HEAD_BYTES_MAX = 4096
"""Enough bytes to see that a segment has more than a head, as most have."""

Decoded = TypeVar("Decoded")


@dataclass(slots=True, frozen=True)
class SnapshotRecord:
    """The log's record of a taken or received snapshot, which is durable in its own file."""

    index: int = 0
    term: int = 0
    conf_state: ConfState = NO_MEMBERS


class LogContent(NamedTuple):
    """The content of a log from a snapshot on. The entries follow the snapshot without a gap."""

    metadata: bytes
    state: HardState
    entries: list[Entry]
    tear: Tear | None
    """The part of the last segment to cut off, because it was never durable."""
    segments: list[Segment]
    end: int
    """The offset of the next record in the last segment."""
    crc: int
    void: Segment | None
    """A segment after the last one, to be removed because it does not continue the last one."""
    doubtful_end: int | None
    """The end of data in the segment before the last, if that data may not be durable."""
    durable_end: int
    """The offset in the last segment from which data may not be durable."""


def decode_snapshot_record(data: bytes) -> SnapshotRecord:
    """Decode a walpb.Snapshot; raise ValueError for other bytes."""
    scalars, members, offset = [0, 0, 0], b"", 0
    while offset < len(data):
        tag, offset = read_varint(data, offset)
        value, offset = read_varint(data, offset)
        if tag in (0x08, 0x10):
            scalars[tag >> 3] = value
        elif tag == 0x1A and offset + value <= len(data):
            members = data[offset : offset + value]
            offset += value
        else:
            raise ValueError(f"field tag {tag:#x} before offset {offset} in a snapshot record")
    return SnapshotRecord(scalars[1], scalars[2], decode_conf_state(members))


class _Scan:
    """Scans segments in order, and keeps the metadata, the newest state and the end.

    With `skim`, compiled code checks entries up to the index `after`, most of which the scan then
    does not yield.
    """

    __slots__ = (
        "_after",
        "_directory",
        "_files",
        "_segments",
        "_skim",
        "doubtful_end",
        "metadata",
        "scanner",
        "skims",
        "state",
        "states",
        "void",
    )

    def __init__(
        self,
        files: Files,
        directory: str,
        segments: list[Segment],
        skim: Skim | None = None,
        after: int = 0,
    ) -> None:
        self._files = files
        self._directory = directory
        self._segments = segments
        self._skim = skim
        self._after = after
        self.skims = skim is not None
        """Whether `skim` still passes over entries."""
        self.metadata: bytes | None = None
        self.state = NO_HARD_STATE
        self.states = 0
        self.scanner: SegmentScanner
        self.void: Segment | None = None
        self.doubtful_end: int | None = None

    def __iter__(self) -> Iterator[LogRecord]:
        """Yield the records of entries and snapshots, and process the others."""
        *before, last = self._segments
        crc: int | None = None
        unproved = self._unproved(last) if before else None
        for segment in before:
            may_be_torn = unproved is not None and segment is before[-1]
            yield from self._scan(segment, crc, is_last=may_be_torn)
            crc = self.scanner.crc
            if may_be_torn and (self.scanner.tear is not None or crc != unproved):
                self.void = last
                if self.scanner.tear is None:
                    self.scanner.tear_here(f"the next segment continues {unproved:#010x}")
                return
            self.doubtful_end = self.scanner.end
        yield from self._scan(last, crc, is_last=True)

    def _unproved(self, last: Segment) -> int | None:
        """Return the last segment's first checksum, if it does not prove the one before durable.

        No promise depends on such a segment, and perhaps none on the batch before the cut, so the
        scan treats the segment before it as a possible end of the log.
        """
        path = f"{self._directory}/{last.name}"
        descriptor = self._files.open(path, Opening.READ)
        try:
            if unproved_checksum(path, self._files.pread(descriptor, 0, _HEAD_BYTES_MAX)) is None:
                return None
            size = self._files.size(descriptor)
            return unproved_checksum(path, self._files.pread(descriptor, 0, size))
        finally:
            self._files.close(descriptor)

    def _scan(self, segment: Segment, crc: int | None, *, is_last: bool) -> Iterator[LogRecord]:
        path = f"{self._directory}/{segment.name}"
        skim = self._pass_over if self.skims else None
        self.scanner = SegmentScanner(path, b"", crc, is_last=is_last, files=self._files, skim=skim)
        for record in self.scanner:
            if record.type == ENTRY or record.type == SNAPSHOT:
                yield record
            elif record.type == STATE:
                self._note_state(record)
            elif record.type == METADATA:
                if self.metadata is not None and self.metadata != record.data:
                    raise self.corrupt(
                        record,
                        f"metadata {record.data.hex()} of another member or cluster; "
                        f"the segment before has {self.metadata.hex()}",
                    )
                self.metadata = record.data
            elif record.number:
                # The checksum at the end of a head proves the previous segment durable.
                self.doubtful_end = None

    def _pass_over(self, scanner: SegmentScanner) -> None:
        if scanner.number < len(HEAD) or not self.skims:
            return
        assert self._skim is not None and scanner.crc is not None, "a head was read"
        passed = Skimmed(
            *self._skim(
                scanner.segment,
                scanner.end - scanner.start,
                scanner.crc,
                self._after,
                self.state,
            )
        )
        scanner.end, scanner.crc = scanner.start + passed.end, passed.crc
        scanner.number += passed.records
        if passed.durable_end:
            scanner.durable_end = scanner.start + passed.durable_end
        self.states += passed.states
        self.state = HardState(*passed.state)

    def _note_state(self, record: LogRecord) -> None:
        self.states += 1
        state = self.decode(decode_hard_state, record)
        before = self.state
        if encode_hard_state(state) != record.data:
            raise self.corrupt(record, f"{record.data.hex()} is not a state in its only form")
        # Do not compare with the terms of entries: a tear may leave entries of a new term and
        # remove the state written with them, and then the member continues in the old term.
        if state.term < before.term or state.commit < before.commit:
            raise self.corrupt(record, f"{state} goes back behind {before}")
        self.state = state

    def decode(self, decoder: Callable[[bytes], Decoded], record: LogRecord) -> Decoded:
        """Decode the data of a record; its checksum is valid, so a failure is corruption."""
        try:
            return decoder(record.data)
        except ValueError as error:
            name = RECORD_NAMES[record.type]
            raise self.corrupt(record, f"not a readable {name}: {error}") from error

    def corrupt(self, record: LogRecord, problem: str) -> CorruptLogError:
        return CorruptLogError(self.scanner.path, record.offset, record.number, problem)


class _Tail:
    """Collects the entries of a log from a snapshot on."""

    __slots__ = ("_problem", "_snapshot", "entries", "is_found")

    def __init__(self, snapshot: SnapshotRecord) -> None:
        self._snapshot = snapshot
        self._problem = "the log has none of that index"
        self.is_found = False
        self.entries: list[Entry] = []

    def note_snapshot(self, known: SnapshotRecord) -> None:
        """Check whether a snapshot's record is that of the wanted snapshot."""
        if known.index == self._snapshot.index:
            self.is_found = known.term == self._snapshot.term
            self._problem = f"the log has one of term {known.term} at that index"

    def add(self, scan: _Scan, record: LogRecord) -> None:
        """Add an entry, which replaces an earlier one of the same index and all after that."""
        entry = scan.decode(decode_entry, record)
        start = self._snapshot.index
        if entry.index <= start:
            # This entry also replaced all later ones; those still in the log follow again.
            self.entries.clear()
            return
        misplaced = _misplaced(entry, self.entries, start, scan.state.commit)
        if misplaced:
            raise scan.corrupt(record, misplaced)
        del self.entries[entry.index - start - 1 :]
        self.entries.append(entry)

    @property
    def last_index(self) -> int:
        """The index of the last entry, or of the snapshot."""
        return self._snapshot.index + len(self.entries)

    def content(self, scan: _Scan, directory: str, segments: list[Segment]) -> LogContent:
        """Return the content after the scan has yielded its last record."""
        if not self.is_found:
            snapshot = self._snapshot
            raise SnapshotNotInLogError(directory, snapshot.index, snapshot.term, self._problem)
        end, last = scan.scanner, self.last_index
        if scan.state.commit > last:
            raise CorruptLogError(
                end.path,
                end.end,
                end.number,
                f"the log ends at index {last}, but {scan.state.commit} was committed",
            )
        assert scan.metadata is not None and end.crc is not None, "every segment has a head"
        return LogContent(
            scan.metadata,
            scan.state,
            self.entries,
            end.tear,
            segments if scan.void is None else segments[:-1],
            end.end,
            end.crc,
            scan.void,
            scan.doubtful_end,
            end.durable_end,
        )


def read_log(
    files: Files,
    directory: str,
    snapshot: SnapshotRecord,
    withdrawn: SnapshotRecord | None = None,
) -> LogContent:
    """Return the log's content after a snapshot, of which the log must have a record.

    An entry replaces an earlier one of the same index and all after that. `withdrawn` is a received
    snapshot that has no file and was never installed: reading ends before its record.
    """
    segments = segments_from(files, directory, snapshot.index)
    place = withdrawn and _place_of(_Scan(files, directory, segments), withdrawn)
    scan = _Scan(files, directory, segments)
    tail = _Tail(snapshot)
    for record in scan:
        if record.type == ENTRY:
            tail.add(scan, record)
            continue
        known = scan.decode(decode_snapshot_record, record)
        if place == (scan.scanner.path, record.offset):
            scan.scanner.tear_here(f"the snapshot at index {known.index} was never installed")
            break
        tail.note_snapshot(known)
    return tail.content(scan, directory, segments)


def survey_log(
    files: Files, directory: str, expected: SnapshotRecord, skim: Skim | None = None
) -> tuple[list[SnapshotRecord], LogContent | None]:
    """Return the results of `valid_snapshots` and `read_log` from one pass over a whole log.

    The content begins at `expected`, the snapshot from which the member probably starts. It is None
    if the log has anything unusual, which the caller must read with `read_log`.
    """
    segments = _all_segments(files, directory)
    scan = _Scan(files, directory, segments, skim, expected.index)
    snapshots: list[SnapshotRecord] = []
    tail: _Tail | None = _Tail(expected)
    for record in scan:
        if record.type == SNAPSHOT:
            known = scan.decode(decode_snapshot_record, record)
            snapshots.append(known)
            if tail is not None:
                tail.note_snapshot(known)
        elif tail is not None:
            try:
                tail.add(scan, record)
            except CorruptLogError:
                tail = None
            # From here on, an entry that `skim` would pass over may replace collected ones.
            scan.skims = False
    content: LogContent | None = None
    if tail is not None and tail.is_found and scan.state.commit <= tail.last_index:
        content = tail.content(scan, directory, segments_from(files, directory, expected.index))
    return _committed(snapshots, scan.state), content


def _place_of(scan: _Scan, withdrawn: SnapshotRecord) -> tuple[str, int] | None:
    """Return the file and offset of the record of a snapshot that was never installed.

    Before it installs a snapshot, a member writes only data that came with the snapshot, and
    promises nothing. At most entries, one state, and records of older snapshots thus follow the
    record, and no further segment. Raises CorruptLogError if more follows, because the snapshot was
    then installed.
    """
    path, offset, number, states = "", 0, 0, 0
    more = False
    for record in scan:
        if record.type == SNAPSHOT:
            if scan.decode(decode_snapshot_record, record) == withdrawn:
                path, offset, number, states = (
                    scan.scanner.path,
                    record.offset,
                    record.number,
                    scan.states,
                )
                more = False
        elif path:
            more = more or scan.states > states
    if not path:
        return None
    if more or scan.states > states + 1 or scan.scanner.path != path:
        raise CorruptLogError(
            path,
            offset,
            number,
            f"the log goes on behind the record of the snapshot at index {withdrawn.index}, but "
            f"the file of that snapshot is missing, and the backend is behind it",
        )
    return path, offset


def _misplaced(entry: Entry, entries: list[Entry], start: int, commit: int) -> str:
    """Return the reason why an entry cannot follow the entries before it; empty if it can."""
    position = entry.index - start - 1
    if position > len(entries):
        return f"entry {entry.index} follows entry {start + len(entries)}; there is a gap"
    if entry.index <= commit:
        return f"entry {entry.index} would replace one, but {commit} was committed"
    if position and entry.term < entries[position - 1].term:
        return f"term {entry.term} follows term {entries[position - 1].term}"
    if entry.type == EntryType.CONF_CHANGE and not entry.data:
        return f"entry {entry.index} changes the membership, but does not say how"
    return ""


def valid_snapshots(files: Files, directory: str) -> list[SnapshotRecord]:
    """Return the snapshots a member may start from, oldest first.

    Valid snapshots are at or below the newest commit index: the member writes a received snapshot's
    record before the state with its commit index, and the snapshot is invalid without that state.
    """
    scan = _Scan(files, directory, _all_segments(files, directory))
    snapshots = [
        scan.decode(decode_snapshot_record, record) for record in scan if record.type == SNAPSHOT
    ]
    return _committed(snapshots, scan.state)


def _all_segments(files: Files, directory: str) -> list[Segment]:
    segments = list_segments(files, directory)
    if not segments:
        raise SegmentsMissingError(directory, "there is no file of a log")
    check_gapless(directory, segments)
    return segments


def _committed(snapshots: list[SnapshotRecord], state: HardState) -> list[SnapshotRecord]:
    return [snapshot for snapshot in snapshots if snapshot.index <= state.commit]
