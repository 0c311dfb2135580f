"""Segments of an archive's log: the changes of consecutive revisions, as lines of JSON.

The first line names the history. The last line holds the end of the segment and the SHA-256 of all
lines before. Between them, one line for each revision lists its changes in the order of sub
revisions. Keys and values are in base64. The rows of a database can be rebuilt from this, byte by
byte.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from kvorum.api.pb.mvccpb import KeyValue
from kvorum.client.values import Event
from kvorum.storage.backend.encoding import revision_of, row_key
from kvorum.tools.backup.errors import ArchiveError
from kvorum.tools.backup.moments import parse_text, text_of

FORMAT = 1

COMPARED_REVISIONS_MAX = 100
COMPARED_BYTES_MAX = 1 << 20
"""The limit of the comparison that distinguishes two histories. The last revision is always
compared, whatever its size. One revision alone may look the same in two stores: the removal of a
key does."""

Row = tuple[bytes, bytes]


class Known(NamedTuple):
    """A revision, with enough to distinguish it from the same revision of another store."""

    revision: int
    digest: str
    """The digest of its rows."""


class Revision(NamedTuple):
    """The changes of one revision."""

    number: int
    known: float
    """When the backup received the changes."""
    rows: Sequence[Row]
    """The rows as a database has them."""


class ArchiveSegment(NamedTuple):
    """A segment that was read and is undamaged."""

    history: str
    since: float | None
    """Since when its run has received changes without delay; None if the run was catching up."""
    until: float
    revisions: Sequence[Revision]
    leases: dict[int, int]
    """Leases of keys that the segment puts, with their TTLs in seconds."""


def rows_of(number: int, events: Sequence[Event]) -> list[Row]:
    """Return the rows of a revision."""
    rows = []
    for sub, event in enumerate(events):
        kv = event.kv
        value = KeyValue(**kv._asdict()) if event.is_put else KeyValue(key=kv.key)
        key = row_key(revision_of(number, sub, tombstone=not event.is_put))
        rows.append((key, value.SerializeToString()))
    return rows


def digest_of(rows: Sequence[Row]) -> str:
    """Return a hash of a revision's rows, which distinguishes this history from another one."""
    digest = sha256()
    for key, value in rows:
        digest.update(key + value)
    return digest.hexdigest()


class SegmentWriter:
    """A segment under construction, in memory."""

    def __init__(self, history: str, first: int) -> None:
        self._lines = bytearray()
        self._add({"kvorum_backup_log": FORMAT, "history": history, "first": first})

    @property
    def size(self) -> int:
        """The size so far, in bytes."""
        return len(self._lines)

    def _add(self, document: dict[str, Any]) -> None:
        self._lines += json.dumps(document, separators=(",", ":")).encode() + b"\n"

    def add(self, number: int, known: float, events: Sequence[Event]) -> None:
        """Add the changes of a revision."""
        changed = [_document(event) for event in events]
        self._add({"revision": number, "time": text_of(known), "changes": changed})

    def finish(self, last: int, since: float | None, until: float, leases: dict[int, int]) -> bytes:
        """Return the whole segment."""
        digest = sha256(self._lines).hexdigest()
        self._add(
            {
                "last": last,
                "since": None if since is None else text_of(since),
                "until": text_of(until),
                "leases": {str(lease): ttl for lease, ttl in leases.items()},
                "sha256": digest,
            }
        )
        return bytes(self._lines)


def _document(event: Event) -> dict[str, Any]:
    kv = event.kv
    key = b64encode(kv.key).decode()
    if not event.is_put:
        return {"key": key, "deleted": True}
    document = {
        "key": key,
        "value": b64encode(kv.value).decode(),
        "create_revision": kv.create_revision,
        "version": kv.version,
    }
    return document | {"lease": kv.lease} if kv.lease else document


def read_segment(name: str, data: bytes) -> ArchiveSegment:
    """Read a segment; raise ArchiveError if it is damaged."""
    start = data.rfind(b"\n", 0, len(data) - 1) + 1
    try:
        end = json.loads(data[start:])
        if sha256(data[:start]).hexdigest() != end["sha256"] or not data.endswith(b"\n"):
            raise ArchiveError(f"{name} is damaged: its SHA-256 is not the one that it ends with")
        lines = data[:start].splitlines()
        head = json.loads(lines[0])
        if head["kvorum_backup_log"] != FORMAT:
            raise ArchiveError(f"{name} has a format that this version does not know")
        revisions = [_revision(json.loads(line)) for line in lines[1:]]
        since = end["since"]
        segment = ArchiveSegment(
            head["history"],
            None if since is None else parse_text(since),
            parse_text(end["until"]),
            revisions,
            {int(lease): ttl for lease, ttl in end["leases"].items()},
        )
        expected = list(range(head["first"], end["last"] + 1))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ArchiveError(f"{name} is damaged: {error!r}") from error
    if [each.number for each in revisions] != expected:
        raise ArchiveError(f"{name} is damaged: it lacks revisions that it says it has")
    return segment


def _revision(document: dict[str, Any]) -> Revision:
    number = document["revision"]
    return Revision(number, parse_text(document["time"]), list(_rows(number, document["changes"])))


def _rows(number: int, changes: Sequence[dict[str, Any]]) -> Iterator[Row]:
    for sub, change in enumerate(changes):
        is_deleted = change.get("deleted", False)
        value = KeyValue(key=b64decode(change["key"]))
        if not is_deleted:
            value.value = b64decode(change["value"])
            value.create_revision = change["create_revision"]
            value.mod_revision = number
            value.version = change["version"]
            value.lease = change.get("lease", 0)
        key = row_key(revision_of(number, sub, tombstone=is_deleted))
        yield key, value.SerializeToString()
