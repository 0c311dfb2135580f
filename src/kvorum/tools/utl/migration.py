"""`migrate`: change a member's storage version, or move the member between etcd and Kvorum.

Without `--output-dir` it is etcdutl's command, which changes a directory in place. With
`--output-dir` it leaves the directory unchanged, and writes one for the other server.
"""

import sys
from pathlib import Path

from kvorum.network.edge import native_rows
from kvorum.state.membership.versions import Version, parse_version
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles
from kvorum.tools.cli.errors import BAD_ARGUMENTS, CommandError
from kvorum.tools.cli.invocation import Invocation
from kvorum.tools.offline.directories import DataDirectory
from kvorum.tools.utl import storage_version

MOVING_FLAGS = ("output-wal-dir", "to-etcd", "wal-dir")


def run(invocation: Invocation) -> None:
    """Migrate a data directory."""
    if "output-dir" in invocation.given.changed:
        _move(invocation)
        return
    for name in MOVING_FLAGS:
        if name in invocation.given.changed:
            raise CommandError(f"--{name} goes with --output-dir only", BAD_ARGUMENTS)
    storage_version.run(invocation)


def _move(invocation: Invocation) -> None:
    from kvorum.tools.utl.migrate import from_etcd, to_etcd

    invocation.require_flags("data-dir")
    data, output = invocation.text("data-dir"), invocation.text("output-dir")
    source = _directory(data, invocation.text("wal-dir"))
    target = _directory(output, invocation.text("output-wal-dir"))
    files, environments = RealFiles(), LmdbEnvironments(native_rows())
    version = invocation.text("target-version")
    if invocation.switch("to-etcd"):
        to_etcd(files, environments, source, target, _target_version(version))
    elif version:
        raise CommandError("--target-version goes with --to-etcd only", BAD_ARGUMENTS)
    else:
        from_etcd(files, environments, source, target)
    sys.stderr.write(f"migrated {data} to {output}\n")


def _directory(data: str, wal: str) -> DataDirectory:
    return DataDirectory(Path(data), Path(wal) if wal else None)


def _target_version(text: str) -> Version | None:
    if not text:
        return None
    try:
        return parse_version(f"{text}.0").level
    except ValueError:
        raise CommandError(
            f'wrong target version format, expected "X.Y", got "{text}"', BAD_ARGUMENTS
        ) from None
