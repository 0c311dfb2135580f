"""`backup`: write snapshots and every change between them to an archive; list and verify archives.

The command writes the archive until a signal arrives. Then it archives all changes received so far,
and ends with success.
"""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kvorum.client.errors import KvorumError
from kvorum.tools.backup.archive import Archive
from kvorum.tools.backup.errors import ArchiveError
from kvorum.tools.backup.moments import text_of
from kvorum.tools.backup.names import SegmentName
from kvorum.tools.backup.points import Span, spans_of
from kvorum.tools.backup.running import Backup
from kvorum.tools.backup.session import BackupOptions
from kvorum.tools.backup.stores import ArchiveStore, open_store
from kvorum.tools.backup.taking import Taken
from kvorum.tools.backup.verifying import find_problems
from kvorum.tools.cli.errors import BAD_ARGUMENTS, BAD_FEATURE, CommandError
from kvorum.tools.cli.output import table_text
from kvorum.tools.cli.progress import ProgressLine
from kvorum.tools.cli.text import human_bytes
from kvorum.tools.ctl.failures import error_text, print_error_line
from kvorum.tools.ctl.invocation import CtlInvocation


class _Signalled(Exception):  # noqa: N818 (no error)
    """A signal asks the command to end."""


class _TerminalLines:
    """Prints events: successes to the standard output, all others to the standard error."""

    def __init__(self, invocation: CtlInvocation) -> None:
        self._invocation = invocation
        self._progress: ProgressLine | None = None
        self._received = 0

    def note_history_started(self, history: str, reason: str) -> None:
        """Print why a new history starts."""
        print_error_line(f"history {history} begins: {reason}")

    def note_progress(self, received: int, remaining: int) -> None:
        """Draw the progress of a snapshot."""
        if self._progress is None:
            self._progress, self._received = ProgressLine("receiving snapshot").__enter__(), 0
        self._progress.add(received - self._received, remaining)
        self._received = received
        if not remaining:
            self._end_progress()

    def _end_progress(self) -> None:
        if self._progress is not None:
            self._progress.__exit__()
            self._progress = None

    def note_snapshot(self, taken: Taken) -> None:
        """Print a new snapshot, and the files removed for it."""
        facts = taken.manifest.facts
        self._invocation.output_line(
            f"{text_of(taken.manifest.taken)} snapshot of revision {facts.revision} verified: "
            f"{taken.name} ({human_bytes(facts.size)})"
        )
        for name in taken.removed:
            self._invocation.output_line(f"removed {name}")

    def note_segment(self, name: SegmentName, size: int) -> None:
        """Print that changes are in the archive."""
        self._invocation.output_line(
            f"changes up to revision {name.last} recorded: {name} ({human_bytes(size)})"
        )

    def note_failure(self, what: str, error: Exception) -> None:
        """Print a failure that will be retried."""
        self._end_progress()
        text = error_text(error) if isinstance(error, KvorumError) else str(error)
        print_error_line(f"{what} failed, and will be tried again: {text}")

    def note_warning(self, text: str) -> None:
        """Print a warning."""
        print_error_line(text)


def backup(invocation: CtlInvocation) -> None:
    """Make backups until a signal arrives, or make one."""
    _refuse_arguments(invocation)
    options = _options(invocation)
    store = _store(invocation, "to")
    is_once = invocation.switch("once")
    try:
        with invocation.client() as client:
            made = Backup(client, store, options, _TerminalLines(invocation))
            _run(made, is_once=is_once)
    except ArchiveError as error:
        raise CommandError(str(error)) from error


def _run(made: Backup, *, is_once: bool) -> None:
    """Run a backup in a thread, so that signals interrupt only the wait for that thread."""
    failures: list[Exception] = []

    def work() -> None:
        try:
            made.run_once() if is_once else made.run()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=work, name="backup")
    with _signals():
        try:
            thread.start()
            thread.join()
        except _Signalled:
            made.stop()
            thread.join()
    if failures:
        raise failures[0]


