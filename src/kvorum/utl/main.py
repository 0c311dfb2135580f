"""The `kvorumutl` command: from arguments to an exit code.

Commands, flags, outputs and exit codes are etcdutl's where etcdutl has them: 128 for wrong
arguments, 4 for a format that a result does not have, 1 for everything that failed.
"""

import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from kvorum import __version__
from kvorum.backend import BackendError
from kvorum.backend.real import LmdbEnvironments
from kvorum.cli import API_VERSION
from kvorum.cli.errors import BAD_ARGUMENTS, BAD_FEATURE, INTERRUPTED, CommandError
from kvorum.cli.text import human_bytes
from kvorum.files.real import RealFiles
from kvorum.membership.versions import Version, parse_version
from kvorum.offline.directories import DataDirectory
from kvorum.offline.snapshots import status_of
from kvorum.utl.defragment import defragment
from kvorum.utl.hashing import hash_kv
from kvorum.utl.migrate import from_etcd, to_etcd
from kvorum.utl.output import FORMATS, Column, print_row, write_line
from kvorum.utl.restore import RestoreOptions, restore
from kvorum.utl.save import save
from kvorum.wal import WalError

_SWITCHES = ("--skip-hash-check", "--mark-compacted", "--to-etcd")
_TRUE, _FALSE = {"1", "t", "true"}, {"0", "f", "false"}


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message}\n{self.format_usage().rstrip()}")


def main() -> None:
    """Run the command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    try:
        given = _parser().parse_args(_plain_switches(arguments))
        if given.write_out not in FORMATS:
            raise CommandError(f"unsupported output format {given.write_out!r}", BAD_FEATURE)
        given.command(given)
    except CommandError as error:
        sys.stderr.write(f"Error: {error}\n")
        return error.code
    except (BackendError, WalError, OSError) as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1
    return 0


def _plain_switches(arguments: Sequence[str]) -> list[str]:
    """Accept `--switch=true` for `--switch`, as etcd's tools do."""
    plain: list[str] = []
    for argument in arguments:
        name, is_assigned, value = argument.partition("=")
        if name not in _SWITCHES or not is_assigned:
            plain.append(argument)
        elif value.lower() in _TRUE:
            plain.append(name)
        elif value.lower() not in _FALSE:
            raise CommandError(
                f'invalid argument "{value}" for "{name}" flag: expected true or false'
            )
    return plain


def _parser() -> ArgumentParser:
    shared = _Parser(add_help=False)
    shared.add_argument("-w", "--write-out", default=SUPPRESS, help="simple, fields, json, table")
    parser = _Parser(prog="kvorumutl", description=__doc__)
    parser.add_argument("-w", "--write-out", default="simple", help="simple, fields, json, table")
    commands = parser.add_subparsers(title="commands", required=True, metavar="command")

    def add(where: object, name: str, run: Callable[[Namespace], None], text: str) -> _Parser:
        made: _Parser = where.add_parser(name, parents=[shared], help=text)  # type: ignore[attr-defined]
        made.set_defaults(command=run)
        return made

    snapshot = commands.add_parser("snapshot", help="save, look at and restore snapshots")
    kinds = snapshot.add_subparsers(title="commands", required=True, metavar="command")
    status = add(kinds, "status", _status, "tell what is in a snapshot file")
    status.add_argument("paths", nargs="*", metavar="file")
    _restore_flags(add(kinds, "restore", _restore, "make a data directory from a snapshot"))
    saving = add(kinds, "save", _save, "fetch a snapshot of a running member")
    saving.add_argument("paths", nargs="*", metavar="file")
    saving.add_argument("--endpoints", default="127.0.0.1:2379", help="exactly one")
    hashing = add(commands, "hashkv", _hash_kv, "hash the keys of a database or data directory")
    hashing.add_argument("paths", nargs="*", metavar="file")
    hashing.add_argument("--rev", type=int, default=0, help="at this revision; 0: the newest")
    defrag = add(commands, "defrag", _defragment, "write the database of a stopped member anew")
    defrag.add_argument("--data-dir", required=True)
    _migrate_flags(add(commands, "migrate", _migrate, "bring a data directory from etcd, or to it"))
    add(commands, "version", _version, "print the version")
    return parser


def _restore_flags(parser: ArgumentParser) -> None:
    defaults = RestoreOptions(path="")
    parser.add_argument("paths", nargs="*", metavar="file")
    parser.add_argument("--data-dir", default="", help="default: <name>.etcd")
    parser.add_argument("--wal-dir", default="", help="where the log goes, if elsewhere")
    parser.add_argument("--name", default=defaults.name)
    parser.add_argument("--initial-cluster", default=defaults.initial_cluster)
    parser.add_argument("--initial-cluster-token", default=defaults.initial_cluster_token)
    parser.add_argument("--initial-advertise-peer-urls", default=defaults.peer_urls)
    parser.add_argument("--skip-hash-check", action="store_true")
    parser.add_argument("--bump-revision", type=int, default=0, help="by so much")
    parser.add_argument("--mark-compacted", action="store_true")
    # The database reserves its room by itself; the flag is accepted so that scripts still work.
    parser.add_argument("--initial-memory-map-size", type=int, help="has no effect here")


