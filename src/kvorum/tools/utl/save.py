"""`snapshot save`: fetch a snapshot of a running member, through the client API.

The file gets its name only after it has arrived completely, its SHA-256 is right, and it is
durable.
"""

from pathlib import Path

from kvorum.client import CallError, Client, KvorumError
from kvorum.tools.cli.errors import BAD_ARGUMENTS, INTERRUPTED, CommandError
from kvorum.tools.cli.invocation import Invocation
from kvorum.tools.offline.progress import ByteProgress

REACH_SECONDS_MAX = 5.0
"""The limit for reaching the member; the snapshot itself has no limit."""


def run(invocation: Invocation) -> None:
    """Fetch a snapshot."""
    if len(invocation.arguments) != 1:
        raise CommandError("snapshot save expects one argument <filename>", BAD_ARGUMENTS)
    path = invocation.arguments[0]
    endpoints = [each.strip() for each in invocation.texts("endpoints") if each.strip()]
    if len(endpoints) != 1:
        raise CommandError(
            "snapshot must be requested to one selected node, not multiple "
            f"[{' '.join(endpoints)}]",
            INTERRUPTED,
        )
    try:
        with _client(invocation, endpoints[0]) as client:
            version = _save(client, Path(path))
    except (KvorumError, ValueError) as error:
        text = error.text if isinstance(error, CallError) else str(error)
        raise CommandError(text, INTERRUPTED) from error
    invocation.output_line(f"Snapshot saved at {path}")
    if version:
        invocation.output_line(f"Server version {version}")


def _client(invocation: Invocation, endpoint: str) -> Client:
    user, password = invocation.text("user"), invocation.text("password")
    if not password:
        user, _, password = user.partition(":")
    return Client(
        endpoint,
        ca=invocation.text("cacert"),
        cert=invocation.text("cert"),
        key=invocation.text("key"),
        insecure=invocation.switch("insecure-skip-tls-verify"),
        user=user,
        password=password,
        timeout=REACH_SECONDS_MAX,
    )


def _save(client: Client, path: Path) -> str:
    """Write the snapshot to a file; return the version of its storage."""
    client.maintenance.status()
    with ByteProgress("saving", 0) as progress:
        came = 0

        def count(size: int, remaining: int) -> None:
            nonlocal came
            progress.add(size - came, remaining)
            came = size

        return client.maintenance.snapshot(path, progress=count).version
