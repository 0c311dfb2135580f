"""`dump db`: buckets, entries, rows and the hash of a database."""

from contextlib import ExitStack
from itertools import islice

from google.protobuf.message import DecodeError

from kvorum.storage.backend.encoding import parse_row_key
from kvorum.storage.files import Files
from kvorum.tools.cli.errors import CommandError
from kvorum.tools.utl.dumps.entries import (
    decoded_object,
    decoded_text,
    row_object,
    row_text,
    stored_object,
    stored_text,
)
from kvorum.tools.utl.dumps.lines import DumpOutput, warn
from kvorum.tools.utl.dumps.scanning import FoundRow, etcd_rows, open_pages, own_rows
from kvorum.tools.utl.dumps.sources import DatabaseLocation, shared_lock


def dump_buckets(files: Files, lines: DumpOutput, argument: str, lock_seconds: float) -> None:
    """List the buckets, in order."""
    with DatabaseLocation(files, argument).opened(lock_seconds) as database:
        for bucket in database.buckets():
            name = bucket.decode("utf-8", "backslashreplace")
            if lines.is_json:
                lines.object({"bucket": name})
            else:
                lines.text(name)


def dump_entries(
    files: Files,
    lines: DumpOutput,
    argument: str,
    name: str,
    *,
    limit: int,
    is_decoded: bool,
    lock_seconds: float,
) -> None:
    """Show the entries of a bucket in descending order of keys; a limit of 0 shows all."""
    bucket = name.encode("utf-8", "surrogateescape")
    with DatabaseLocation(files, argument).opened(lock_seconds) as database:
        if bucket not in database.buckets():
            raise CommandError(f"got nil bucket for {name}")
        for key, value in islice(database.entries_back(bucket), limit or None):
            if lines.is_json:
                to_object = decoded_object if is_decoded else stored_object
                lines.object(to_object(bucket, key, value))
            else:
                to_text = decoded_text if is_decoded else stored_text
                lines.text(to_text(bucket, key, value))


def dump_rows(
    files: Files, lines: DumpOutput, argument: str, start: int, lock_seconds: float
) -> None:
    """Show the rows from a main revision on, page by page, skipping damage."""
    place = DatabaseLocation(files, argument)
    with ExitStack() as stack:
        if not place.is_own:
            stack.enter_context(shared_lock(place.path, lock_seconds))
        pages = stack.enter_context(open_pages(files, place.path))
        for found in own_rows(pages, warn) if place.is_own else etcd_rows(pages, warn):
            _show_row(lines, found, start)


def _show_row(lines: DumpOutput, found: FoundRow, start: int) -> None:
    if parse_row_key(found.key) >> 32 < start:
        return
    try:
        if lines.is_json:
            place = {"page": found.page, "index": found.position, "count": found.entries}
            lines.object(place | row_object(found.key, found.value))
        else:
            text = row_text(found.key, found.value)
            lines.text(f"pageID={found.page}, index={found.position}/{found.entries - 1}, {text}")
    except DecodeError:
        warn(f"Row {found.key.hex()} on page {found.page} holds no key and value. Continuing...")


def dump_hash(files: Files, lines: DumpOutput, argument: str, lock_seconds: float) -> None:
    """Show the result of the Hash call of a member with this database."""
    place = DatabaseLocation(files, argument)
    with place.opened(lock_seconds) as database:
        value = database.hash()
    if lines.is_json:
        lines.object({"path": place.path, "hash": value})
    else:
        lines.text(f"db path: {place.path}")
        lines.text(f"Hash: {value}")