def _migrate_flags(parser: ArgumentParser) -> None:
    parser.add_argument("--data-dir", required=True, help="of the stopped member; left as it is")
    parser.add_argument("--wal-dir", default="", help="of the stopped member, if elsewhere")
    parser.add_argument("--output-dir", required=True, help="the new data directory")
    parser.add_argument("--output-wal-dir", default="", help="where its log goes, if elsewhere")
    parser.add_argument("--to-etcd", action="store_true", help="from a kvorum's to an etcd's")
    parser.add_argument("--target-version", default="", help="with --to-etcd: 3.5, 3.6 or 3.7")


def _one(given: Namespace, command: str) -> str:
    if len(given.paths) != 1:
        raise CommandError(f"{command} requires exactly one argument", BAD_ARGUMENTS)
    path: str = given.paths[0]
    return path


def _status(given: Namespace) -> None:
    found = status_of(RealFiles(), _one(given, "snapshot status"))
    columns = [
        Column("hash", "Hash", "hash", found.hash, f"{found.hash:x}"),
        Column("revision", "Revision", "revision", found.revision, str(found.revision)),
        Column("total keys", "Keys", "totalKey", found.total_key, str(found.total_key)),
        Column("total size", "Size", "totalSize", found.total_size, human_bytes(found.total_size)),
        Column("version", "Version", "version", found.version, found.version),
    ]
    print_row(columns, given.write_out)


def _restore(given: Namespace) -> None:
    path = _one(given, "snapshot restore")
    if given.bump_revision < 0:
        raise CommandError(f"--bump-revision is {given.bump_revision}, not above 0", BAD_ARGUMENTS)
    options = RestoreOptions(
        path=path,
        name=given.name,
        data_directory=given.data_dir,
        wal_directory=given.wal_dir,
        initial_cluster=given.initial_cluster,
        initial_cluster_token=given.initial_cluster_token,
        peer_urls=given.initial_advertise_peer_urls,
        skip_hash_check=given.skip_hash_check,
        bump_revision=given.bump_revision,
        mark_compacted=given.mark_compacted,
    )
    data = restore(RealFiles(), LmdbEnvironments(), options)
    sys.stderr.write(f"restored snapshot {path} to {data}\n")


def _save(given: Namespace) -> None:
    path = _one(given, "snapshot save")
    endpoints = [each.strip() for each in given.endpoints.split(",") if each.strip()]
    if len(endpoints) != 1:
        raise CommandError(
            f"snapshot must be requested to one selected node, not {len(endpoints)}", INTERRUPTED
        )
    version = save(endpoints[0], Path(path))
    write_line(f"Snapshot saved at {path}")
    if version:
        write_line(f"Server version {version}")


def _hash_kv(given: Namespace) -> None:
    path = _one(given, "hashkv")
    found = hash_kv(RealFiles(), LmdbEnvironments(), path, given.rev)
    revision, compacted = found.revision, found.compact_revision
    columns = [
        Column("hash", "Hash", "hash", found.hash, str(found.hash)),
        Column("hash revision", "Hash revision", "hashRevision", revision, str(revision)),
        Column(
            "compact revision", "Compact revision", "compactRevision", compacted, str(compacted)
        ),
    ]
    print_row(columns, given.write_out)


def _defragment(given: Namespace) -> None:
    defragment(RealFiles(), LmdbEnvironments(), Path(given.data_dir))
    sys.stderr.write(f"finished defragmenting {given.data_dir}\n")


def _migrate(given: Namespace) -> None:
    source = DataDirectory(Path(given.data_dir), Path(given.wal_dir) if given.wal_dir else None)
    target = DataDirectory(
        Path(given.output_dir), Path(given.output_wal_dir) if given.output_wal_dir else None
    )
    files, environments = RealFiles(), LmdbEnvironments()
    if given.to_etcd:
        to_etcd(files, environments, source, target, _target_version(given.target_version))
    elif given.target_version:
        raise CommandError("--target-version goes with --to-etcd only", BAD_ARGUMENTS)
    else:
        from_etcd(files, environments, source, target)
    sys.stderr.write(f"migrated {given.data_dir} to {given.output_dir}\n")


def _target_version(text: str) -> Version | None:
    if not text:
        return None
    try:
        return parse_version(f"{text}.0").level
    except ValueError:
        raise CommandError(
            f'wrong target version format "{text}": expected "X.Y"', BAD_ARGUMENTS
        ) from None


def _version(_given: Namespace) -> None:
    write_line(f"kvorumutl version: {__version__}")
    write_line(f"API version: {API_VERSION}")


if __name__ == "__main__":
    main()
