"""`make-mirror`: copy keys to another cluster, and follow their changes.

The mirror puts all keys as of one revision, then follows every change. Each revision is a separate
transaction, or several if it has more changes than `--max-txn-ops`.
"""

import threading
from collections.abc import Callable

from kvorum.api.errors import COMPACTED
from kvorum.client.credentials import TlsOptions
from kvorum.client.errors import CompactedError, WatchCompactedError
from kvorum.client.options import FOREVER
from kvorum.client.sync.client import Client
from kvorum.client.transactions import Step, delete, put
from kvorum.client.values import Changes
from kvorum.tools.cli.errors import BAD_ARGUMENTS, CommandError
from kvorum.tools.cli.progress import ProgressLine, human_count
from kvorum.tools.ctl.connecting import Secrets, client_of, logged_in, user_of
from kvorum.tools.ctl.invocation import CtlInvocation
from kvorum.tools.ctl.keys import as_bytes

TOTAL_SECONDS = 30.0
"""The interval at which the mirror prints how many keys it has set or deleted."""


def make_mirror(invocation: CtlInvocation) -> None:
    """Copy until something fails."""
    if len(invocation.arguments) != 1:
        raise CommandError("make-mirror takes one destination argument", BAD_ARGUMENTS)
    _ = invocation.output
    prefix = as_bytes(invocation.text("prefix"))
    with _destination(invocation, invocation.arguments[0]) as target, invocation.client() as source:
        new = invocation.text("dest-prefix")
        if invocation.switch("no-dest-prefix") and new:
            raise CommandError(
                "`--dest-prefix` and `--no-dest-prefix` cannot be set at the same time, choose one",
                BAD_ARGUMENTS,
            )
        kept = prefix if not new and not invocation.switch("no-dest-prefix") else as_bytes(new)
        copy = Copy(target, lambda key: kept + key.removeprefix(prefix), _steps_max(invocation))
        with _Totals(invocation, copy):
            _mirror(source, copy, prefix, invocation.number("rev"))


class Copy:
    """Writes keys to the destination."""

    def __init__(self, target: Client, named: Callable[[bytes], bytes], steps_max: int) -> None:
        self._target = target
        self._named = named
        """Returns a key's name at the destination."""
        self._steps_max = steps_max
        self.total = 0
        """The number of keys set or deleted at the destination."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        self._target.put(self._named(key), value, timeout=FOREVER)
        self.total += 1

    def follow(self, changes: Changes) -> None:
        """Apply changes of the source, each revision in a separate transaction."""
        steps: list[Step] = []
        revision = 0
        for event in changes.events:
            if event.revision != revision or len(steps) == self._steps_max:
                self._commit(steps)
                steps, revision = [], event.revision
            key = self._named(event.key)
            steps.append(put(key, event.value) if event.is_put else delete(key))
        self._commit(steps)

    def _commit(self, steps: list[Step]) -> None:
        if steps:
            self._target.txn().then(*steps).commit(FOREVER)
            self.total += len(steps)


class _Totals:
    """Prints the total every TOTAL_SECONDS while the block lasts."""

    def __init__(self, invocation: CtlInvocation, copy: Copy) -> None:
        self._invocation = invocation
        self._copy = copy
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.wait(TOTAL_SECONDS):
            self._invocation.output_line(str(self._copy.total))
            self._invocation.output.flush()


def _mirror(source: Client, copy: Copy, prefix: bytes, revision: int) -> None:
    """Copy all keys, unless only changes from `revision` on are wanted; then follow changes."""
    start = revision
    if revision <= 1:
        found = source.read(prefix=prefix, count_only=True, timeout=FOREVER)
        start = found.revision + 1
        with ProgressLine("copying", found.total, human_count) as progress:
            for kv in source.range(prefix=prefix, revision=found.revision, timeout=FOREVER):
                copy.put(kv.key, kv.value)
                progress.add(1)
    try:
        with source.watch(prefix=prefix, revision=start) as watch:
            while True:
                copy.follow(watch.changes())
    except (WatchCompactedError, CompactedError) as error:
        raise CommandError(COMPACTED.text, hint=str(error)) from error


def _destination(invocation: CtlInvocation, endpoint: str) -> Client:
    user, password = user_of(
        invocation.text("dest-user"), invocation.text("dest-password"), "Destination Password: "
    )
    secrets = Secrets(
        TlsOptions(
            invocation.text("dest-cacert"),
            invocation.text("dest-cert"),
            invocation.text("dest-key"),
        ),
        is_plain=invocation.switch("dest-insecure-transport"),
        user=user,
        password=password,
    )
    return logged_in(client_of(invocation, [endpoint], secrets))


def _steps_max(invocation: CtlInvocation) -> int:
    # A maximum below 1 is meaningless.
    return max(1, invocation.number("max-txn-ops"))
