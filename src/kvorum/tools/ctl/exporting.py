"""`export`: write keys as lines of JSON, all of one revision, in bounded memory.

The first line names the revision and the prefix; the last line marks the export as complete.
Between them is a line for each key, and before the first key of a lease a line for the lease:

    {"export":1,"revision":42,"prefix":"app/"}
    {"lease":"694d81417acd4754","ttl":60}
    {"key":"app/a","value":"1","create_revision":7,"mod_revision":9,"version":2,"lease":"694d8…"}
    {"end":true,"keys":1}

The file gets its name when it is complete. An interrupted export leaves `FILE.part`, which the same
command continues behind its last whole line, at the same revision.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from kvorum.client.errors import KvorumError
from kvorum.client.keys import key_range
from kvorum.client.sync.client import Client
from kvorum.tools.cli.errors import BAD_ARGUMENTS, INVALID_INPUT, CommandError
from kvorum.tools.cli.progress import ProgressLine, human_count
from kvorum.tools.cli.terminal import is_terminal
from kvorum.tools.ctl.invocation import CtlInvocation
from kvorum.tools.ctl.keys import as_bytes
from kvorum.tools.ctl.leasing import LeaseTtls
from kvorum.tools.ctl.lines import bytes_of, field, line_of, whole_lines
from kvorum.tools.ctl.pages import extent, keys_at

FORM = 1
"""The version of the format described above."""
PART = ".part"


class PartialExport(NamedTuple):
    """The content of an unfinished export."""

    revision: int = 0
    keys: int = 0
    last: bytes = b""
    size: int = 0
    """The bytes of the whole lines."""


def export(invocation: CtlInvocation) -> None:
    """Write keys as lines of JSON."""
    if len(invocation.arguments) > 1:
        raise CommandError("export command takes one argument as file", BAD_ARGUMENTS)
    invocation.output.check("simple", "json")
    with invocation.client() as client:
        if not invocation.arguments:
            _write(invocation, client, invocation.output.write, PartialExport())
            return
        path = Path(invocation.arguments[0])
        if path.exists():
            raise CommandError(
                f"{path} exists; give the name of a new file, or remove it", BAD_ARGUMENTS
            )
        try:
            with _part_of(path, as_bytes(invocation.text("prefix"))) as (file, partial):
                keys = _write(invocation, client, file.write, partial)
        except KvorumError:
            # Some KvorumErrors are OSErrors too, but do not concern the disk.
            raise
        except OSError as error:
            raise CommandError(f"cannot write {path}: {error.strerror}", INVALID_INPUT) from error
    sys.stderr.write(f"exported {keys} keys to {path}\n")


@contextmanager
def _part_of(path: Path, prefix: bytes) -> Iterator[tuple[BinaryIO, PartialExport]]:
    """Open the part file behind its last whole line; rename it if the block succeeds."""
    part = path.with_name(path.name + PART)
    partial = _read_partial(part, prefix) if part.exists() else PartialExport()
    with part.open("r+b" if part.exists() else "xb") as file:
        file.truncate(partial.size)
        file.seek(partial.size)
        yield file, partial
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


def _read_partial(part: Path, prefix: bytes) -> PartialExport:
    partial = PartialExport()
    with part.open("rb") as file:
        for line in whole_lines(file):
            try:
                fields = json.loads(line)
                if "export" in fields:
                    if bytes_of(fields, "prefix") != prefix:
                        raise CommandError(
                            f"{part} is of another prefix; remove it to begin anew", BAD_ARGUMENTS
                        )
                    partial = partial._replace(revision=int(fields["revision"]))
                elif "end" in fields:
                    break
                elif "lease" not in fields or "ttl" not in fields:
                    partial = partial._replace(keys=partial.keys + 1, last=bytes_of(fields, "key"))
            except (ValueError, KeyError, TypeError) as error:
                raise CommandError(
                    f"{part} is no part of an export ({error}); remove it to begin anew",
                    INVALID_INPUT,
                ) from error
            partial = partial._replace(size=partial.size + len(line))
    return partial


def _write(
    invocation: CtlInvocation,
    client: Client,
    write: Callable[[bytes], object],
    partial: PartialExport,
) -> int:
    """Write the rest of an export; return the number of all its keys."""
    prefix = as_bytes(invocation.text("prefix"))
    keys = key_range(prefix=prefix)
    asked = invocation.number("rev")
    if partial.revision and asked not in (0, partial.revision):
        raise CommandError(
            f"the part that is there is of revision {partial.revision}, not {asked}; remove it to "
            "begin anew",
            BAD_ARGUMENTS,
        )
    found = extent(invocation, client, keys, partial.revision or asked)
    revision = partial.revision or asked or found.revision
    if not partial.size:
        write(line_of({"export": FORM, "revision": revision, **field("prefix", prefix)}))
    leases = LeaseTtls(invocation, client)
    written = partial.keys
    # The lines themselves show progress on a terminal.
    is_drawn = bool(invocation.arguments) or not is_terminal()
    with ProgressLine(
        "exporting", found.keys - written, human_count, is_drawn=is_drawn
    ) as progress:
        for kv in keys_at(invocation, client, keys, revision, partial.last):
            if kv.lease and not leases.is_known(kv.lease):
                write(line_of({"lease": f"{kv.lease:x}", "ttl": leases.ttl(kv.lease)}))
            lease = {"lease": f"{kv.lease:x}"} if kv.lease else {}
            fields = {
                **field("key", kv.key),
                **field("value", kv.value),
                "create_revision": kv.create_revision,
                "mod_revision": kv.mod_revision,
                "version": kv.version,
                **lease,
            }
            write(line_of(fields))
            written += 1
            progress.add(1)
    write(line_of({"end": True, "keys": written}))
    return written
