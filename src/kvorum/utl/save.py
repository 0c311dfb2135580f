"""`snapshot save`: a snapshot of a running member, through the client API.

The file gets its name only when all of it has arrived, its SHA-256 is right, and it is durable.
"""

from pathlib import Path

from kvorum.cli.errors import INTERRUPTED, CommandError
from kvorum.client import CallError, Client, KvorumError
from kvorum.offline.progress import Progress

REACH_SECONDS_MAX = 5.0
"""How long it is tried to reach the member; the snapshot itself may take as long as it takes."""


def save(endpoint: str, path: Path) -> str:
    """Fetch a snapshot; return the version of its storage."""
    try:
        with Client(endpoint, timeout=REACH_SECONDS_MAX) as client:
            client.maintenance.status()
            with Progress("saving", 0) as progress:
                came = 0

                def count(size: int, remaining: int) -> None:
                    nonlocal came
                    progress.add(size - came, remaining)
                    came = size

                return client.maintenance.snapshot(path, progress=count).version
    except (KvorumError, ValueError) as error:
        text = error.text if isinstance(error, CallError) else str(error)
        raise CommandError(text, INTERRUPTED) from error
