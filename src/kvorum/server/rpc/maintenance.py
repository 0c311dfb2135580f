"""The Maintenance service: operations on one member.

All but Alarm and Downgrade concern this member alone, and need no other. Jobs off the loop compute
hashes, over the database on the disk and the rows not yet flushed.
"""

from kvorum.api import errors
from kvorum.api.errors import Status, StatusError
from kvorum.api.pb.etcdserverpb import (
    AlarmRequest,
    DefragmentRequest,
    DowngradeRequest,
    DowngradeResponse,
    HashKVRequest,
    HashKVResponse,
    HashRequest,
    HashResponse,
    MoveLeaderRequest,
    StatusRequest,
    StatusResponse,
)
from kvorum.api.pb.membershippb import DowngradeInfoSetRequest
from kvorum.api.wire import parse_message
from kvorum.member import log_lines
from kvorum.member.hashing import hash_kv
from kvorum.member.jobs import ExecutorKind
from kvorum.member.member import Member
from kvorum.member.parts import Part, run_job
from kvorum.member.waits import (
    FlushedTo,
    Propose,
    ReadIndex,
    RunJob,
    Signal,
    Signalled,
    Steps,
)
from kvorum.server.rpc.interface import RpcOutput, canonical
from kvorum.state.apply.callers import MEMBER, Caller
from kvorum.state.apply.permissions import admin_refusal, identity_refusal
from kvorum.state.apply.requests import ALARM, DOWNGRADE_INFO_SET
from kvorum.state.apply.results import Result
from kvorum.state.membership.cluster import Membership
from kvorum.state.membership.versions import Version, one_minor_below, parse_version
from kvorum.state.mvcc.hashes import HashDatabase
from kvorum.storage.backend.backend import Backend
from kvorum.storage.backend.defragment import CopyChanges, CopyDatabase

_ACTIONS = 3


class Maintenance:
    """Serves the unary calls of Maintenance."""

    def __init__(self, member: Member, edge: RpcOutput) -> None:
        self._member = member
        self._edge = edge

    def status(self, _call: int, _caller: Caller, payload: bytes) -> Result:
        """Report the state of this member."""
        parse_message(StatusRequest, payload)
        member = self._member
        cluster, backend = member.state.cluster, member.state.backend
        alarms = [str(alarm) for alarm in member.state.alarms.raised()]
        storage = cluster.storage_version
        answer = StatusResponse(
            version=member.config.server_version,
            dbSize=backend.size_bytes,
            dbSizeInUse=backend.size_in_use_bytes,
            leader=member.leader,
            raftIndex=member.committed,
            raftTerm=member.state.applied_term,
            raftAppliedIndex=member.state.applied,
            errors=alarms if member.leader else [errors.NO_LEADER.text, *alarms],
            isLearner=member.is_learner,
            storageVersion="" if storage is None else str(storage),
            dbSizeQuota=member.config.quota_bytes,
        )
        target = cluster.downgrade_target
        answer.downgradeInfo.SetInParent()
        if target is not None:
            answer.downgradeInfo.enabled = True
            answer.downgradeInfo.targetVersion = str(target)
        return self._header() + answer.SerializeToString()

    def alarm(self, call: int, caller: Caller, payload: bytes) -> Result | None:
        """List, raise or clear alarms."""
        request = parse_message(AlarmRequest, payload)
        refuse = identity_refusal if request.action == AlarmRequest.GET else admin_refusal
        if (refusal := refuse(self._member.state, caller)) is not None:
            return refusal
        if not 0 <= request.action < _ACTIONS:
            # An etcd member that finds such a request in its log stops.
            return errors.UNKNOWN_DOWNGRADE_ACTION
        self._member.replica.propose(call, caller, ALARM, canonical(request), request)
        return None

    def defragment(self, call: int, caller: Caller, payload: bytes) -> None:
        """Rewrite the database of this member without its free pages."""
        parse_message(DefragmentRequest, payload)
        self._member.start(call, caller, _defragment(self._member))

    def hash(self, call: int, caller: Caller, payload: bytes) -> None:
        """Hash the database of this member, after a flush of all applied entries."""
        parse_message(HashRequest, payload)
        self._edge.mark_waiting(call)
        self._member.start(call, caller, _hash(self._member))

    def hash_kv(self, call: int, caller: Caller, payload: bytes) -> None:
        """Hash the keys at a revision; members with the same history agree on it."""
        request = parse_message(HashKVRequest, payload)
        # Earlier hashes and compactions run first, for as long as they take.
        self._edge.mark_waiting(call)
        self._member.start(call, caller, _hash_kv(self._member, request.revision))

    def move_leader(self, call: int, caller: Caller, payload: bytes) -> Result | None:
        """Transfer the leadership to a voter; answer once this member sees that voter lead."""
        request = parse_message(MoveLeaderRequest, payload)
        member = self._member
        if not member.is_leader:
            return errors.NOT_LEADER
        target = member.state.cluster.member(request.targetID)
        if target is None or target.is_learner:
            return errors.BAD_LEADER_TRANSFEREE
        self._edge.mark_waiting(call)
        member.start(call, caller, _move_leader(member, request.targetID))
        return None

    def downgrade(self, call: int, caller: Caller, payload: bytes) -> Result | None:
        """Validate, enable or cancel a downgrade of the cluster by one minor version."""
        request = parse_message(DowngradeRequest, payload)
        if not 0 <= request.action < _ACTIONS:
            return errors.UNKNOWN_DOWNGRADE_ACTION
        self._member.start(call, caller, _downgrade(self._member, request))
        return None

    def _header(self) -> bytes:
        return self._member.state.header.field(self._member.state.store.revision)


