"""`defrag`: the database of a stopped member written anew, without the pages it has freed."""

import sys
from pathlib import Path

from kvorum.backend import Environments, open_backend, rewrite
from kvorum.backend.real import LmdbEnvironments
from kvorum.cli.errors import CommandError
from kvorum.cli.invocation import Invocation
from kvorum.files import Files
from kvorum.files.real import RealFiles


def run(invocation: Invocation) -> None:
    """Defragment the database of a stopped member."""
    invocation.require_flags("data-dir")
    data = invocation.text("data-dir")
    defragment(RealFiles(), LmdbEnvironments(), Path(data))
    sys.stderr.write(f"finished defragmenting {data}\n")


def defragment(files: Files, environments: Environments, data: Path) -> None:
    """Replace the database by one without free pages."""
    directory = data / "member" / "backend"
    if not (directory / "CURRENT").exists():
        raise CommandError(
            f"{data} is no data directory of a kvorum: there is no {directory}/CURRENT; "
            "an etcd's is defragmented by etcdutl"
        )
    # Without a quota: what is there must fit, whatever was configured.
    backend = open_backend(files, environments, str(directory), quota_bytes=-1)
    try:
        rewrite(backend, files, environments)
    finally:
        backend.close()
