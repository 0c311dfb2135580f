"""`history`: show every version of a key that the store still has.

Compaction has removed all versions before the compact revision, except the newest of them. Stores
keep no times, so revisions are the only order.
"""

import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from kvorum.client.errors import DeadlineError, WatchCompactedError
from kvorum.client.keys import KeyRange
from kvorum.client.sync.client import Client
from kvorum.client.values import KeyValue
from kvorum.tools.cli.errors import BAD_ARGUMENTS, CommandError
from kvorum.tools.cli.terminal import show_columns
from kvorum.tools.cli.text import quoted
from kvorum.tools.ctl.invocation import CtlInvocation
from kvorum.tools.ctl.keys import as_bytes
from kvorum.tools.ctl.lines import field
from kvorum.tools.ctl.pages import extent

PROGRESS_SECONDS = 0.05
PROGRESS_SECONDS_MAX = 1.0
"""The interval between progress requests grows up to this value."""
QUIET_SECONDS = 2.0
"""If the server reports no reliable progress, this long without a change is the end."""


class KeyVersion(NamedTuple):
    """A change of the key; `kv` is None for a deletion."""

    revision: int
    kv: KeyValue | None


def history(invocation: CtlInvocation) -> None:
    """Show every version of a key."""
    if len(invocation.arguments) != 1:
        raise CommandError("history command needs one argument as key", BAD_ARGUMENTS)
    limit = invocation.number("limit")
    if limit < 0:
        raise CommandError(f"--limit {limit} was given; expected 0 or more", BAD_ARGUMENTS)
    key = as_bytes(invocation.arguments[0])
    with invocation.client() as client:
        revision = extent(invocation, client, KeyRange(key, b"")).revision
        compacted, versions = versions_of(
            client, key, revision, invocation.seconds("command-timeout")
        )
        kept = deque(versions, limit or None)
    output = invocation.output
    output.show(
        kept,
        lambda found: show_columns(output, _HEADS, map(_row, found), right=(0, 2)),
        json=lambda found: {
            **field("key", key),
            "revision": revision,
            "compact_revision": compacted,
            "versions": list(map(_as_json, found)),
        },
        has_protobuf=False,
    )


_HEADS = ("revision", "change", "version", "lease", "value")


def _row(version: KeyVersion) -> tuple[str, ...]:
    kv = version.kv
    if kv is None:
        return str(version.revision), "delete", "", "", ""
    lease = f"{kv.lease:x}" if kv.lease else ""
    return str(version.revision), "put", str(kv.version), lease, quoted(kv.value)


def _as_json(version: KeyVersion) -> dict[str, object]:
    kv = version.kv
    if kv is None:
        return {"revision": version.revision, "change": "delete"}
    return {
        "revision": version.revision,
        "change": "put",
        "version": kv.version,
        "create_revision": kv.create_revision,
        **({"lease": f"{kv.lease:x}"} if kv.lease else {}),
        **field("value", kv.value),
    }


def versions_of(
    client: Client, key: bytes, revision: int, seconds_max: float
) -> tuple[int, Iterator[KeyVersion]]:
    """Return the compact revision (0 if there is none), and the versions up to a revision.

    Raises DeadlineError if the watch delivers nothing for `seconds_max`.
    """
    watched = _events(client, key, 1, revision, seconds_max)
    try:
        first = next(watched, None)
    except WatchCompactedError as error:
        compacted = error.compacted
        return compacted, _since(client, key, compacted, revision, seconds_max)
    return 0, _chained(first, watched)


def _since(
    client: Client, key: bytes, compacted: int, revision: int, seconds_max: float
) -> Iterator[KeyVersion]:
    base = client.get(key, revision=compacted, timeout=seconds_max)
    if base is not None:
        yield KeyVersion(base.mod_revision, base)
    yield from _events(client, key, compacted + 1, revision, seconds_max)


def _chained(first: KeyVersion | None, rest: Iterator[KeyVersion]) -> Iterator[KeyVersion]:
    if first is not None:
        yield first
        yield from rest


def _events(
    client: Client, key: bytes, begin: int, end: int, seconds_max: float
) -> Iterator[KeyVersion]:
    """Yield the changes of a key from one revision up to and including another."""
    last = client.get(key, revision=end, timeout=seconds_max)
    if last is not None:
        # No later change exists up to `end`, so the watch needs no progress requests.
        end = last.mod_revision
    if begin > end:
        return
    asks = last is None and _reports_progress(client, seconds_max)
    with client.watch(key, revision=begin) as watch:
        pause = PROGRESS_SECONDS
        told_at = time.monotonic()
        ask_at = told_at + pause
        while True:
            changes = watch.changes_until(ask_at)
            now = time.monotonic()
            if changes is None:
                if last is None and not asks and now > told_at + QUIET_SECONDS:
                    return
                if now > told_at + seconds_max:
                    raise DeadlineError(f"the watch does not get as far as revision {end}")
                if now >= ask_at:
                    pause = min(PROGRESS_SECONDS_MAX, pause * 2)
                    ask_at = now + pause
                    if asks:
                        with client.shell.turn():
                            client.shell.watching.request_progress()
                continue
            told_at = now
            for event in changes.events:
                if event.revision <= end:
                    yield KeyVersion(event.revision, event.kv if event.is_put else None)
            if changes.revision >= end:
                return


def _reports_progress(client: Client, seconds_max: float) -> bool:
    """Return whether the server's progress reports are reliable.

    Old servers may report a revision before they have sent the events up to it.
    """
    version = client.maintenance.status(timeout=seconds_max).version.partition("-")[0]
    try:
        numbers = tuple(map(int, version.split(".")))
    except ValueError:
        return False
    return numbers >= (3, 5, 8) or (3, 4, 25) <= numbers < (3, 5)
