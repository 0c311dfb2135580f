"""`dump wal`: show the entries of a log from a snapshot or an index on, as a member reads them.

A later entry of the same index replaces the earlier one and all after it. The log is read twice,
first for the summary above the entries, so that memory holds one record at a time. Of a damaged
log, everything before the damage is shown, and then the problem.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from kvorum.api.pb import walpb
from kvorum.api.pb.etcdserverpb import Metadata
from kvorum.api.pb.raftpb import Entry, HardState
from kvorum.raft.messages import Snapshot
from kvorum.state.membership.documents import encode_conf_state
from kvorum.storage.files import Files
from kvorum.storage.files.interface import read_file
from kvorum.storage.snap import SnapError, decode
from kvorum.storage.snap.format import parse_name
from kvorum.storage.wal.framing import CRC, ENTRY, METADATA, SNAPSHOT, STATE
from kvorum.storage.wal.segments import segments_from
from kvorum.tools.cli.errors import CommandError
from kvorum.tools.utl.dumps.decoding import EntryDecoder, decoded_columns
from kvorum.tools.utl.dumps.lines import DumpOutput, warn
from kvorum.tools.utl.dumps.members import nodes_text
from kvorum.tools.utl.dumps.records import ReadProblem, RecordReader
from kvorum.tools.utl.dumps.requests import CONFIG_CHANGE, NORMAL, Described, describe
from kvorum.tools.utl.dumps.tree import ENTRY_TYPES

USUAL_TYPES = f"{NORMAL},{CONFIG_CHANGE}"
NO_END = (1 << 64) - 1


class LogLocation(NamedTuple):
    """The directories of a log and of its snapshots."""

    snap: Path
    wal: Path


class Choice(NamedTuple):
    """The selection of entries."""

    start_snap: str = ""
    """The name of the snapshot file after which to start; empty means the newest."""
    start_index: int | None = None
    """The first entry to show, regardless of snapshots."""
    end_index: int = NO_END
    """The index after the last entry to show."""
    types: str = USUAL_TYPES


@dataclass
class _Overview:
    """The results of the first reading."""

    start: int
    """The index before the first entry."""
    last: int
    metadata: Metadata | None = None
    state: HardState = field(default_factory=HardState)
    terms: list[int] = field(default_factory=list)
    """Terms of the log's snapshot records at the start index."""
    cuts: list[tuple[int, int]] = field(default_factory=list)
    """Entries that replace others: the number of records before them, and the entry's index."""
    records: int = 0
    """The number of records before the problem, or of all."""
    problem: ReadProblem | None = None


def dump_log(
    files: Files,
    lines: DumpOutput,
    location: LogLocation,
    choice: Choice,
    decoder: EntryDecoder | None,
) -> None:
    """Show entries; on a damaged log, show those before the damage and raise CommandError."""
    snapshot = None
    if choice.start_index is None:
        snapshot = _snapshot(files, location.snap, choice.start_snap)
    _show_start(lines, choice, snapshot)
    start, directory = 0, str(location.wal)
    if choice.start_index is not None:
        start = max(0, choice.start_index - 1)
    elif snapshot is not None:
        start = snapshot.index
    segments = segments_from(files, directory, choice.start_index or start)
    names = [segment.name for segment in segments]
    overview = _look(RecordReader(files, directory, names), start)
    if choice.start_index is None:
        _check_snapshot(overview, snapshot)
    end = min(overview.last + 1, choice.end_index)
    _show_overview(lines, overview, end, has_decoder=decoder is not None)
    wanted = _wanted(choice.types)
    count = 0
    for entry in _entries(RecordReader(files, directory, names), overview, end):
        described = describe(entry)
        if not wanted.isdisjoint(described.words):
            count += 1
            _show_entry(lines, entry, described, decoder)
    if lines.is_json:
        lines.object({"kind": "end", "entry_types": choice.types, "count": count})
    else:
        lines.text()
        lines.text(f"Entry types ({choice.types}) count is : {count}")
    problem = overview.problem
    if problem is not None and problem.is_torn:
        warn(f"The last record was not written completely, and does not count: {problem}")
    elif problem is not None:
        raise CommandError(f"Failed reading WAL: {problem}")


def _snapshot(files: Files, directory: Path, name: str) -> Snapshot | None:
    """Return the named snapshot, or the newest undamaged one; None if there is none."""
    try:
        if name:
            path = str(directory / name)
            return decode(path, read_file(files, path))
        for each in reversed(files.list(str(directory))):
            if parse_name(each) is not None:
                path = str(directory / each)
                try:
                    return decode(path, read_file(files, path))
                except SnapError as error:
                    warn(f"Passed over: {error}")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CommandError(f"Failed loading snapshot: open {error.filename}: {reason}") from error
    except SnapError as error:
        raise CommandError(f"Failed loading snapshot: {error}") from error
    return None


def _check_snapshot(overview: _Overview, snapshot: Snapshot | None) -> None:
    term = 0 if snapshot is None else snapshot.term
    if any(each != term for each in overview.terms):
        raise CommandError("Failed reading WAL: wal: snapshot mismatch")
    problem = overview.problem
    if not overview.terms and (problem is None or problem.is_torn):
        raise CommandError(
            "Failed reading WAL: wal: snapshot not found",
            hint=f"the log has no record of a snapshot at index {overview.start}; --start-index "
            "shows entries without one",
        )


