"""Start a member: from nothing, from its log, or from a snapshot and the log after it.

The log is the truth, and the backend holds the effects of a part of it. The newest snapshot that
has a record in the log marks where the log begins. If the backend is behind that snapshot, a crash
came between the record of a received snapshot and its installation, and the start installs the
snapshot's image now. If the `.snap` file is missing as well, the start withdraws the record: the
member promised nothing that came with it, because promises wait for the installation. Then raft
continues from the backend's applied index: the member applies every entry after it again, and none
before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvorum.api.codec import HeaderEncoder
from kvorum.api.coverage import reach
from kvorum.api.pb.etcdserverpb import Metadata
from kvorum.member import log_lines, snapshots
from kvorum.member.autocompaction import start_auto_compaction
from kvorum.member.corruption import initial_check
from kvorum.member.errors import StartRefused
from kvorum.member.forced import entries_forcing_membership
from kvorum.member.images import InstallImage
from kvorum.member.member import Member
from kvorum.member.publishing import publish
from kvorum.member.replica import Replica
from kvorum.member.restoring import (
    Progress,
    RandomFractions,
    open_database,
    read_state,
    stored_conf_state,
)
from kvorum.member.waits import Steps
from kvorum.raft.config import Config
from kvorum.raft.entries import Entry
from kvorum.raft.logger import named
from kvorum.raft.messages import ConfState, HardState, Snapshot
from kvorum.raft.rawnode import RawNode
from kvorum.raft.storage import MemoryStorage
from kvorum.state.apply.callers import MEMBER
from kvorum.state.membership.bootstrap import (
    bootstrap_changes,
    check_initial_cluster,
    initial_members,
)
from kvorum.state.membership.identity import cluster_id as compute_cluster_id
from kvorum.state.mvcc.watch.hub import WatchHub
from kvorum.storage.files.interface import parent
from kvorum.storage.snap import (
    ReleaseDatabases,
    RemoveLeftovers,
    database_path,
    load_newest,
    newest_whole,
)
from kvorum.storage.wal import (
    Log,
    LogContent,
    SnapshotRecord,
    create_log,
    exists,
    open_newest,
)

if TYPE_CHECKING:
    from kvorum.member.config import MemberConfig, Seams
    from kvorum.state.apply.state import State


class _Storage(MemoryStorage):
    """The log in memory, with the members as of the last applied entry instead of a snapshot."""

    __slots__ = ("_members",)

    def __init__(self, members: ConfState) -> None:
        super().__init__()
        self._members = members

    def initial_state(self) -> tuple[HardState, ConfState]:
        """Return the hard state, and the members stored in the backend."""
        return super().initial_state()[0], self._members


def open_member(config: MemberConfig, seams: Seams, progress: Progress | None = None) -> Member:
    """Start a member on its directory, new or not; it serves when the caller takes its turns.

    Blocks while it reads. Raises StartRefused if directory and configuration do not fit, and
    the errors of the log, the snapshots and the backend about damage.
    """
    wal_directory = config.wal_directory or f"{config.directory}/wal"
    has_log = exists(seams.files, wal_directory)
    for directory in (config.directory, f"{config.directory}/snap", f"{config.directory}/backend"):
        if not seams.files.exists(directory):
            seams.files.make_directory(directory)
        elif has_log:
            continue
        # A killed first start may have left directory entries that are not durable.
        seams.files.sync_directory(parent(directory))
    RemoveLeftovers(f"{config.directory}/snap").run(seams.files)
    if has_log:
        return _restart(config, seams, wal_directory, progress)
    return _start_new(config, seams, wal_directory)


def _start_new(config: MemberConfig, seams: Seams, wal_directory: str) -> Member:
    """Start a member that has no log yet."""
    if config.joins is not None:
        member_id, cluster_id = config.joins
    else:
        check_initial_cluster(config.initial_cluster, config.name)
        members = initial_members(config.initial_cluster, config.initial_cluster_token)
        cluster_id = compute_cluster_id(each.id for each in members)
        member_id = next(each.id for each in members if each.name == config.name)
    state = _read_state(config, seams, cluster_id, member_id, None)
    if state.backend.applied_index:
        raise StartRefused(
            f"{config.directory}/backend holds what was applied up to entry "
            f"{state.backend.applied_index}, but there is no log in {wal_directory}. If the log "
            f"was moved, name its place; otherwise remove the member and add it again"
        )
    metadata = Metadata(NodeID=member_id, ClusterID=cluster_id).SerializeToString()
    log = create_log(seams.files, wal_directory, metadata, config.segment_bytes)
    return _bootstrap(config, seams, member_id, log, state)


def _bootstrap(
    config: MemberConfig, seams: Seams, member_id: int, log: Log, state: State
) -> Member:
    """Make a member whose log holds nothing yet, or a torn part of the cluster's first entries.

    It writes the first entries only if its cluster id is that of the cluster in the flags: a member
    that ended before an existing cluster contacted it still waits for that cluster.
    """
    storage = _Storage(ConfState())
    node = RawNode(_raft_config(config, seams, member_id, storage, 0))
    if config.joins is None:
        members = initial_members(config.initial_cluster, config.initial_cluster_token)
        if compute_cluster_id(each.id for each in members) == state.cluster.cluster_id:
            node.bootstrap([(each.node_id, each.context) for each in bootstrap_changes(members)])
    return _member(config, seams, node, storage, log, state, 0)


def _restart(
    config: MemberConfig, seams: Seams, wal_directory: str, progress: Progress | None
) -> Member:
    snapshot, log, content = _open_log(config, seams, wal_directory)
    metadata = Metadata.FromString(content.metadata)
    member_id, cluster_id = metadata.NodeID, metadata.ClusterID
    if progress is not None:
        progress("entries read", len(content.entries))
    if snapshot is not None:
        _install_if_behind(config, seams, snapshot)
    # A leader sends an uninstalled snapshot again if necessary. After forcing a new cluster here,
    # that may be another cluster, and a received file does not replace an existing one.
    ReleaseDatabases(f"{config.directory}/snap", None).run(seams.files)
    state = _read_state(config, seams, cluster_id, member_id, progress)
    applied = state.backend.applied_index
    start = snapshot.index if snapshot is not None else 0
    last = start + len(content.entries)
    if applied > last:
        raise StartRefused(
            f"{config.directory}/backend holds what was applied up to entry {applied}, but the "
            f"log in {wal_directory} ends at {last}: the log has lost entries. Remove the member "
            f"from the cluster and add it again with an empty directory"
        )
    if not (start or applied or content.state.term):
        reach("first batch lost")
        # The power failed before the first batch was complete: the member has promised nothing.
        return _bootstrap(config, seams, member_id, log, state)
    _compare_members(seams, state)
    storage = _Storage(stored_conf_state(state.backend))
    if snapshot is not None:
        storage.apply_snapshot(snapshot)
    storage.append(content.entries)
    # Applied entries are committed, whether or not the log says so.
    hard_state = content.state
    if hard_state.commit < applied:
        hard_state = hard_state._replace(commit=applied)
        log.save(hard_state, ())
    if config.force_new_cluster:
        unapplied = content.entries[max(applied - start, 0) :]
        hard_state = _force(seams, member_id, log, storage, hard_state, unapplied)
        last = hard_state.commit
    storage.set_hard_state(hard_state)
    node = RawNode(_raft_config(config, seams, member_id, storage, applied))
    seams.logger.info(
        f"restarted member {member_id:x} at snapshot {start}, applied {applied}, "
        f"commit {hard_state.commit}, last entry {last}"
    )
    member = _member(config, seams, node, storage, log, state, start)
    log_lines.log_recovered_members(member.replica)
    snapshots.compact_after_start(member.replica)
    return member


def _compare_members(seams: Seams, state: State) -> None:
    """Correct stored learners that vote in raft, and log other differences for the operator.

    The member starts in any case: raft's own record decides, and other members may have the same
    difference.
    """
    conf_state = stored_conf_state(state.backend)
    if not conf_state.voters:
        return
    corrected, rest = state.cluster.correct(conf_state)
    for each in corrected:
        seams.logger.warning(
            f"member {each.id:x} was stored as a learner although it votes: it is a voter now"
        )
    if rest:
        seams.logger.warning(
            f"the stored members are not those of raft: {rest}. Remove those that are not wanted, "
            "add anew those that are missing"
        )


def _force(
    seams: Seams,
    member_id: int,
    log: Log,
    storage: _Storage,
    hard_state: HardState,
    unapplied: Sequence[Entry],
) -> HardState:
    """Make this member the only one, durably; return the hard state that commits the change."""
    last = storage.last_index()
    members = storage.initial_state()[1]
    term = storage.term(last)
    if term > hard_state.term:
        # A torn write lost these entries' hard state; the member never voted in their term.
        hard_state = HardState(term)
    entries = entries_forcing_membership(member_id, members, unapplied, last, hard_state.term)
    hard_state = hard_state._replace(commit=last + len(entries))
    job = log.save(hard_state, entries)
    if job is None:
        job = log.flush()
    if job is not None:
        job.run(seams.files)
    storage.append(entries)
    seams.logger.warning(
        f"forced a new cluster: member {member_id:x} is its only one, {len(entries)} changes "
        f"were committed up to entry {hard_state.commit}"
    )
    return hard_state


def _open_log(
    config: MemberConfig, seams: Seams, wal_directory: str
) -> tuple[Snapshot | None, Log, LogContent]:
    """Open the log at the newest snapshot that has both a file and a record."""
    directory = f"{config.directory}/snap"
    snapshot: Snapshot | None = None

    def choose(valid: list[SnapshotRecord]) -> tuple[SnapshotRecord, SnapshotRecord | None]:
        nonlocal snapshot
        known = {(each.index, each.term) for each in valid}
        snapshot, broken = load_newest(seams.files, directory, known)
        for each in broken:
            seams.logger.warning(f"{each.path}: {each.problem}")
        record = _record_of(snapshot)
        without_file = [each for each in valid if each.index > record.index]
        return record, _find_uninstalled(config, seams, without_file)

    log, content = open_newest(
        seams.files,
        wal_directory,
        # The first guess, right unless a crash came between a snapshot and its record.
        _record_of(newest_whole(seams.files, directory)),
        choose,
        config.segment_bytes,
        seams.skim,
    )
    if content.tear is not None:
        seams.logger.warning(f"cut off the end of the log: {content.tear}")
        reach("torn tail repaired")
    if content.void is not None:
        seams.logger.warning(
            f"removed {wal_directory}/{content.void.name}: it was started after a write that failed"
        )
    return snapshot, log, content


def _record_of(snapshot: Snapshot | None) -> SnapshotRecord:
    if snapshot is None:
        return SnapshotRecord()
    return SnapshotRecord(snapshot.index, snapshot.term, snapshot.conf_state)


def _find_uninstalled(
    config: MemberConfig, seams: Seams, without_file: list[SnapshotRecord]
) -> SnapshotRecord | None:
    """Return the first of these snapshots that is ahead of the backend, or None.

    A snapshot that this member made never is: the backend already held its state.
    """
    if not without_file:
        return None
    backend = open_database(config, seams)
    applied = backend.applied_index
    backend.close()
    return next((each for each in without_file if each.index > applied), None)


def _install_if_behind(config: MemberConfig, seams: Seams, snapshot: Snapshot) -> None:
    """Finish the installation of a received snapshot that a crash interrupted."""
    backend = open_database(config, seams)
    applied = backend.applied_index
    backend.close()
    if applied >= snapshot.index:
        return
    path = database_path(f"{config.directory}/snap", snapshot.index)
    if not seams.files.exists(path):
        raise StartRefused(
            f"the log begins after the snapshot at {snapshot.index}, but the backend holds only "
            f"what was applied up to {applied}, and {path} is missing. Remove the member from "
            f"the cluster and add it again with an empty directory"
        )
    reach("snapshot installed by a start")
    seams.logger.info(f"installing {path}")
    commit_entries = config.limits.image_commit_entries
    job = InstallImage(path, f"{config.directory}/backend", config.quota_bytes, commit_entries)
    job.run(seams.files, seams.environments)


def _read_state(
    config: MemberConfig,
    seams: Seams,
    cluster_id: int,
    member_id: int,
    progress: Progress | None,
) -> State:
    header = HeaderEncoder(cluster_id, member_id, 0)
    hub = WatchHub(
        header,
        RandomFractions(seams.random_below),
        config.limits,
        request_bytes_max=config.request_bytes_max,
        progress_seconds=config.watch_progress_seconds,
    )
    backend = open_database(config, seams)
    return read_state(config, seams, backend, header, hub, cluster_id, member_id, progress)


def _raft_config(
    config: MemberConfig, seams: Seams, member_id: int, storage: MemoryStorage, applied: int
) -> Config:
    return Config(
        id=member_id,
        storage=storage,
        logger=named(seams.logger, "raft"),
        random_below=seams.random_below,
        election_ticks=config.election_ticks,
        heartbeat_ticks=1,
        applied=applied,
        async_storage_writes=True,
        message_size_max=config.message_bytes_max,
        inflight_messages_max=config.inflight_messages_max,
        # Room for proposals that peers forward: this member's own wait beyond half of the limit.
        uncommitted_size_max=2 * config.uncommitted_bytes_max,
        inflight_bytes_max=config.inflight_bytes_max,
        check_quorum=True,
        pre_vote=config.pre_vote,
        # The member applies a change only once the commit index that covers it is durable.
        tell_changes_when_applied=True,
        # Before that, peers may get entries after the change that a power loss destroys here.
        tell_commit_to_voters=True,
    )


def _member(
    config: MemberConfig,
    seams: Seams,
    node: RawNode,
    storage: MemoryStorage,
    log: Log,
    state: State,
    snapshot_index: int,
) -> Member:
    member = Member(Replica(config, seams, node, storage, log, state, snapshot_index))
    member.replica.writer.prepare_segment()
    is_new = not state.backend.applied_index
    member.start(None, MEMBER, _start_serving(member, is_checked=is_new))
    start_auto_compaction(member)
    return member


def _start_serving(member: Member, *, is_checked: bool) -> Steps:
    if member.config.initial_corrupt_check and not is_checked:
        yield from initial_check(member)
    return (yield from publish(member))
