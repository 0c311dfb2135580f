"""`defrag`: the database of a stopped member written anew, without the pages it has freed."""

from pathlib import Path

from kvorum.backend import Environments, open_backend, rewrite
from kvorum.cli.errors import CommandError
from kvorum.files import Files


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
