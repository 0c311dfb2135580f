"""`snapshot status`: what is in a snapshot file, all of which is read and checked."""

from pathlib import Path

from kvorum.cli.errors import BAD_ARGUMENTS, CommandError
from kvorum.cli.invocation import Invocation
from kvorum.cli.text import human_bytes
from kvorum.files.real import RealFiles
from kvorum.offline.snapshots import status_of
from kvorum.utl.output import Column, print_row


def run(invocation: Invocation) -> None:
    """Print the status of a snapshot file."""
    if len(invocation.arguments) != 1:
        raise CommandError("snapshot status requires exactly one argument", BAD_ARGUMENTS)
    path = invocation.arguments[0]
    if not Path(path).exists():
        raise CommandError(f"stat {path}: no such file or directory")
    output = invocation.output
    found = status_of(RealFiles(), path)
    columns = [
        Column("hash", "Hash", "hash", found.hash, f"{found.hash:x}"),
        Column("revision", "Revision", "revision", found.revision, str(found.revision)),
        Column("total keys", "Keys", "totalKey", found.total_key, str(found.total_key)),
        Column("total size", "Size", "totalSize", found.total_size, human_bytes(found.total_size)),
        Column("version", "Version", "version", found.version, found.version),
    ]
    print_row(output, columns)
