"""`check v2store`: find content of etcd's version 2 in a directory; prints etcd 3.6's words.

etcd 3.6 and later do not start from a directory with keys of version 2, be they in the document of
a snapshot or in entries of the log.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from kvorum.raft.entries import Entry, EntryType
from kvorum.state.apply.incompatible_entries import is_v2_request
from kvorum.storage.files.real import RealFiles
from kvorum.storage.wal import exists as log_exists
from kvorum.tools.cli.errors import CommandError
from kvorum.tools.cli.invocation import Invocation
from kvorum.tools.offline.directories import DataDirectory
from kvorum.tools.offline.histories import read_history
from kvorum.tools.utl.v2_requests import translate_entry

_OF_THE_CLUSTER = "0"
"""The part of the store that holds etcd's own data."""


def run(invocation: Invocation) -> None:
    """Search a data directory for content of version 2."""
    invocation.require_flags("data-dir")
    wal = invocation.text("wal-dir")
    directory = DataDirectory(Path(invocation.text("data-dir")), Path(wal) if wal else None)
    files = RealFiles()
    is_stored = is_logged = False
    if not directory.log.exists():
        raise CommandError(f"open {directory.log}: no such file or directory")
    if log_exists(files, str(directory.log)):
        snapshot, log = read_history(files, directory.snap, directory.log)
        is_stored = snapshot is not None and has_custom_content(snapshot.data)
        is_logged = has_custom_requests(log.entries)
    if is_stored and is_logged:
        raise CommandError("detected custom v2 content in both v2store and WAL records")
    if is_stored:
        raise CommandError("detected custom content in v2store")
    if is_logged:
        raise CommandError("detected custom v2 content in WAL records")
    invocation.output_line("No custom content found in v2store.")


def has_custom_content(document: bytes) -> bool:
    """Return whether a snapshot's document has keys of users; an empty document has none."""
    try:
        children = json.loads(document)["Root"]["Children"] or {}
        return any(
            name != _OF_THE_CLUSTER and bool(node.get("Children"))
            for name, node in children.items()
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if not document:
            return False
        raise CommandError(f"failed to recover v2store from snapshot: {error}") from error


def has_custom_requests(entries: Sequence[Entry]) -> bool:
    """Return whether a log has requests of version 2 other than those about the cluster itself."""
    return any(
        entry.type == EntryType.NORMAL
        and is_v2_request(entry.data)
        and not translate_entry(entry).data
        for entry in entries
    )
