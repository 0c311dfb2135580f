"""Snapshots: when a peer gets one, what it does with it, and what comes of it."""

import pytest

from kvorum.raft import membership
from kvorum.raft.changes import ChangeType, ConfChange
from kvorum.raft.core import Raft
from kvorum.raft.errors import FatalError, SnapshotTemporarilyUnavailableError
from kvorum.raft.messages import ConfState, Message, MessageType, Snapshot
from kvorum.raft.progress import ProgressState
from tests.raft.cores import (
    FOLLOWER,
    Net,
    StoredLog,
    beat,
    entries,
    hup,
    lead,
    lines_of,
    new_core,
    next_entries,
    prop,
    propose,
    read,
    storage_of,
    tick_through,
)

APP_RESP, SNAP = MessageType.APP_RESP, MessageType.SNAP
SNAP_STATUS = MessageType.SNAP_STATUS


def snapshot(voters: tuple[int, ...], **members: tuple[int, ...]) -> Snapshot:
    return Snapshot(11, 11, ConfState(voters, **members))  # type: ignore[arg-type]


def restore(core: Raft, given: Snapshot) -> bool:
    return membership.restore_snapshot(core, given)


def test_restore() -> None:
    core = new_core(1, (1, 2))
    given = snapshot((1, 2, 3))
    assert restore(core, given)
    assert (core.log.last_index(), core.log.term(11)) == (11, 11)
    assert core.tracker.config.voters() == [1, 2, 3]
    assert not restore(core, given)
    # A node that has not stored its snapshot yet must not stand.
    tick_through(core)
    assert core.role == FOLLOWER


def test_a_change_handed_out_before_a_snapshot_changes_nothing() -> None:
    core = new_core(1, (1, 2))
    given = snapshot((1, 2, 3))
    assert restore(core, given)
    late = ConfChange(ChangeType.ADD_LEARNER_NODE, 3)
    assert membership.apply_conf_change(core, late) == given.conf_state
    assert core.tracker.config.conf_state() == given.conf_state
    core.applied_snapshot(given)
    later = ConfChange(ChangeType.REMOVE_NODE, 3)
    assert membership.apply_conf_change(core, later) == ConfState((1, 2))


def test_restore_with_learners() -> None:
    core = new_core(3, (1, 2), learners=(3,))
    given = snapshot((1, 2), learners=(3,))
    assert restore(core, given)
    assert core.tracker.config.conf_state() == given.conf_state
    assert [peer.is_learner for peer in core.tracker.progress.values()] == [False, False, True]
    assert core.is_learner
    assert not restore(core, given)


def test_restore_of_a_joint_configuration() -> None:
    core = new_core(1, (1, 2))
    given = snapshot((2, 3, 4), voters_outgoing=(1, 2, 3))
    assert restore(core, given)
    assert core.tracker.config.voters() == [1, 2, 3, 4]
    assert not restore(core, given)
    tick_through(core)
    assert core.role == FOLLOWER


@pytest.mark.parametrize("was_learner", [False, True])
def test_a_snapshot_may_change_who_learns(was_learner: bool) -> None:
    core = new_core(3, (1, 2), learners=(3,)) if was_learner else new_core(3, (1, 2, 3))
    assert core.is_learner is was_learner
    given = snapshot((1, 2, 3)) if was_learner else snapshot((1, 2), learners=(3,))
    assert restore(core, given)
    assert core.is_learner is not was_learner


def test_a_learner_receives_a_snapshot() -> None:
    given = snapshot((1,), learners=(2,))
    storage = StoredLog(snapshot=given)
    leader = new_core(1, (1,), learners=(2,), storage=storage, applied=11)
    learner = new_core(2, (1,), learners=(2,))
    net = Net([leader, learner])
    tick_through(leader)
    net.send(*net.filter(read(leader)))
    net.send(beat(1))
    net.send(beat(1))
    assert learner.log.committed == leader.log.committed


def test_a_snapshot_of_what_is_there_only_commits() -> None:
    core = new_core(1, (1, 2), storage=StoredLog())
    core.log.append(entries(1, 1, 1, 1))
    core.log.commit_to(1)
    members = ConfState((1, 2))
    assert not restore(core, Snapshot(1, 1, members))
    assert core.log.committed == 1
    assert not restore(core, Snapshot(2, 1, members))
    assert core.log.committed == 2
    assert lines_of(core).lines[-1] == (
        "INFO 1 [commit: 1, lastindex: 3, lastterm: 1] fast-forwarded commit to snapshot "
        "[index: 2, term: 1]"
    )


def leader_with_snapshot() -> Raft:
    core = new_core(1, (1,), storage=StoredLog(snapshot=snapshot((1, 2))))
    membership.restore_config(core, ConfState((1, 2)))
    lead(core)
    core.tracker.progress[2].recent_active = True
    read(core)
    return core


def reject(core: Raft, index: int) -> None:
    core.step(Message(APP_RESP, to=1, sender=2, index=index, reject=True))


def test_a_peer_that_needs_what_was_compacted_gets_a_snapshot() -> None:
    core = leader_with_snapshot()
    peer = core.tracker.progress[2]
    peer.next = core.log.first_index()
    reject(core, peer.next - 1)
    (sent,) = read(core)
    assert (sent.type, sent.snapshot) == (SNAP, core.log.storage.snapshot())
    assert peer.pending_snapshot == 11


