"""`dump wal --raw`: show every record of a log in the order of its files, even replaced ones.

After a wrong checksum, reading continues, and no other one is reported before the next checkpoint.
"""

from typing import Any

from google.protobuf.message import DecodeError

from kvorum.api.pb import walpb
from kvorum.api.pb.etcdserverpb import Metadata
from kvorum.api.pb.raftpb import Entry, EntryType, HardState
from kvorum.storage.files import Files
from kvorum.storage.wal.framing import CRC, ENTRY, METADATA, SNAPSHOT, STATE
from kvorum.tools.cli.errors import CommandError
from kvorum.tools.utl.dumps.lines import DumpOutput, warn
from kvorum.tools.utl.dumps.members import conf_state_object
from kvorum.tools.utl.dumps.prototext import prototext
from kvorum.tools.utl.dumps.records import DumpedRecord, RecordReader
from kvorum.tools.utl.dumps.secrets import data_without_secrets


def dump_records(files: Files, lines: DumpOutput, directory: str, start: int, end: int) -> None:
    """Show records; `start` and `end` select entries, snapshots and states by index."""
    names = []
    try:
        found = files.list(directory)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CommandError(
            f"Error: Failed to read directory '{directory}' error:open {directory}: {reason}"
        ) from error
    for name in found:
        if name.endswith(".wal"):
            names.append(name)
        else:
            warn(f"Warning: Ignoring not .wal file: {name}")
    reader = RecordReader(files, directory, names)
    is_told = False
    for record in reader:
        if not record.is_right and not is_told:
            warn(f"Error: Reading entry failed with CRC error: {record.place}")
            is_told = True
        _show(lines, record, start, end)
        if record.type == CRC:
            is_told = False
    problem = reader.problem
    if lines.is_json:
        lines.object({"kind": "end", "problem": None if problem is None else str(problem)})
    elif problem is None:
        lines.text("EOF: All entries were processed.")
    elif problem.is_torn:
        lines.text("ErrUnexpectedEOF: The last record might be corrupted, error: unexpected EOF.")
    if problem is not None:
        warn(f"Error: Reading failed: {problem}")


def _show(lines: DumpOutput, record: DumpedRecord, start: int, end: int) -> None:
    try:
        title, kind, message, index = _parsed(record)
    except (DecodeError, KeyError):
        warn(f"Unexpected WAL log type: {record.type}, or it cannot be read: {record.place}")
        return
    if index is not None and not start <= index < end:
        return
    if not lines.is_json:
        text = str(record.crc) if message is None else prototext(message)
        lines.text(f"{title}: {text}")
        return
    shown: dict[str, Any] = {
        "kind": kind,
        "segment": record.segment,
        "offset": record.offset,
        "crc": record.crc,
        "crc_right": record.is_right,
    }
    lines.object(shown | _fields(message))


def _parsed(record: DumpedRecord) -> tuple[str, str, Any, int | None]:
    """Return the title, the kind and the message of a record, and the index for filters."""
    if record.type == CRC:
        return "CRC", "crc", None, None
    if record.type == METADATA:
        return "Metadata", "metadata", Metadata.FromString(record.data), None
    if record.type == ENTRY:
        entry = Entry.FromString(record.data)
        if entry.Data:
            entry.Data = data_without_secrets(entry.Data)
        return "Entry", "entry", entry, entry.Index
    if record.type == SNAPSHOT:
        snapshot = walpb.Snapshot.FromString(record.data)
        return "Snapshot", "snapshot", snapshot, snapshot.index
    if record.type == STATE:
        state = HardState.FromString(record.data)
        return "HardState", "state", state, state.commit
    raise KeyError(record.type)


def _fields(message: Any) -> dict[str, Any]:
    match message:
        case Metadata():
            return {"node_id": message.NodeID, "cluster_id": message.ClusterID}
        case Entry():
            return {
                "term": message.Term,
                "index": message.Index,
                "type": EntryType.Name(message.Type),
                "data": message.Data,
            }
        case HardState():
            return {"term": message.term, "vote": message.vote, "commit": message.commit}
        case walpb.Snapshot():
            return {
                "term": message.term,
                "index": message.index,
                "conf_state": conf_state_object(message.conf_state),
            }
    return {}
