"""`snapshot restore`: create the data directory of a new member, with the keys of a snapshot.

The keys, leases, users and alarms come from the snapshot. Members, ids and the log are new, so that
the new cluster can never be mistaken for the old one. Every member of the new cluster is restored
from the same snapshot with the same list of members, each under its own name.
"""

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from kvorum.api.pb.etcdserverpb import Metadata
from kvorum.client.saving import DIGEST_BYTES
from kvorum.network.edge import native_rows
from kvorum.raft.entries import Entry
from kvorum.raft.logger import log_fields
from kvorum.raft.messages import ConfState, HardState, Snapshot
from kvorum.raft.wire import encode_conf_change
from kvorum.server.telemetry.logs import Line, Logger, as_console
from kvorum.state.membership.bootstrap import (
    ClusterSettingsError,
    bootstrap_changes,
    check_initial_cluster,
    initial_members,
    parse_initial_cluster,
)
from kvorum.state.membership.documents import MemberDocument, encode_member
from kvorum.state.membership.identity import cluster_id
from kvorum.state.membership.urls import UrlError, checked_urls
from kvorum.storage.backend import Environments
from kvorum.storage.backend.buckets import (
    KEY,
    MEMBERS,
    MEMBERS_REMOVED,
    META,
    SCHEDULED_COMPACT_REVISION,
)
from kvorum.storage.backend.encoding import parse_row_key, revision_of, row_key, seal_value
from kvorum.storage.backend.images import (
    Content,
    SealedContent,
    SealedPieces,
    checked_content,
    sealed_content,
)
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.backend.transfer import install_sealed, seal_content
from kvorum.storage.files import Files
from kvorum.storage.files.real import RealFiles
from kvorum.tools.cli.errors import BAD_ARGUMENTS, CommandError
from kvorum.tools.cli.invocation import Invocation
from kvorum.tools.offline.directories import DataDirectory, check_vacant, require_room, staged
from kvorum.tools.offline.facts import ClusterBuckets
from kvorum.tools.offline.histories import LogHistory, write_history
from kvorum.tools.offline.progress import ByteProgress
from kvorum.tools.offline.snapshots import HashCheck, open_snapshot, used_bytes
from kvorum.tools.offline.verification import VALUES, VARIABLE, verify

_TERM = 1


@dataclass(slots=True, frozen=True, kw_only=True)
class RestoreOptions:
    """The flags of the command; the defaults are etcd's."""

    path: str
    name: str = "default"
    data_directory: str = ""
    wal_directory: str = ""
    initial_cluster: str = "default=http://localhost:2380"
    initial_cluster_token: str = "etcd-cluster"  # noqa: S105 (not a secret)
    peer_urls: str = "http://localhost:2380"
    skip_hash_check: bool = False
    bump_revision: int = 0
    mark_compacted: bool = False


def run(invocation: Invocation) -> None:
    """Restore a snapshot."""
    if len(invocation.arguments) != 1:
        raise CommandError("snapshot restore requires exactly one argument", BAD_ARGUMENTS)
    (path,) = invocation.arguments
    is_compacted = invocation.switch("mark-compacted")
    options = options_of(invocation, path, is_compacted=is_compacted)
    files, environments = RealFiles(), LmdbEnvironments(native_rows())
    data = restore(files, environments, options)
    if os.environ.get(VARIABLE, "").lower() in VALUES:
        wal = Path(options.wal_directory) if options.wal_directory else None
        verify(files, environments, DataDirectory(data, wal), is_exact=True)
    _log_added_members(_members(options))
    sys.stderr.write(f"restored snapshot {path} to {data}\n")


def options_of(invocation: Invocation, path: str, *, is_compacted: bool) -> RestoreOptions:
    """Return the options that the flags give for restoring a snapshot."""
    return RestoreOptions(
        path=path,
        name=invocation.text("name"),
        data_directory=invocation.text("data-dir"),
        wal_directory=invocation.text("wal-dir"),
        initial_cluster=invocation.text("initial-cluster"),
        initial_cluster_token=invocation.text("initial-cluster-token"),
        peer_urls=invocation.text("initial-advertise-peer-urls"),
        skip_hash_check=invocation.switch("skip-hash-check"),
        bump_revision=invocation.number("bump-revision"),
        mark_compacted=is_compacted,
    )


