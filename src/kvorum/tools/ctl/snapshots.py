"""`snapshot save`: save a member's database to a file, completely or not at all."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import administration, rpcs
from kvorum.client.errors import CallError, KvorumError, SnapshotError
from kvorum.client.options import FOREVER
from kvorum.client.saving import DIGEST_BYTES, PAGE_BYTES, Saving
from kvorum.client.sync.client import Client
from kvorum.tools.cli.errors import BAD_ARGUMENTS, INTERRUPTED, CommandError
from kvorum.tools.cli.progress import ProgressLine
from kvorum.tools.ctl.connecting import endpoints_of
from kvorum.tools.ctl.failures import error_text, hint_of
from kvorum.tools.ctl.invocation import CtlInvocation


def save(invocation: CtlInvocation) -> None:
    """Save a snapshot; leave no file behind after a failure."""
    if len(invocation.arguments) != 1:
        raise CommandError("snapshot save expects one argument <filename>", BAD_ARGUMENTS)
    path = invocation.arguments[0]
    _ = invocation.output
    endpoints = [each for each in endpoints_of(invocation) if each]
    if len(endpoints) != 1:
        found = " ".join(endpoints)
        raise CommandError(
            f"snapshot must be requested to one selected node, not multiple [{found}]", INTERRUPTED
        )
    # Without an explicit `--command-timeout`, a large database may take any time.
    is_timed = "command-timeout" in invocation.given.changed
    seconds = invocation.seconds("command-timeout") if is_timed else FOREVER
    try:
        with invocation.client(endpoints) as client:
            _check_reachable(invocation, client)
            with _opened(path) as saving:
                _receive(client, saving, seconds)
    except KvorumError as error:
        raise CommandError(error_text(error), INTERRUPTED, hint_of(error)) from error
    invocation.output_line(f"Snapshot saved at {path}")
    if saving.version:
        invocation.output_line(f"Server version {saving.version}")


def _check_reachable(invocation: CtlInvocation, client: Client) -> None:
    """Fail in time if no server answers, because the snapshot itself may have no limit."""
    # A server that refuses this call is reachable, and may still send the snapshot.
    with suppress(CallError):
        invocation.ask(client, rpcs.STATUS, pb.StatusRequest(), pb.StatusResponse)


@contextmanager
def _opened(path: str) -> Iterator[Saving]:
    """Open `PATH.part`, which `Saving.finish` renames; delete it if the block fails."""
    part = f"{path}.part"
    target = Path(path)
    renaming = f"could not rename {part} to {path} (rename {part} {path}: "
    if not path:
        raise CommandError(f"{renaming}no such file or directory)", INTERRUPTED)
    if target.is_dir():
        raise CommandError(f"{renaming}file exists)", INTERRUPTED)
    if target.exists() and not target.is_file():
        # The rename would replace, for example, a device by a file.
        raise CommandError(f"{renaming}not a regular file)", INTERRUPTED)
    try:
        saving = Saving(path)
    except OSError as error:
        raise CommandError(
            f"could not open {part} (open {part}: {_reason(error)})", INTERRUPTED
        ) from error
    try:
        with _terminable():
            yield saving
    except OSError as error:
        if isinstance(error, KvorumError):
            raise
        if error.filename2 is not None:
            raise CommandError(f"{renaming}{_reason(error)})", INTERRUPTED) from error
        raise CommandError(
            f"could not write snapshot: write {part}: {_reason(error)}",
            INTERRUPTED,
            f"nothing was saved; {path} needs a disk with more space than {saving.size} bytes",
        ) from error
    finally:
        saving.close()


def _receive(client: Client, saving: Saving, seconds: float) -> None:
    with (
        client.messages(administration.snapshot(), seconds) as messages,
        ProgressLine("saving") as progress,
    ):
        for message in messages:
            saving.version = message.version
            if saving.add(message.blob):
                saving.write()
            progress.add(len(message.blob), message.remaining_bytes)
    try:
        saving.finish()
    except SnapshotError as error:
        if saving.size % PAGE_BYTES != DIGEST_BYTES:
            text = f"sha256 checksum not found [bytes: {saving.size}]"
            raise CommandError(text, INTERRUPTED) from error
        raise CommandError(str(error), INTERRUPTED) from error


@contextmanager
def _terminable() -> Iterator[None]:
    """Turn SIGTERM into SystemExit in the block, so that the block cleans up."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