def _hash_kv(member: Member, revision: int) -> Steps:
    found, current = yield from hash_kv(member, revision)
    answer = HashKVResponse(
        hash=found.hash, compact_revision=found.compact_revision, hash_revision=found.revision
    )
    return member.state.header.field(current) + answer.SerializeToString()


def _move_leader(member: Member, target: int) -> Steps:
    if member.leader != target:
        member.replica.node.transfer_leader(target)
    while member.leader != target:
        yield Signalled(Signal.LEADER)
    return b""


def _downgrade(member: Member, request: DowngradeRequest) -> Steps:
    if request.action == DowngradeRequest.CANCEL:
        # Etcd answers success whether or not a downgrade was enabled.
        yield _set_downgrade(None)
    else:
        target = _target_of(request.version)
        if target is None:
            return errors.WRONG_DOWNGRADE_VERSION_FORMAT
        refusal: Status | None = yield ReadIndex()
        refusal = refusal or _refusal(member.state.cluster, target)
        if refusal is not None:
            return refusal
        if request.action == DowngradeRequest.ENABLE:
            answer = yield _set_downgrade(target)
            if isinstance(answer, Status):
                return answer
    version = member.state.cluster.version
    text = "" if version is None else f"{version.major}.{version.minor}"
    header = member.state.header.field(member.state.store.revision)
    return header + DowngradeResponse(version=text).SerializeToString()


def _target_of(text: str) -> Version | None:
    """Parse the target of a downgrade: `major.minor`, or with a patch version that is ignored."""
    for candidate in (text, text + ".0"):
        try:
            return parse_version(candidate).level
        except ValueError:
            continue
    return None


def _refusal(cluster: Membership, target: Version) -> Status | None:
    if cluster.version is None:
        return errors.CLUSTER_VERSION_UNAVAILABLE
    if target != one_minor_below(cluster.version):
        return errors.INVALID_DOWNGRADE_TARGET_VERSION
    return None if cluster.downgrade_target is None else errors.DOWNGRADE_IN_PROCESS


def _set_downgrade(target: Version | None) -> Propose:
    request = DowngradeInfoSetRequest(
        enabled=target is not None, ver="" if target is None else str(target)
    )
    return Propose(DOWNGRADE_INFO_SET, request.SerializeToString(), request)


def _wait_for_compaction(member: Member) -> Part[None]:
    """Wait for a compaction in progress, at most for the request timeout.

    Otherwise the defragmentation copies rows that the compaction is about to delete.
    """
    end = member.now + member.config.request_seconds_max
    while member.state.store.compaction.is_pending and member.now < end:
        yield Signalled(Signal.COMPACTED, end)
    for _ in range(2):
        # The first flush may have started before the compaction deleted its last rows.
        if not member.state.backend.is_flushed:
            yield FlushedTo(member.state.applied)


def _defragment(member: Member) -> Steps:
    yield from _wait_for_compaction(member)
    while member.state.backend.is_defragmenting:
        yield Signalled(Signal.DEFRAGMENTED)
    backend = member.state.backend
    before = log_lines.log_defragmentation_start(member.replica)
    defragmented = _run_defragmentation(member, backend, backend.defragment(), before)
    # The member runs the rest itself, whether or not the client stays: a half-finished
    # defragmentation would block the next one.
    results: list[Result] = []
    member.start(None, MEMBER, _keep_result(member, defragmented, results))
    member.procedures.signal(Signal.DEFRAGMENTED)
    while not results:
        yield Signalled(Signal.DEFRAGMENTED)
    return results[0]


def _keep_result(member: Member, defragmented: Part[Result], results: list[Result]) -> Steps:
    """Run a defragmentation to its end, and store the result for the call that waits for it."""
    results.append((yield from defragmented))
    member.procedures.signal(Signal.DEFRAGMENTED)
    return None


def _run_defragmentation(
    member: Member, backend: Backend, first: CopyDatabase, before: tuple[float, int, int]
) -> Part[Result]:
    job: CopyDatabase | CopyChanges | None = first
    # Stop when a snapshot is installed: its database has no free pages. Check before the first job,
    # too, because its files would be those of the new database.
    while job is not None:
        if member.is_installing or member.state.backend is not backend:
            return b""
        try:
            yield from run_job(ExecutorKind.HELPER, job)
        except StatusError as error:
            if member.is_installing or member.state.backend is not backend:
                return b""
            # The database is unchanged; only the copy is useless.
            yield RunJob(ExecutorKind.HELPER, backend.abandon_defragmentation())
            return errors.defragmentation_failed(error.status.text)
        if member.state.backend is not backend:
            return b""
        job = backend.take_copied()
    # The next flush, which is due at once, completes the defragmentation. Compare the path: another
    # defragmentation may have started before this procedure wakes up.
    while member.state.backend is backend and backend.defragmented_path == first.target:
        yield Signalled(Signal.DEFRAGMENTED)
    log_lines.log_defragmentation_end(member.replica, before)
    return b""


def _hash(member: Member) -> Steps:
    header = member.state.header.field(member.state.store.revision)
    yield FlushedTo(member.state.applied)
    directory, limits = member.state.backend.directory, member.config.limits
    work = HashDatabase(directory, limits.hash_rows_per_scan, limits.view_scan_entries)
    value = yield from run_job(ExecutorKind.HELPER, work)
    return header + HashResponse(hash=value).SerializeToString()
