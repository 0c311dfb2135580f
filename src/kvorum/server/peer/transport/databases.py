"""Check that a received database is the one that its snapshot describes.

A member that installed another database would stop, and stop again at every start. The check
ignores the keys in the database: a peer that may send snapshots decides what the members hold.
"""

from kvorum.raft.messages import Snapshot
from kvorum.state.membership.documents import DocumentError, decode_conf_state
from kvorum.storage.backend.bbolt import Image, ImageError, open_image
from kvorum.storage.backend.buckets import CONF_STATE, CONSISTENT_INDEX, META, TERM
from kvorum.storage.backend.copies import check_copy
from kvorum.storage.backend.native import NativeRows
from kvorum.storage.files import Files
from kvorum.storage.snap import ReceivedDatabase


class OtherDatabaseError(Exception):
    """The database belongs to another snapshot, or is unreadable."""


def check_database(
    files: Files,
    database: ReceivedDatabase,
    snapshot: Snapshot,
    native: NativeRows | None,
    *,
    is_copy: bool,
) -> None:
    """Raise OtherDatabaseError or CopyError unless a received database fits its snapshot."""
    if is_copy:
        check_facts(check_copy(files, database.descriptor, native), snapshot)
        return
    try:
        image = open_image(files, database.path)
        try:
            check_facts(_meta(image), snapshot)
        finally:
            image.close()
    except ImageError as error:
        raise OtherDatabaseError(str(error)) from error


def _meta(image: Image) -> dict[bytes, bytes]:
    return dict(image.items(META)) if META in image.buckets() else {}


def check_facts(meta: dict[bytes, bytes], snapshot: Snapshot) -> None:
    """Raise OtherDatabaseError unless bucket `meta` matches a snapshot's index, term, members."""
    index, term = (int.from_bytes(meta.get(name, b""), "big") for name in (CONSISTENT_INDEX, TERM))
    # Older versions of etcd store neither term nor members.
    if index != snapshot.index or (term and term != snapshot.term):
        raise OtherDatabaseError(
            f"the database holds what was applied up to entry {index} of term {term}, and its "
            f"snapshot is of entry {snapshot.index} of term {snapshot.term}"
        )
    if CONF_STATE not in meta:
        return
    try:
        members = decode_conf_state(meta[CONF_STATE])
    except DocumentError as error:
        raise OtherDatabaseError(f"the members in the database cannot be read: {error}") from error
    if members.normal() != snapshot.conf_state.normal():
        raise OtherDatabaseError(
            f"the database has the members {members}, and its snapshot {snapshot.conf_state}"
        )
