"""`migrate`: convert the data directory of a stopped etcd into one of ours, and back.

The new directory is the same member of the same cluster, with its ids, its vote and its log. The
last entry whose effects the database holds becomes the snapshot at which the log starts, and only
the entries after it are copied. The old directory is only read. It must not be started again once
the new one has been started.
"""

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from kvorum.api.limits import PRODUCTION
from kvorum.api.pb.etcdserverpb import InternalRaftRequest
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.messages import ConfState, Snapshot
from kvorum.state.membership.cluster import Membership
from kvorum.state.membership.versions import Version, parse_version
from kvorum.storage.backend import Environments, View, open_view
from kvorum.storage.backend.bbolt import write_image
from kvorum.storage.backend.buckets import CLUSTER, CLUSTER_VERSION, META, STORAGE_VERSION
from kvorum.storage.backend.images import sealed_content
from kvorum.storage.backend.transfer import dump_image, install_sealed
from kvorum.storage.files import Files, Opening
from kvorum.storage.snap import database_index, database_path
from kvorum.storage.wal import LogContent
from kvorum.storage.wal import exists as log_exists
from kvorum.storage.wal.version import minimal_etcd_version
from kvorum.tools.cli.errors import CommandError
from kvorum.tools.offline.directories import DataDirectory, require_room, staged
from kvorum.tools.offline.facts import ClusterBuckets
from kvorum.tools.offline.histories import LogHistory, read_history, write_history
from kvorum.tools.offline.progress import ByteProgress
from kvorum.tools.offline.snapshots import HashCheck, open_snapshot, used_bytes
from kvorum.tools.utl.v2_requests import translate_entry

OLDEST, OWN, NEWEST = Version(3, 4), Version(3, 7), Version(3, 8)
_STORAGE_VERSION_MIN = Version(3, 6)
# The size of a log entry beside its data, at most.
_ENTRY_BYTES = 64
# Pages of an image are filled to nine tenths, and its entries have two bytes more than ours.
_IMAGE_BYTES_MAX_PERCENT = 120


def from_etcd(
    files: Files, environments: Environments, source: DataDirectory, target: DataDirectory
) -> None:
    """Convert an etcd's data directory into one of ours."""
    database = source.snap / "db"
    _require(files, source, database, "an etcd")
    with ExitStack() as stack:
        stack.enter_context(_unlocked(database))
        snapshot, log = read_history(files, source.snap, source.log, _applied(files, source))
        path, facts = _newest_database(files, source, snapshot)
        is_lowered = _is_lowered(facts, facts.cluster(log.metadata))
        history = _behind(log, snapshot, facts)
        entries = [translate_entry(each) for each in history.entries]
        if is_lowered:
            entries = [_lowered(each) for each in entries]
        history = history._replace(entries=entries)
        size = Path(path).stat().st_size
        require_room(target, size, _log_bytes(history), partial(used_bytes, files, path))
        stage = stack.enter_context(staged(target.data, target.wal))
        snap, backend = stage.member / "snap", stage.member / "backend"
        for directory in (snap, backend):
            directory.mkdir(0o700)
        with (
            open_snapshot(files, path, HashCheck.SKIPPED) as image,
            ByteProgress("taking over", image.size) as progress,
        ):
            content = progress.count_pieces(sealed_content(image, environments.native))
            install_sealed(files, environments, str(backend), facts.sealed_content(content))
        write_history(files, snap, stage.wal, history)