def restore(
    files: Files,
    environments: Environments,
    options: RestoreOptions,
    changed: Callable[[Content], Content] | None = None,
) -> Path:
    """Create the data directory and return it; `changed` transforms the snapshot's content."""
    if bool(options.bump_revision) != options.mark_compacted:
        raise CommandError("--mark-compacted required if --revision-bump > 0", BAD_ARGUMENTS)
    members = _members(options)
    local = next(member.id for member in members if member.name == options.name)
    cluster = cluster_id(member.id for member in members)
    metadata = Metadata(NodeID=local, ClusterID=cluster).SerializeToString()
    data = Path(options.data_directory or f"{options.name}.etcd")
    wal = Path(options.wal_directory) if options.wal_directory else None
    check_vacant(data, wal)
    _check_file(options.path)
    check = HashCheck.SKIPPED if options.skip_hash_check else HashCheck.REQUIRED
    with open_snapshot(files, options.path, check) as image:
        facts = _renewed(ClusterBuckets(image), members)
        size = image.size
    require_room(DataDirectory(data, wal), size, 0, partial(used_bytes, files, options.path))
    with (
        open_snapshot(files, options.path, HashCheck.SKIPPED) as image,
        staged(data, wal) as stage,
        ByteProgress("restoring", image.size) as progress,
    ):
        snap, backend = stage.member / "snap", stage.member / "backend"
        for directory in (snap, backend):
            directory.mkdir(0o700)
        content: SealedContent
        if changed is None:
            content = progress.count_pieces(sealed_content(image, environments.native))
        else:
            content = seal_content(changed(progress.count_content(checked_content(image))))
        if options.bump_revision:
            content = _bumped(content, facts, options.bump_revision)
        install_sealed(files, environments, str(backend), facts.sealed_content(content))
        history = _history(members, metadata, facts.document(metadata))
        write_history(files, snap, stage.wal, history)
    return data


class _StandardError:
    """Writes log lines to standard error, in etcdutl's format."""

    def write(self, line: Line) -> None:
        """Write a line."""
        sys.stderr.write(f"{as_console(line)}\n")


def _log_added_members(members: list[MemberDocument]) -> None:
    """Log each member of the new cluster as etcdutl does, because scripts wait for these lines."""
    logger = Logger([_StandardError()])
    cluster = cluster_id(member.id for member in members)
    for member in members:
        log_fields(
            logger,
            "info",
            "added member",
            cluster_id=f"{cluster:x}",
            local_member_id="0",
            added_peer_id=f"{member.id:x}",
            added_peer_peer_urls=list(member.peer_urls),
            added_peer_is_learner=member.is_learner,
        )


def _check_file(path: str) -> None:
    """Refuse a file that cannot be a snapshot, with etcd's words for reading the digest."""
    file = Path(path)
    if not file.exists():
        raise CommandError(f"open {path}: no such file or directory")
    if file.is_dir():
        raise CommandError(f"read {path}: is a directory")
    if file.stat().st_size < DIGEST_BYTES:
        raise CommandError(f"seek {path}: invalid argument", hint=f"{path} is no snapshot")


def _members(options: RestoreOptions) -> list[MemberDocument]:
    try:
        advertised = checked_urls(options.peer_urls.split(","))
        cluster = parse_initial_cluster(options.initial_cluster)
        if cluster and options.name not in cluster:
            raise CommandError(
                f'couldn\'t find local name "{options.name}" in the initial cluster configuration'
            )
        check_initial_cluster(cluster, options.name, advertised, _resolved)
        return initial_members(cluster, options.initial_cluster_token)
    except UrlError as error:
        raise CommandError(str(error)) from error
    except ClusterSettingsError as error:
        # Report only the problem of the URL, without the context that a server's start adds.
        raise CommandError(str(error.__cause__ or error)) from error


def _resolved(url: str) -> str:
    """Return a URL with its host resolved to an address; unchanged if that fails."""
    parts = urlsplit(url)
    if parts.scheme.startswith("unix") or parts.hostname == "localhost":
        return url
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
    except OSError:
        return url
    return f"{parts.scheme}://{found[0][4][0]}:{parts.port}"


def _renewed(facts: ClusterBuckets, members: list[MemberDocument]) -> ClusterBuckets:
    """Replace the members and the applied index in a database's facts by those of a new cluster."""
    facts.buckets[MEMBERS_REMOVED].clear()
    facts.buckets[MEMBERS] = {f"{each.id:x}".encode(): encode_member(each) for each in members}
    facts.set_applied(len(members), _TERM, _voters(members))
    return facts


def _bumped(content: SealedContent, facts: ClusterBuckets, bump: int) -> SealedContent:
    """Raise the newest revision by a marker row, and schedule the compaction of all before.

    This keeps a watcher of the lost cluster from resuming here as if it had missed nothing.
    """

    def marked(pieces: SealedPieces) -> SealedPieces:
        newest = 0
        for piece in pieces:
            if piece:
                newest = parse_row_key(piece[-1][0]) >> 32
            yield piece
        mark = row_key(revision_of(newest + bump))
        facts.buckets[META][SCHEDULED_COMPACT_REVISION] = mark
        yield [(mark, seal_value(mark, b""))]

    # Bucket `meta` comes after bucket `key`, so the marker is known when `meta` is written.
    for bucket, pieces in content:
        yield bucket, marked(pieces) if bucket == KEY else pieces


def _voters(members: list[MemberDocument]) -> ConfState:
    return ConfState(tuple(member.id for member in members))


def _history(members: list[MemberDocument], metadata: bytes, document: bytes) -> LogHistory:
    """Return the history of a cluster whose only entries add its members."""
    entries = [
        Entry(kind, _TERM, index, data)
        for index, (kind, data) in enumerate(map(encode_conf_change, bootstrap_changes(members)), 1)
    ]
    count = len(entries)
    snapshot = Snapshot(count, _TERM, _voters(members), document)
    return LogHistory(metadata, snapshot, entries, HardState(_TERM, members[0].id, count))
