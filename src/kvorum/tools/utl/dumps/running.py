"""The commands of `dump`: their arguments and flags, in the words of etcd's tools."""

from pathlib import Path

from kvorum.storage.files.real import RealFiles
from kvorum.tools.cli.errors import CommandError
from kvorum.tools.cli.invocation import Invocation
from kvorum.tools.cli.values import parse_value
from kvorum.tools.utl.dumps.lines import DumpOutput

LOCK = "timeout"


def _lines(invocation: Invocation) -> DumpOutput:
    return DumpOutput(invocation.text("write-out"))


def _first(invocation: Invocation) -> str:
    if not invocation.arguments:
        raise CommandError("Must provide at least 1 argument (got [])")
    return invocation.arguments[0]


def _two(invocation: Invocation) -> tuple[str, str]:
    given = invocation.arguments
    if len(given) != 2:
        raise CommandError(f"Must provide 2 arguments (got [{' '.join(given)}])")
    return given[0], given[1]


def list_bucket(invocation: Invocation) -> None:
    """List the buckets of a database."""
    from kvorum.tools.utl.dumps.db import dump_buckets

    path = _first(invocation)
    dump_buckets(RealFiles(), _lines(invocation), path, invocation.seconds(LOCK))


def iterate_bucket(invocation: Invocation) -> None:
    """Show the entries of a bucket, in descending order of keys."""
    from kvorum.tools.utl.dumps.db import dump_entries

    path, bucket = _two(invocation)
    dump_entries(
        RealFiles(),
        _lines(invocation),
        path,
        bucket,
        limit=invocation.number("limit"),
        is_decoded=invocation.switch("decode"),
        lock_seconds=invocation.seconds(LOCK),
    )


def scan_keys(invocation: Invocation) -> None:
    """Show rows page by page."""
    from kvorum.tools.utl.dumps.db import dump_rows

    path, revision = _two(invocation)
    try:
        start = parse_value("int", revision)
    except ValueError as error:
        raise CommandError(str(error)) from None
    assert isinstance(start, int)
    dump_rows(RealFiles(), _lines(invocation), path, start, invocation.seconds(LOCK))


def hash_database(invocation: Invocation) -> None:
    """Show the hash of a database."""
    from kvorum.tools.utl.dumps.db import dump_hash

    path = _first(invocation)
    dump_hash(RealFiles(), _lines(invocation), path, invocation.seconds(LOCK))


def wal(invocation: Invocation) -> None:
    """Show a log."""
    from kvorum.tools.utl.dumps.wal import Choice, LogLocation, dump_log

    given = invocation.arguments
    if len(given) != 1:
        raise CommandError(f"Must provide data-dir argument (got [{' '.join(given)}])")
    changed = invocation.given.changed
    start, snap = invocation.number("start-index"), invocation.text("start-snap")
    if snap and "start-index" in changed:
        raise CommandError("start-snap and start-index flags cannot be used together.")
    member = Path(given[0]) / "member"
    location = LogLocation(member / "snap", Path(invocation.text("wal-dir") or member / "wal"))
    end, command = invocation.number("end-index"), invocation.text("stream-decoder")
    lines = _lines(invocation)
    if invocation.switch("raw"):
        unfit = {"start-snap", "entry-type", "stream-decoder"} & changed
        if unfit:
            names = ", ".join(f"--{name}" for name in sorted(unfit))
            raise CommandError(f"{names} not supported in the RAW mode")
        from kvorum.tools.utl.dumps.raw import dump_records

        dump_records(RealFiles(), lines, str(location.wal), start, end)
        return
    choice = Choice(
        start_snap=snap,
        start_index=start if "start-index" in changed else None,
        end_index=end,
        types=invocation.text("entry-type"),
    )
    if not command:
        dump_log(RealFiles(), lines, location, choice, None)
        return
    from kvorum.tools.utl.dumps.decoding import EntryDecoder

    with EntryDecoder(command) as decoder:
        dump_log(RealFiles(), lines, location, choice, decoder)


def snap(invocation: Invocation) -> None:
    """Show snapshot files."""
    from kvorum.tools.utl.dumps.snap import dump_snapshots

    invocation.require_arguments(1)
    dump_snapshots(RealFiles(), _lines(invocation), invocation.arguments[0])


def metrics(invocation: Invocation) -> None:
    """Show the metrics of a running member."""
    from kvorum.tools.utl.dumps.metrics import ScrapeTls, dump_metrics

    invocation.require_flags("addr")
    invocation.require_arguments(0)
    tls = ScrapeTls(
        invocation.text("cacert"),
        invocation.text("cert"),
        invocation.text("key"),
        is_insecure=invocation.switch("insecure-skip-tls-verify"),
    )
    lines = _lines(invocation)
    dump_metrics(lines, invocation.text("addr"), tls, invocation.seconds("timeout"))