def to_etcd(
    files: Files,
    environments: Environments,
    source: DataDirectory,
    target: DataDirectory,
    version: Version | None = None,
) -> None:
    """Convert our data directory for an etcd of this version, or of the cluster's version."""
    backend = source.member / "backend"
    _require(files, source, backend / "CURRENT", "a kvorum")
    with ExitStack() as stack:
        stack.enter_context(_locked(files, source.member / "LOCK"))
        view = stack.enter_context(open_view(files, environments, str(backend)))
        snapshot, log = read_history(files, source.snap, source.log)
        facts = ClusterBuckets(view)
        if snapshot is not None and facts.index < snapshot.index:
            raise CommandError(
                f"{backend} holds what was applied up to entry {facts.index}, but the log begins "
                f"at {snapshot.index}: a received snapshot waits for its installation. Start "
                "kvorum on the directory once, stop it, and migrate then"
            )
        _lower(facts, log, version)
        history = _behind(log, snapshot, facts)
        _check_entries(history.entries, facts.cluster(log.metadata).version)
        room = _in_use_bytes(environments, view) * _IMAGE_BYTES_MAX_PERCENT // 100
        require_room(target, room, _log_bytes(history), lambda: room)
        stage = stack.enter_context(staged(target.data, target.wal))
        snap = stage.member / "snap"
        snap.mkdir(0o700)
        descriptor = files.open(str(snap / "db"), Opening.CREATE)
        try:
            with ByteProgress("writing", Path(view.path).stat().st_size) as progress:
                content = facts.image_content(
                    progress.count_image(dump_image(view, PRODUCTION.image_piece_entries))
                )
                write_image(files, descriptor, content)
            files.fdatasync(descriptor)
        finally:
            files.close(descriptor)
        write_history(files, snap, stage.wal, history)
        files.sync_directory(str(snap))


def _log_bytes(history: LogHistory) -> int:
    return sum(len(entry.data) + _ENTRY_BYTES for entry in history.entries)


def _in_use_bytes(environments: Environments, view: View) -> int:
    environment = environments.open_reader(view.path)
    try:
        return environment.sizes().in_use
    finally:
        environment.close()


def _require(files: Files, source: DataDirectory, sign: Path, owner: str) -> None:
    if not sign.exists() or not log_exists(files, str(source.log)):
        missing = source.log if sign.exists() else sign
        raise CommandError(
            f"{source.data} is not the data directory of {owner}: there is no {missing}; "
            "name the directory that holds 'member', and --wal-dir if the log is elsewhere"
        )


def _newest_database(
    files: Files, source: DataDirectory, snapshot: Snapshot | None
) -> tuple[str, ClusterBuckets]:
    """Return the current database: a received one, if its snapshot is newer than the main file."""
    path = str(source.snap / "db")
    facts = _facts(files, path)
    if snapshot is not None and facts.index < snapshot.index:
        path = database_path(str(source.snap), snapshot.index)
        if not files.exists(path):
            raise CommandError(
                f"the log begins at entry {snapshot.index}, but {source.snap}/db holds only what "
                f"was applied up to {facts.index}, and {path} is missing: the directory is not "
                "whole, and etcd would not start from it either"
            )
        facts = _facts(files, path)
    return path, facts


def _applied(files: Files, source: DataDirectory) -> int:
    """Return the newest applied index of the database and of received databases."""
    received = (database_index(name) or 0 for name in files.list(str(source.snap)))
    return max([_facts(files, str(source.snap / "db")).index, *received])


def _is_lowered(facts: ClusterBuckets, cluster: Membership) -> bool:
    """Lower the version of a cluster that is newer than ours; return whether this was needed."""
    if cluster.version is None or cluster.version.level <= OWN:
        return False
    if len(cluster.members) > 1:
        raise CommandError(
            f"the cluster is at version {cluster.version}, and kvorum is a member of {OWN}: run "
            f"'etcdctl downgrade enable {OWN.major}.{OWN.minor}', downgrade all members, and "
            "migrate then; or restore a snapshot as a new cluster"
        )
    # The cluster has one member, so no other member must agree.
    for bucket, name in ((CLUSTER, CLUSTER_VERSION), (META, STORAGE_VERSION)):
        facts.buckets[bucket][name] = str(OWN).encode()
    return True


def _lowered(entry: Entry) -> Entry:
    """Return an entry that does not raise the cluster's version above ours."""
    if entry.type != EntryType.NORMAL:
        return entry
    request = InternalRaftRequest.FromString(entry.data)
    version = request.cluster_version_set.ver
    if not version or parse_version(version) <= OWN:
        return entry
    request.cluster_version_set.ver = str(OWN)
    return Entry(entry.type, entry.term, entry.index, request.SerializeToString())