def _look(reader: RecordReader, start: int) -> _Overview:
    overview = _Overview(start, start)
    metadata: bytes | None = None
    for record in reader:
        text = ""
        try:
            if not record.is_right:
                text = "wal: crc mismatch"
            elif record.type == ENTRY:
                text = _note_entry(overview, Entry.FromString(record.data))
            elif record.type == STATE:
                overview.state = HardState.FromString(record.data)
            elif record.type == METADATA:
                if metadata not in (None, record.data):
                    text = "wal: conflicting metadata found"
                metadata = record.data
                overview.metadata = Metadata.FromString(record.data)
            elif record.type == SNAPSHOT:
                taken = walpb.Snapshot.FromString(record.data)
                if taken.index == start:
                    overview.terms.append(taken.term)
            elif record.type != CRC:
                text = f"unexpected block type {record.type}"
        except DecodeError:
            text = f"a record of type {record.type} that cannot be read"
        if text:
            overview.problem = ReadProblem(record.segment, record.offset, text, False)
            return overview
        overview.records += 1
    overview.problem = reader.problem
    return overview


def _note_entry(overview: _Overview, entry: Entry) -> str:
    """Return why an entry cannot follow the entries before it; empty if it can."""
    if entry.Index <= overview.start:
        return ""
    if entry.Index > overview.last + 1:
        return f"entry {entry.Index} follows entry {overview.last}; there is a gap"
    if entry.Index <= overview.last:
        overview.cuts.append((overview.records, entry.Index))
    overview.last = entry.Index
    return ""


def _entries(reader: RecordReader, overview: _Overview, end: int) -> Iterator[Entry]:
    """Yield the entries that no later entry replaces."""
    lowest = NO_END
    bounds = []
    for position, index in reversed(overview.cuts):
        lowest = min(lowest, index)
        bounds.append((position, lowest))
    for position, record in enumerate(reader):
        if position >= overview.records:
            return
        while bounds and bounds[-1][0] <= position:
            bounds.pop()
        if record.type == ENTRY:
            entry = Entry.FromString(record.data)
            below = bounds[-1][1] if bounds else NO_END
            if overview.start < entry.Index < min(below, end):
                yield entry


def _wanted(types: str) -> set[str]:
    wanted = set()
    for word in types.split(",") if types else ():
        if word in ENTRY_TYPES:
            wanted.add(word)
        else:
            warn(
                f"[{word}] is not a valid entry-type, ignored.\n"
                f"Please set entry-type to one or more of the following:\n{', '.join(ENTRY_TYPES)}"
            )
    return wanted


def _show_start(lines: DumpOutput, choice: Choice, snapshot: Snapshot | None) -> None:
    shown: dict[str, Any] | None = None
    if snapshot is not None:
        members = encode_conf_state(snapshot.conf_state)
        shown = {
            "term": snapshot.term,
            "index": snapshot.index,
            "conf_state": json.loads(members),
        }
    if lines.is_json:
        lines.object({"kind": "start", "start_index": choice.start_index, "snapshot": shown})
        return
    if choice.start_index is not None:
        lines.text(f"Start dumping log entries from index {choice.start_index}.")
        return
    lines.text("Snapshot:")
    if snapshot is None:
        lines.text("empty")
    else:
        lines.text(
            f"term={snapshot.term} index={snapshot.index} "
            f"nodes={nodes_text(snapshot.conf_state.voters)} confstate={members.decode()}"
        )
    lines.text("Start dumping log entries from snapshot.")


def _show_overview(lines: DumpOutput, overview: _Overview, end: int, *, has_decoder: bool) -> None:
    metadata, state = overview.metadata or Metadata(), overview.state
    count = max(0, end - 1 - overview.start)
    if lines.is_json:
        lines.object(
            {
                "kind": "metadata",
                "node_id": metadata.NodeID,
                "cluster_id": metadata.ClusterID,
                "term": state.term,
                "commit": state.commit,
                "vote": state.vote,
                "entries": count,
                "last_index": end - 1 if count else None,
            }
        )
        return
    lines.text("WAL metadata:")
    lines.text(
        f"nodeID={metadata.NodeID:x} clusterID={metadata.ClusterID:x} term={state.term} "
        f"commitIndex={state.commit} vote={state.vote:x}"
    )
    lines.text(f"WAL entries: {count}")
    if count:
        lines.text(f"lastIndex={end - 1}")
    more = "\tdecoder_status\tdecoded_data" if has_decoder else ""
    lines.text(f"term\t     index\ttype\tdata{more}")


def _show_entry(
    lines: DumpOutput, entry: Entry, described: Described, decoder: EntryDecoder | None
) -> None:
    answer = None if decoder is None else decoder.ask(described.data)
    if lines.is_json:
        shown = {
            "kind": "entry",
            "term": entry.Term,
            "index": entry.Index,
            "type": described.type,
            **described.shown,
            "data": described.data,
        }
        if answer is not None:
            status, data = decoded_columns(answer)
            shown |= {"decoder_status": status, "decoded_data": data}
        lines.object(shown)
        return
    text = f"{entry.Term:4d}\t{entry.Index:10d}\t{described.type}\t{described.text}"
    if answer is not None:
        text += "\t" + "\t".join(decoded_columns(answer))
    lines.text(text)
