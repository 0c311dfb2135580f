"""A new cluster of one, forced on a member whose cluster has lost its quorum."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvorum.api.pb.etcdserverpb import RangeResponse
from kvorum.member.errors import StartRefused
from kvorum.member.forced import entries_forcing_membership
from kvorum.member.waits import ProposeChange, Steps
from kvorum.raft.changes import ChangeType, ConfChange
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.messages import ConfState, HardState
from kvorum.raft.wire import decode_conf_change, encode_conf_change
from kvorum.state.membership import Membership as Membership
from kvorum.state.membership.documents import MemberDocument as Listed
from kvorum.state.membership.documents import encode_member, encode_promotion
from kvorum.storage.files.memory import DiskCall
from kvorum.storage.wal import SnapshotRecord, open_log
from tests.database import Database
from tests.member.harness import SEGMENT_BYTES, Cluster, Machine, PowerCutError


def change(machine: Machine, made: ConfChange) -> int:
    def steps() -> Steps:
        refusal = yield ProposeChange(made)
        return b"done" if refusal is None else refusal

    return machine.start_steps(steps())


def survivor_of(cluster: Cluster, name: str) -> Machine:
    """Kill all members and drop all but one."""
    for machine in list(cluster):
        machine.kill()
    cluster.messages.clear()
    machine = cluster.machines[name]
    cluster.machines = {name: machine}
    return machine


def force(machine: Machine) -> None:
    machine.config = replace(machine.config, force_new_cluster=True)
    machine.start()


def keys(cluster: Cluster, machine: Machine) -> list[bytes]:
    found = cluster.success(machine, machine.range(b"\0", b"\0"))
    return [kv.key for kv in RangeResponse.FromString(found).kvs]


def check_is_alone(cluster: Cluster, machine: Machine) -> None:
    member = machine.running
    cluster.wait(lambda: member.is_leader and member.is_published)
    assert member.conf_state.voters == (member.id,)
    assert not member.conf_state.learners
    assert [each.id for each in member.state.cluster.members] == [member.id]


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("options", [{}, {"snapshot_entries": 10, "catch_up_entries": 5}])
def test_a_survivor_goes_on_alone(which: int, options: dict[str, int]) -> None:
    cluster = Cluster(3, segment_bytes=4096, **options)
    leader = cluster.leader()
    ids = {each.name: each.running.id for each in cluster}
    calls = [leader.put(b"%03d" % number) for number in range(100)]
    for call in calls:
        cluster.success(leader, call)
    cluster.pass_time(0.2)
    survivor = survivor_of(cluster, f"m{which}")
    force(survivor)
    cluster.wait(lambda: survivor.running.is_leader)
    check_is_alone(cluster, survivor)
    member = survivor.running
    assert member.id == ids[survivor.name]
    assert keys(cluster, survivor) == [b"%03d" % number for number in range(100)]
    assert member.state.cluster.removed == sorted(set(ids.values()) - {member.id})
    cluster.success(survivor, survivor.put(b"alone"))
    # From now on it starts without force.
    survivor.kill()
    survivor.config = replace(survivor.config, force_new_cluster=False)
    survivor.start()
    cluster.wait(lambda: survivor.running.is_leader)
    assert b"alone" in keys(cluster, survivor)
    # Forcing it once more changes nothing.
    survivor.kill()
    force(survivor)
    cluster.wait(lambda: survivor.running.is_leader)
    assert b"alone" in keys(cluster, survivor)


def test_what_was_acknowledged_a_moment_ago_is_kept() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.pass_time(1.0)
    for each in cluster:
        # Nothing is flushed, and no later batch says what is committed.
        each.held.update(place for place in each.jobs if place.name == "FLUSHER")
    cluster.success(leader, leader.put(b"key"))
    survivor = survivor_of(cluster, leader.name)
    survivor.held.clear()
    force(survivor)
    cluster.wait(lambda: survivor.running.is_leader)
    assert keys(cluster, survivor) == [b"key"]


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_on_the_way_harms_nothing(seed: int) -> None:
    random = Random(seed)
    cluster = Cluster(3, segment_bytes=4096, snapshot_entries=10, catch_up_entries=5)
    leader = cluster.leader()
    for number in range(60):
        cluster.success(leader, leader.put(b"%02d" % number))
    survivor = survivor_of(cluster, leader.name)
    left = 0

    def before(_call: DiskCall) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise PowerCutError

    for _ in range(4):
        left = random.randrange(150)
        survivor.files.before = before
        try:
            force(survivor)
            cluster.wait(lambda: survivor.running.is_published)
            break
        except PowerCutError:
            survivor.lose_power(lambda: random.random() < 0.5)
    survivor.files.before = None
    if survivor.member is None:
        force(survivor)
    check_is_alone(cluster, survivor)
    assert keys(cluster, survivor) == [b"%02d" % number for number in range(60)]


def test_a_tear_that_kept_entries_of_a_newer_term() -> None:
    """The state that came with them is gone; the forced entries follow them all the same."""
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.success(leader, leader.put(b"key"))
    survivor = survivor_of(cluster, leader.name)
    wal = f"{survivor.config.directory}/wal"
    log, content = open_log(survivor.files, wal, SnapshotRecord(), SEGMENT_BYTES)
    term, last = content.state.term + 2, content.entries[-1].index
    job = log.save(HardState(term, 0, content.state.commit), [Entry(0, term, last + 1, b"")])
    assert job is not None
    job.run(survivor.files)
    survivor.files.truncate(job.descriptor, job.offset + len(job.data) - 8)
    survivor.files.kill()
    for _ in range(2):
        force(survivor)
        check_is_alone(cluster, survivor)
        assert keys(cluster, survivor) == [b"key"]
        assert survivor.running.term > term
        survivor.kill()


def test_a_learner_becomes_the_only_voter() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    listed = Listed(99, ("http://m9:2380",), is_learner=True)
    added = ConfChange(ChangeType.ADD_LEARNER_NODE, 99, encode_member(listed))
    cluster.success(leader, change(leader, added))
    cluster_id = leader.running.state.cluster.cluster_id
    learner = Machine(cluster, "m9", cluster.config("m9", joins=(99, cluster_id)))
    cluster.machines["m9"] = learner
    learner.start()
    cluster.success(leader, leader.put(b"key"))
    cluster.wait(lambda: learner.running.state.applied == leader.running.state.applied)
    survivor = survivor_of(cluster, "m9")
    force(survivor)
    check_is_alone(cluster, survivor)
    assert not survivor.running.is_learner
    assert keys(cluster, survivor) == [b"key"]


def test_a_removed_member_is_refused() -> None:
    cluster = Cluster(3)
    leader, follower = cluster.leader(), cluster.follower()
    removal = ConfChange(ChangeType.REMOVE_NODE, follower.running.id)
    cluster.success(leader, change(leader, removal))
    cluster.wait(lambda: follower.running.was_removed)
    survivor = survivor_of(cluster, follower.name)
    with pytest.raises(StartRefused, match="removed"):
        force(survivor)


def addition(member_id: int, *, is_learner: bool) -> ConfChange:
    kind = ChangeType.ADD_LEARNER_NODE if is_learner else ChangeType.ADD_NODE
    listed = Listed(member_id, (f"http://m{member_id}:2380",), is_learner)
    return ConfChange(kind, member_id, encode_member(listed))


@example(voters=1, has_learner=True, asked=[("remove", 1)], chosen=2)
@example(voters=1, has_learner=False, asked=[("promote", 2)], chosen=2)
@given(
    voters=st.integers(1, 3),
    has_learner=st.booleans(),
    asked=st.lists(
        st.tuples(st.sampled_from(["add", "learn", "promote", "remove"]), st.integers(1, 4)),
        max_size=8,
    ),
    chosen=st.integers(1, 4),
)
def test_changes_that_are_refused_leave_nobody_else(
    voters: int, has_learner: bool, asked: list[tuple[str, int]], chosen: int
) -> None:
    """Whatever the unapplied entries ask for, the membership that applies them ends as it must."""
    cluster = Membership(Database().backend, 5, chosen, learners_max=2)
    for number in range(1, voters + has_learner + 1):
        assert cluster.apply(addition(number, is_learner=number > voters)) is None
    ids = {
        is_learner: [each.id for each in cluster.members if each.is_learner == is_learner]
        for is_learner in (False, True)
    }
    before = ConfState(voters=tuple(ids[False]), learners=tuple(ids[True]))
    changes: list[ConfChange] = []
    for what, number in asked:
        if what in ("add", "learn"):
            # A new member has a new id.
            changes.append(addition(10 + len(changes), is_learner=what == "learn"))
        elif what == "promote":
            changes.append(ConfChange(ChangeType.ADD_NODE, number, encode_promotion(number)))
        else:
            changes.append(ConfChange(ChangeType.REMOVE_NODE, number))
    unapplied = [
        Entry(EntryType.CONF_CHANGE, 1, index, encode_conf_change(each)[1])
        for index, each in enumerate(changes, 1)
    ]
    for made in changes:
        cluster.apply(made)
    try:
        forced = entries_forcing_membership(chosen, before, unapplied, len(unapplied), 1)
    except StartRefused:
        assert cluster.member(chosen) is None
        return
    for entry in forced:
        forcing = decode_conf_change(entry)
        assert isinstance(forcing, ConfChange)
        cluster.apply(forcing)
    assert [each.id for each in cluster.voters] == [chosen]
    assert not cluster.learners


def test_a_forced_cluster_grows_again() -> None:
    cluster = Cluster(3, snapshot_entries=10, catch_up_entries=5)
    leader = cluster.leader()
    for number in range(50):
        cluster.success(leader, leader.put(b"%02d" % number))
    survivor = survivor_of(cluster, leader.name)
    force(survivor)
    check_is_alone(cluster, survivor)
    listed = Listed(99, ("http://m9:2380",))
    cluster.success(
        survivor, change(survivor, ConfChange(ChangeType.ADD_NODE, 99, encode_member(listed)))
    )
    cluster_id = survivor.running.state.cluster.cluster_id
    second = Machine(cluster, "m9", cluster.config("m9", joins=(99, cluster_id)))
    cluster.machines["m9"] = second
    second.start()
    cluster.wait(lambda: second.running.is_published)
    cluster.success(second, second.put(b"together"))
    assert len(keys(cluster, second)) == 51
