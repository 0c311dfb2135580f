"""A member whose buckets or memory differ from those of the others is noticed, whatever differs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvorum.api.pb.etcdserverpb import AlarmMember, AlarmType, CompactionRequest, LeaseGrantRequest
from kvorum.member.member import Member
from kvorum.sim.buckets import GUARANTEE, check_buckets
from kvorum.sim.violation import Violation
from kvorum.state.apply.alarms import MemberAlarm
from kvorum.state.lease.lease import Lease, row_key, row_value
from kvorum.state.membership.documents import encode_conf_state
from kvorum.state.membership.versions import Version
from kvorum.storage.backend.buckets import (
    ALARM,
    AUTH,
    AUTH_ROLES,
    AUTH_USERS,
    CLUSTER,
    CLUSTER_VERSION,
    CONF_STATE,
    LEASE,
    MEMBERS,
    MEMBERS_REMOVED,
    META,
    SCHEDULED_COMPACT_REVISION,
)
from tests.incidents.stage import Stage

LEASED = 77
ALARMED = AlarmMember(memberID=5, alarm=AlarmType.NOSPACE).SerializeToString()
STAY_SECONDS = 1000.0


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, compaction_batch=1, compaction_pause_seconds=STAY_SECONDS)
    made.put(b"k", b"1")
    made.ask(LeaseGrantRequest(TTL=1000, ID=LEASED))
    made.put(b"leased", b"2", lease=LEASED)
    made.agree()
    yield made
    made.close()


def check(stage: Stage) -> None:
    check_buckets(stage.cluster.machines.values(), stage.cluster.history)


def member_of(stage: Stage) -> Member:
    member = stage.machine(2).member
    assert member is not None
    return member


def test_members_that_agree_have_the_same(stage: Stage) -> None:
    check(stage)
    stage.restart(3)
    stage.serve()
    stage.agree()
    check(stage)


@pytest.mark.parametrize(
    ("bucket", "name", "value"),
    [
        (ALARM, ALARMED, b""),
        (AUTH, b"authRevision", b"1"),
        (AUTH_ROLES, b"root", b""),
        (AUTH_USERS, b"root", b""),
        (CLUSTER, CLUSTER_VERSION, b"3.6.0"),
        (LEASE, row_key(78), row_value(Lease(78, 5))),
        (MEMBERS_REMOVED, b"%x" % 5, b"removed"),
        (META, SCHEDULED_COMPACT_REVISION, row_key(3 << 32)),
    ],
)
def test_an_entry_that_differs_is_noticed(
    stage: Stage, bucket: bytes, name: bytes, value: bytes
) -> None:
    member = member_of(stage)
    member.state.backend.put(bucket, name, value)
    # With its memory as a start would read it, so that only the comparison can notice.
    member.state.alarms.restore()
    member.state.cluster.restore()
    if bucket == LEASE:
        member.state.lessor._leases[78] = Lease(78, 5)
    with pytest.raises(Violation, match=GUARANTEE):
        check(stage)


def test_storage_versions_that_differ_are_noticed(stage: Stage) -> None:
    member = member_of(stage)
    member.state.cluster.set_storage_version(Version(3, 6, 0))
    check(stage)  # the others have not found time for it yet
    other = stage.machine(1).member
    assert other is not None
    other.state.cluster.set_storage_version(Version(3, 7, 0))
    with pytest.raises(Violation, match=GUARANTEE):
        check(stage)


@pytest.mark.parametrize(("bucket", "name"), [(LEASE, row_key(LEASED)), (META, CONF_STATE)])
def test_an_entry_that_is_missing_is_noticed(stage: Stage, bucket: bytes, name: bytes) -> None:
    member_of(stage).state.backend.delete(bucket, name)
    with pytest.raises(Violation, match=GUARANTEE):
        check(stage)


def test_a_member_that_is_missing_is_noticed(stage: Stage) -> None:
    member = member_of(stage)
    name, _ = member.state.backend.items(MEMBERS)[0]
    member.state.backend.delete(MEMBERS, name)
    with pytest.raises(Violation, match=GUARANTEE):
        check(stage)


def test_another_configuration_is_noticed(stage: Stage) -> None:
    member = member_of(stage)
    voters = member.conf_state.voters
    member.replica.conf_state = member.conf_state._replace(voters=voters[1:], learners=voters[:1])
    member.state.backend.set_conf_state(encode_conf_state(member.conf_state))
    with pytest.raises(Violation, match=GUARANTEE):
        check(stage)


def _lose_a_key(member: Member) -> None:
    member.state.lessor.detach(LEASED, b"leased")


def _shorten_a_lease(member: Member) -> None:
    member.state.lessor._leases[LEASED].ttl = 5


def _raise_an_alarm(member: Member) -> None:
    member.state.alarms._raised.add(MemberAlarm(1, 5))


def _invent_a_removal(member: Member) -> None:
    member.state.cluster._removed.add(5)


def _mistake_the_version(member: Member) -> None:
    member.state.cluster._version = Version(3, 0, 0)


def _apply_less(member: Member) -> None:
    member.state.backend.applied_term -= 1


@pytest.mark.parametrize(
    "damage",
    [
        _lose_a_key,
        _shorten_a_lease,
        _raise_an_alarm,
        _invent_a_removal,
        _mistake_the_version,
        _apply_less,
    ],
)
def test_memory_that_differs_from_the_rows_is_noticed(
    stage: Stage, damage: Callable[[Member], None]
) -> None:
    damage(member_of(stage))
    with pytest.raises(Violation, match=GUARANTEE):
        check(stage)


def test_rows_that_a_finished_compaction_left_are_noticed(stage: Stage) -> None:
    revision = stage.put(b"k", b"3")
    stage.ask(CompactionRequest(revision=revision))
    stage.agree()
    check(stage)
    # Told to be done, which it is not: nothing happens for the next thousand seconds.
    compaction = member_of(stage).state.store.compaction
    assert compaction.is_pending
    compaction._queue.clear()
    with pytest.raises(Violation, match=GUARANTEE):
        check(stage)
