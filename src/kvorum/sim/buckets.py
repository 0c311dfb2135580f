"""Members that applied the same entries have equal buckets, and in memory what a start would read.

The backend is read with its pending writes. Other checks compare the rows of bucket `key` with the
history, and by HashKV; here a finished compaction must have left nothing behind. In bucket `meta`
some entries are a member's own:

- index and term of the last applied entry are as of the last flush; the check compares the newer
  ones in memory
- the finished compaction lags behind the scheduled one while the compaction runs
- each member sets the storage version in its own time; members that have it agree
"""

from collections.abc import Iterable

from kvorum.member.member import Member
from kvorum.raft.messages import ConfState
from kvorum.sim.history import History
from kvorum.sim.machine import Machine
from kvorum.sim.violation import Violation
from kvorum.state.apply.alarms import Alarms
from kvorum.state.auth.store import AuthStore
from kvorum.state.lease.lease import row_value
from kvorum.state.membership.cluster import Membership
from kvorum.state.membership.documents import decode_conf_state
from kvorum.state.mvcc.keyvalue import key_of, lease_of
from kvorum.storage.backend.backend import Backend
from kvorum.storage.backend.buckets import (
    BUCKETS,
    CONF_STATE,
    KEY,
    LEASE,
    META,
    SCHEDULED_COMPACT_REVISION,
    STORAGE_VERSION,
)

GUARANTEE = "members have the same buckets"
_ROWS_MAX = 1 << 30


def check_buckets(machines: Iterable[Machine], history: History) -> None:
    """Compare members that have all applied the same entries."""
    first: tuple[str, dict[str, object]] | None = None
    version: tuple[str, bytes] | None = None
    for machine in machines:
        member = machine.member
        assert member is not None
        for what, stored, used in _pairs(member):
            if stored != used:
                raise Violation(
                    GUARANTEE, f"{machine.name} uses {what} {used!r}, and has stored {stored!r}"
                )
        _check_leftovers(machine.name, member, history)
        contents = _contents(member.state.backend)
        if first is None:
            first = machine.name, contents
        for what, content in contents.items():
            if content != first[1][what]:
                raise Violation(
                    GUARANTEE,
                    f"{what}: {machine.name} has {content!r}, {first[0]} {first[1][what]!r}",
                )
        stored_version = member.state.backend.get(META, STORAGE_VERSION)
        if stored_version is not None:
            version = version or (machine.name, stored_version)
            if version[1] != stored_version:
                raise Violation(
                    GUARANTEE,
                    f"storage version: {machine.name} has {stored_version!r}, {version}",
                )


def _contents(backend: Backend) -> dict[str, object]:
    """Return the contents that must be equal at all members, by name."""
    contents: dict[str, object] = {
        bucket.decode(): backend.items(bucket) for bucket in BUCKETS if bucket not in (KEY, META)
    }
    contents["configuration"] = _conf_state(backend)
    contents["applied entry"] = backend.applied_index, backend.applied_term
    contents["scheduled compaction"] = backend.get(META, SCHEDULED_COMPACT_REVISION)
    return contents


def _conf_state(backend: Backend) -> ConfState | None:
    document = backend.get(META, CONF_STATE)
    return None if document is None else decode_conf_state(document).normal()


def _pairs(member: Member) -> list[tuple[str, object, object]]:
    """Return pairs of what a start would read and what the member has in memory, by name."""
    backend, cluster, lessor = member.state.backend, member.state.cluster, member.state.lessor
    alarms = Alarms(backend)
    alarms.restore()
    read = Membership(backend, cluster.cluster_id, cluster.local_id)
    read.restore()
    users = AuthStore(backend)
    users.restore()
    voters = tuple(each.id for each in cluster.voters)
    learners = tuple(each.id for each in cluster.learners)
    leases = {lease: lessor._leases[lease] for lease in sorted(lessor.leases())}
    return [
        ("alarms", alarms.raised(), member.state.alarms.raised()),
        ("users and roles", _users(users), _users(member.state.auth)),
        ("members", read.members, cluster.members),
        ("removed members", read.removed, cluster.removed),
        ("cluster version", read.version, cluster.version),
        ("storage version", read.storage_version, cluster.storage_version),
        ("downgrade", read.downgrade_target, cluster.downgrade_target),
        ("configuration", _conf_state(backend), member.conf_state.normal()),
        ("voters", voters, member.conf_state.normal().voters),
        ("learners", learners, member.conf_state.normal().learners),
        (
            "leases",
            sorted(value for _, value in backend.items(LEASE)),
            sorted(row_value(lease) for lease in leases.values()),
        ),
        (
            "keys of leases",
            _leased(backend),
            {lease: sorted(each.keys) for lease, each in leases.items() if each.key_count},
        ),
    ]


def _users(auth: AuthStore) -> list[object]:
    """Return whether authentication is enabled, its revision, and all users and roles."""
    users, roles = map(auth.user, auth.users), map(auth.role, auth.roles)
    return [auth.is_enabled, auth.revision, *map(str, users), *map(str, roles)]


def _leased(backend: Backend) -> dict[int, list[bytes]]:
    """Return the keys of each lease, in order, according to the rows."""
    newest: dict[bytes, int] = {}
    for revision, kv in backend.scan_rows(0, (1 << 96) - 1, _ROWS_MAX):
        newest[key_of(kv)] = 0 if revision & 1 else lease_of(kv)
    found: dict[int, list[bytes]] = {}
    for key in sorted(newest):
        if newest[key]:
            found.setdefault(newest[key], []).append(key)
    return {lease: found[lease] for lease in sorted(found)}


def _check_leftovers(name: str, member: Member, history: History) -> None:
    """Require that a finished compaction has left no row that no read can reach."""
    store = member.state.store
    if store.compaction.is_pending:
        return
    needed = {revision for revision, _ in history.needed(store.compacted_revision)}
    if not needed:
        return
    last = (store.compacted_revision + 1 << 32) - 1
    for revision, kv in member.state.backend.scan_rows(0, last, _ROWS_MAX):
        if revision not in needed:
            raise Violation(
                GUARANTEE,
                f"{name} is compacted at {store.compacted_revision} and still has {revision >> 32} "
                f"of {key_of(kv)!r}",
            )