def _facts(files: Files, path: str) -> ClusterBuckets:
    with open_snapshot(files, path, HashCheck.SKIPPED) as image:
        return ClusterBuckets(image)


def _behind(log: LogContent, snapshot: Snapshot | None, facts: ClusterBuckets) -> LogHistory:
    """Return the history that starts at the database's applied index."""
    index = facts.index
    if not index:
        return LogHistory(log.metadata, None, log.entries, log.state)
    start = 0 if snapshot is None else snapshot.index
    if index > start + len(log.entries):
        raise CommandError(
            f"the database holds what was applied up to entry {index}, but the log ends at "
            f"{start + len(log.entries)}: the log has lost entries"
        )
    conf_state = facts.conf_state
    if not conf_state.voters:
        # Before etcd 3.5 a database does not name the voters, but it has the members.
        cluster = facts.cluster(log.metadata)
        conf_state = ConfState(
            tuple(each.id for each in cluster.voters), tuple(each.id for each in cluster.learners)
        )
    if snapshot is not None and index == start:
        term, conf_state = snapshot.term, snapshot.conf_state
    else:
        term = log.entries[index - start - 1].term
    if not conf_state.voters:
        raise CommandError(
            "the database says neither who votes nor who the members are: it is not that of a "
            "member which has ever been part of a cluster"
        )
    if problem := facts.correct_members(log.metadata, conf_state):
        raise CommandError(
            f"the members of the database are not those that vote: {problem}. If the server was "
            "killed, start it once more, stop it with SIGTERM, and migrate then. If they differ "
            "still, migrate another member, or restore a snapshot as a new cluster: "
            "'etcdutl snapshot restore' or 'kvorumutl snapshot restore' make the members anew"
        )
    facts.set_applied(index, term, conf_state)
    state = log.state._replace(term=max(log.state.term, term), commit=max(log.state.commit, index))
    begin = Snapshot(index, term, conf_state, facts.document(log.metadata))
    return LogHistory(log.metadata, begin, log.entries[index - start :], state)


def _lower(facts: ClusterBuckets, log: LogContent, version: Version | None) -> None:
    """Set a version in the database from which etcd can start."""
    present = facts.cluster(log.metadata).version
    target = version or present or NEWEST
    if not OLDEST <= target <= NEWEST:
        raise CommandError(f"target version {target}: expected one from {OLDEST} to {NEWEST}")
    # An etcd raises the version on its own.
    target = min(target, OWN)
    if present is None or target < present:
        facts.buckets[CLUSTER][CLUSTER_VERSION] = str(target).encode()
    if target >= _STORAGE_VERSION_MIN:
        facts.buckets[META][STORAGE_VERSION] = str(target).encode()
    else:
        facts.buckets[META].pop(STORAGE_VERSION, None)


def _check_entries(entries: Sequence[Entry], target: Version | None) -> None:
    """Refuse entries that would stop an etcd of the target version."""
    assert target is not None, "it was set above"
    needed = Version(*minimal_etcd_version(entries))
    for entry in entries:
        if entry.type == EntryType.NORMAL:
            request = InternalRaftRequest.FromString(entry.data)
            major, _, rest = request.cluster_version_set.ver.partition(".")
            if rest:
                needed = max(needed, Version(int(major), int(rest.partition(".")[0])))
    if needed > target:
        raise CommandError(
            f"the log has entries behind {entries[0].index - 1} that need etcd {needed}, which is "
            f"newer than {target}; start kvorum on the directory, stop it with SIGTERM, and "
            "migrate then: what is applied needs no entries"
        )


@contextmanager
def _unlocked(database: Path) -> Iterator[None]:
    """Make sure that no etcd uses a database during the block."""
    with database.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(f"{database} is locked: stop the etcd that serves it") from None
        yield


@contextmanager
def _locked(files: Files, path: Path) -> Iterator[None]:
    """Keep a kvorum from starting during the block."""
    if not path.exists():
        yield
        return
    descriptor = files.open(str(path), Opening.WRITE)
    try:
        if not files.lock(descriptor):
            raise CommandError(
                f"{path} is locked: stop the kvorum that serves {path.parent.parent}"
            )
        yield
    finally:
        files.close(descriptor)