@contextmanager
def _signals() -> Iterator[None]:
    def end(_number: int, _frame: FrameType | None) -> None:
        for each in before:
            # A second signal ends the process at once.
            signal.signal(each, signal.SIG_DFL)
        raise _Signalled

    before = {each: signal.signal(each, end) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def show(invocation: CtlInvocation) -> None:
    """List the spans of revisions that an archive can restore."""
    _refuse_arguments(invocation)
    archive = _archive(_store(invocation, "from"))
    _print(invocation, archive, spans_of(archive))


def verify(invocation: CtlInvocation) -> None:
    """Read a whole archive, and report its problems."""
    _refuse_arguments(invocation)
    archive = _archive(_store(invocation, "from"))
    try:
        with ProgressLine("verifying", sum(archive.sizes.values())) as progress:
            problems = find_problems(archive, progress.add)
    except ArchiveError as error:
        raise CommandError(str(error)) from error
    if problems:
        for each in problems:
            print_error_line(each)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise CommandError(f"{archive.store} has {count}")
    if not archive.snapshots:
        raise CommandError(f"{archive.store} has no snapshot that counts")
    _print(invocation, archive, spans_of(archive))


def _archive(store: ArchiveStore) -> Archive:
    try:
        return Archive(store)
    except ArchiveError as error:
        raise CommandError(str(error)) from error


def _print(invocation: CtlInvocation, archive: Archive, spans: list[Span]) -> None:
    form = invocation.text("write-out")
    rows = [_row(archive, span) for span in spans]
    if form == "json":
        invocation.output_line(json.dumps(rows))
    elif form in ("simple", "table"):
        headings = [
            "first revision",
            "last revision",
            "from",
            "to",
            "snapshots",
            "log parts",
            "size",
        ]
        texts = [[str(each) for each in row.values()][1:] for row in rows]
        for text in texts:
            text[-1] = human_bytes(int(text[-1]))
        if form == "table":
            invocation.output_line(table_text(headings, texts))
        else:
            for text in texts:
                invocation.output_line(", ".join(text))
    else:
        raise CommandError(f"{form} not supported as output format", BAD_FEATURE)


def _row(archive: Archive, span: Span) -> dict[str, int | str]:
    history = next(each for each in archive.histories if each.name == span.history)
    snapshots = [each for each in history.snapshots if span.first <= each.revision <= span.last]
    segments = history.chain(span.first)
    return {
        "history": span.history,
        "firstRevision": span.first,
        "lastRevision": span.last,
        "from": text_of(span.since),
        "to": text_of(span.until),
        "snapshots": len(snapshots),
        "logParts": len(segments),
        "size": sum(archive.sizes[str(each)] for each in (*snapshots, *segments)),
    }


def _options(invocation: CtlInvocation) -> BackupOptions:
    every, keep = invocation.seconds("every"), invocation.number("keep")
    log_seconds = invocation.seconds("log-interval") if invocation.switch("log") else 0.0
    if every <= 0 or keep <= 0 or log_seconds < 0 or (invocation.switch("log") and not log_seconds):
        raise CommandError(
            f"--every {every:g}s, --keep {keep} and --log-interval {log_seconds:g}s have to be "
            "above 0; changes are not recorded with --log=false",
            BAD_ARGUMENTS,
        )
    return BackupOptions(every_seconds=every, keep=keep, log_seconds=log_seconds)


def _store(invocation: CtlInvocation, flag: str) -> ArchiveStore:
    location = invocation.text(flag)
    if not location:
        raise CommandError(
            f"--{flag} is missing: a directory, or s3://bucket/prefix", BAD_ARGUMENTS
        )
    try:
        return open_store(location)
    except ArchiveError as error:
        raise CommandError(str(error), BAD_ARGUMENTS) from error


def _refuse_arguments(invocation: CtlInvocation) -> None:
    if invocation.arguments:
        raise CommandError(
            f"{invocation.arguments[0]!r} was not expected: the archive is named by a flag",
            BAD_ARGUMENTS,
        )