def test_a_peer_that_was_not_heard_of_gets_none() -> None:
    core = leader_with_snapshot()
    peer = core.tracker.progress[2]
    peer.next = core.log.first_index() - 1
    peer.recent_active = False
    propose(core)
    assert read(core) == []
    assert "DEBUG ignore sending snapshot to 2 since it is not recently active" in (
        lines_of(core).lines
    )


def test_a_snapshot_that_is_still_being_made() -> None:
    class Slow(StoredLog):
        ready = False

        def snapshot(self) -> Snapshot:
            if not self.ready:
                raise SnapshotTemporarilyUnavailableError
            return super().snapshot()

    storage = Slow(snapshot=snapshot((1, 2)))
    core = lead(new_core(1, (1, 2), storage=storage))
    read(core)
    peer = core.tracker.progress[2]
    peer.next = core.log.first_index()
    reject(core, peer.next - 1)
    assert (read(core), peer.state) == ([], ProgressState.PROBE)
    assert lines_of(core).lines[-1] == (
        "DEBUG 1 failed to send snapshot to 2 because snapshot is temporarily unavailable"
    )
    storage.ready = True
    core.step(Message(MessageType.HEARTBEAT_RESP, to=1, sender=2))
    assert [message.type for message in read(core)] == [SNAP]


def test_an_empty_snapshot_cannot_be_sent() -> None:
    class Forgetful(StoredLog):
        def snapshot(self) -> Snapshot:
            return Snapshot(0, 0)

    core = lead(new_core(1, (1, 2), storage=Forgetful(snapshot=snapshot((1, 2)))))
    core.tracker.progress[2].next = core.log.first_index()
    with pytest.raises(FatalError, match="need non-empty snapshot"):
        reject(core, core.log.first_index() - 1)


def test_a_snapshot_message_names_its_leader() -> None:
    core = new_core(2, (1, 2))
    core.step(Message(SNAP, to=2, sender=1, term=2, snapshot=snapshot((1, 2))))
    assert core.lead == 1
    core.step(Message(SNAP, to=2, sender=1, term=2))
    assert lines_of(core).lines[-1] == "INFO 2 [commit: 11] ignored snapshot [index: 0, term: 0]"


def test_a_slow_node_is_restored() -> None:
    net = Net.of(3)
    net.send(hup(1))
    net.isolate(3)
    for _ in range(101):
        net.send(prop(1))
    next_entries(net[1])
    storage = storage_of(net[1])
    storage.create_snapshot(net[1].log.applied, ConfState((1, 2, 3)), b"")
    storage.compact(net[1].log.applied)
    net.recover()
    for _ in range(10):
        net.send(beat(1))
        if net[1].tracker.progress[3].recent_active:
            break
    net.send(prop(1))
    net.send(prop(1))
    assert net[3].log.committed == net[1].log.committed


def test_a_pending_snapshot_pauses_replication() -> None:
    core = leader_with_snapshot()
    core.tracker.progress[2].become_snapshot(11)
    propose(core)
    assert read(core) == []


def awaiting_snapshot() -> Raft:
    core = leader_with_snapshot()
    peer = core.tracker.progress[2]
    peer.next = 1
    peer.become_snapshot(11)
    return core


def test_snapshot_failure() -> None:
    core = awaiting_snapshot()
    core.step(Message(SNAP_STATUS, to=1, sender=2, reject=True))
    peer = core.tracker.progress[2]
    assert (peer.pending_snapshot, peer.next, peer.flow_paused) == (0, 1, True)
    assert lines_of(core).lines[-1] == (
        "DEBUG 1 snapshot failed, resumed sending replication messages to 2 "
        "[StateProbe match=0 next=1]"
    )


def test_snapshot_success() -> None:
    core = awaiting_snapshot()
    core.step(Message(SNAP_STATUS, to=1, sender=2))
    peer = core.tracker.progress[2]
    assert (peer.pending_snapshot, peer.next, peer.flow_paused) == (0, 12, True)
    assert lines_of(core).lines[-1] == (
        "DEBUG 1 snapshot succeeded, resumed sending replication messages to 2 "
        "[StateProbe match=0 next=12]"
    )


def test_a_status_without_a_snapshot_is_ignored() -> None:
    core = leader_with_snapshot()
    peer = core.tracker.progress[2]
    peer.become_replicate()
    core.step(Message(SNAP_STATUS, to=1, sender=2, reject=True))
    assert (peer.state, peer.flow_paused) == (ProgressState.REPLICATE, False)


def test_an_acknowledgement_ends_the_wait_for_a_snapshot() -> None:
    core = awaiting_snapshot()
    core.step(Message(APP_RESP, to=1, sender=2, index=11))
    peer = core.tracker.progress[2]
    assert (peer.pending_snapshot, peer.next, len(peer.inflights)) == (0, 13, 1)


def test_a_snapshot_on_a_candidate_makes_it_a_follower() -> None:
    core = new_core(1, (1, 2))
    core.become_candidate()
    assert not restore(core, snapshot((1, 2)))
    assert (core.role, core.term) == (FOLLOWER, 2)
    assert "should never happen" in lines_of(core).lines[-2]
