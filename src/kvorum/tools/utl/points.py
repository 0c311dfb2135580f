"""`restore`: create a data directory from an archive of backups, as of a revision or a time.

By default the command raises revisions and marks the old ones as compacted, so that no watcher and
no cache of the lost cluster takes the restored cluster for its continuation.
"""

import sys

from kvorum.storage.backend.images import Content
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.tools.backup.archive import Archive
from kvorum.tools.backup.content import merge_log
from kvorum.tools.backup.errors import ArchiveError
from kvorum.tools.backup.moments import parse_text, text_of
from kvorum.tools.backup.points import find_point
from kvorum.tools.backup.stores import open_store
from kvorum.tools.cli.errors import BAD_ARGUMENTS, CommandError
from kvorum.tools.cli.invocation import Invocation
from kvorum.tools.utl.restore import options_of, restore


def run(invocation: Invocation) -> None:
    """Restore a point of an archive."""
    if invocation.arguments:
        raise CommandError(
            f"restore takes no arguments, but was given {invocation.arguments[0]!r}: the archive "
            "is named by --from",
            BAD_ARGUMENTS,
        )
    if not invocation.text("from"):
        raise CommandError(
            "--from is missing: the directory or s3:// URL of an archive", BAD_ARGUMENTS
        )
    revision, moment = _point_of(invocation)
    is_bumped = invocation.number("bump-revision") > 0
    if "mark-compacted" in invocation.given.changed:
        is_bumped = invocation.switch("mark-compacted")
    try:
        store = open_store(invocation.text("from"))
        point = find_point(Archive(store), revision, moment, _print_error_line)
        _print_error_line(
            f"restoring revision {point.revision} from {point.snapshot} and "
            f"{len(point.segments)} parts of the log"
        )
        with store.local(str(point.snapshot)) as (files, path):
            options = options_of(invocation, path, is_compacted=is_bumped)

            def at_point(content: Content) -> Content:
                return merge_log(content, store, point)

            data = restore(files, LmdbEnvironments(), options, at_point)
    except ArchiveError as error:
        raise CommandError(str(error)) from error
    _print_error_line(f"restored revision {point.revision} to {data}")


def _point_of(invocation: Invocation) -> tuple[int | None, float | None]:
    changed = invocation.given.changed
    if "to-revision" in changed and "to-time" in changed:
        raise CommandError(
            "--to-revision and --to-time were given both: expected one of them", BAD_ARGUMENTS
        )
    revision = invocation.number("to-revision") if "to-revision" in changed else None
    if "to-time" not in changed:
        return revision, None
    text = invocation.text("to-time")
    try:
        return None, parse_text(text)
    except ValueError:
        raise CommandError(
            f'--to-time is {text!r}: expected a time such as "{text_of(0)}", in UTC unless it says '
            "otherwise",
            BAD_ARGUMENTS,
        ) from None


def _print_error_line(text: str) -> None:
    sys.stderr.write(f"{text}\n")
