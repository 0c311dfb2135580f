"""`verify`: check that the files of a stopped member are undamaged and consistent."""

from pathlib import Path

from kvorum.network.edge import native_rows
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles
from kvorum.tools.cli.invocation import Invocation
from kvorum.tools.offline.directories import DataDirectory
from kvorum.tools.offline.members import require_stopped
from kvorum.tools.offline.verification import verify
from kvorum.tools.utl.output import Column, print_row


def run(invocation: Invocation) -> None:
    """Verify a data directory, and print the indexes, the term and the counts of its files."""
    invocation.require_flags("data-dir")
    output = invocation.output
    wal = invocation.text("wal-dir")
    directory = DataDirectory(Path(invocation.text("data-dir")), Path(wal) if wal else None)
    files = RealFiles()
    with require_stopped(files, directory, invocation.seconds("timeout"), is_read_only=True):
        found = verify(
            files,
            LmdbEnvironments(native_rows()),
            directory,
            is_exact=invocation.switch("exact-index"),
        )
    columns = [
        Column(name, name.capitalize(), key, value, str(value))
        for (name, key), value in zip(_NAMES, found, strict=True)
    ]
    print_row(output, columns)


_NAMES = (
    ("consistent index", "consistentIndex"),
    ("term", "term"),
    ("snapshot index", "snapshotIndex"),
    ("commit", "commit"),
    ("last index", "lastIndex"),
    ("revision", "revision"),
    ("rows", "rows"),
)
