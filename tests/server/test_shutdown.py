"""The clean end of a server, phase by phase and in virtual time."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api import errors
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.v3lockpb import LockRequest
from kvorum.member.errors import StartRefused
from kvorum.member.jobs import ExecutorKind
from kvorum.member.procedures import Exclusive
from kvorum.network.edge.interface import EdgeEventKind, Request
from kvorum.server.rpc.table import NUMBERS
from kvorum.server.server import REMOVED_SECONDS, STRANGERS_SECONDS, Server
from kvorum.server.shutdown import (
    CLOSE_CHECK_SECONDS,
    CLOSE_SECONDS_MAX,
    DRAIN_SECONDS_MAX,
    TRANSITIONS,
    PhaseEnd,
    ServerPhase,
    next_phase,
)
from kvorum.state.membership.bootstrap import ClusterSettingsError
from tests.member.harness import HEARTBEAT_SECONDS, Machine
from tests.server.fronts import Fronts
from tests.server.rpc.harness import Harness
from tests.server.seams import run_job

PUT = pb.PutRequest(key=b"k", value=b"v")
STALE = pb.RangeRequest(key=b"k", serializable=True)
ELECTION_SECONDS = 1.0
REQUEST_SECONDS_MAX = 7.0


def started(size: int, **options: Any) -> tuple[Fronts, Machine]:
    """Return published servers, and the one that leads."""
    cluster = Fronts(size, **options)
    leader = cluster.leader()
    cluster.wait(lambda: all(machine.server.is_published for machine in cluster))
    config = leader.running.config
    if not options:
        assert config.election_seconds == ELECTION_SECONDS
        assert config.request_seconds_max == REQUEST_SECONDS_MAX
    return cluster, leader


def phase(server: Server) -> ServerPhase:
    return server.phase


def drain(machine: Machine) -> None:
    machine.server.drain(machine.now)


def warned(machine: Machine, message: str) -> list[dict[str, object]]:
    return [fields for line, fields in machine.logger.lines if line == message]


# Phases.


@pytest.mark.parametrize("end", PhaseEnd)
@pytest.mark.parametrize("before", ServerPhase)
def test_only_the_transitions_of_the_table_happen(before: ServerPhase, end: PhaseEnd) -> None:
    if end in TRANSITIONS[before]:
        assert next_phase(before, end) is TRANSITIONS[before][end]
    else:
        with pytest.raises(AssertionError, match=f"the phase {before.name} does not end"):
            next_phase(before, end)


def test_no_phase_comes_twice() -> None:
    phases = list(ServerPhase)
    for before, following in TRANSITIONS.items():
        assert all(phases.index(after) > phases.index(before) for after in following.values())


# Calls in flight.


def test_calls_in_flight_are_finished_before_streams_end() -> None:
    cluster, machine = started(1)
    watch = cluster.open(machine, "Watch/Watch")
    machine.held.add(ExecutorKind.LOG)
    put = cluster.begin(machine, "KV/Put", PUT)
    drain(machine)
    assert machine.edge.is_draining
    cluster.pass_time(0.5)
    assert phase(machine.server) is ServerPhase.DRAINING
    assert put not in machine.replies and cluster.finished(machine, watch) is None
    # A client that does not know of the end yet is served.
    assert cluster.begin(machine, "KV/Range", STALE) in machine.replies
    machine.held.clear()
    cluster.settle()
    assert isinstance(machine.replies[put], bytes)
    assert cluster.finished(machine, watch) == errors.STOPPED
    assert machine.edge.ended.index(put) < machine.edge.ended.index(watch)
    assert machine.member is None and phase(machine.server) is ServerPhase.ENDED
    assert machine.files.open_descriptors() == 0
    assert not machine.server.jobs_under_way


def test_nobody_is_waited_for_without_a_reason() -> None:
    cluster, machine = started(1)
    began = cluster.now
    drain(machine)
    cluster.settle()
    assert (phase(machine.server), cluster.now) == (ServerPhase.ENDED, began)


@pytest.mark.parametrize(("election_ticks", "seconds"), [(5, 1.0), (30, 3.0)])
def test_a_client_that_does_not_confirm_is_waited_for(election_ticks: int, seconds: float) -> None:
    cluster, machine = started(1, election_ticks=election_ticks)
    watch = cluster.open(machine, "Watch/Watch")
    machine.edge.confirms = False
    drain(machine)
    cluster.pass_time(seconds - HEARTBEAT_SECONDS)
    assert phase(machine.server) is ServerPhase.DRAINING
    assert cluster.finished(machine, watch) is None
    assert isinstance(cluster.success(machine, cluster.begin(machine, "KV/Put", PUT)), bytes)
    cluster.pass_time(2 * HEARTBEAT_SECONDS)
    assert phase(machine.server) is ServerPhase.ENDED
    assert cluster.finished(machine, watch) == errors.STOPPED
    assert not warned(machine, "calls in flight are cut off")


def test_a_second_drain_changes_nothing() -> None:
    cluster, machine = started(1)
    machine.edge.confirms = False
    drain(machine)
    cluster.pass_time(DRAIN_SECONDS_MAX - HEARTBEAT_SECONDS)
    drain(machine)
    cluster.pass_time(2 * HEARTBEAT_SECONDS)
    assert phase(machine.server) is ServerPhase.ENDED
    drain(machine)
    assert phase(machine.server) is ServerPhase.ENDED


def waiting_forever(cluster: Fronts, machine: Machine) -> int:
    """Wait for a lock that is never released."""
    for lease in (7, 8):
        cluster.call(machine, "Lease/LeaseGrant", pb.LeaseGrantRequest(ID=lease, TTL=1000))
    cluster.call(machine, "Lock/Lock", LockRequest(name=b"l", lease=7))
    return cluster.begin(machine, "Lock/Lock", LockRequest(name=b"l", lease=8))


def test_a_call_that_never_ends_is_cut_off() -> None:
    cluster, machine = started(1)
    call = waiting_forever(cluster, machine)
    drain(machine)
    cluster.pass_time(REQUEST_SECONDS_MAX - HEARTBEAT_SECONDS)
    assert phase(machine.server) is ServerPhase.DRAINING
    cluster.pass_time(2 * HEARTBEAT_SECONDS)
    assert phase(machine.server) is ServerPhase.ENDED
    assert call not in machine.replies
    assert warned(machine, "calls in flight are cut off") == [{"calls": 1}]


def test_a_client_that_gives_up_is_not_waited_for() -> None:
    cluster, machine = started(1)
    call = waiting_forever(cluster, machine)
    drain(machine)
    cluster.pass_time(0.5)
    assert phase(machine.server) is ServerPhase.DRAINING
    machine.events.append((EdgeEventKind.ENDED, call, None))
    cluster.settle()
    assert phase(machine.server) is ServerPhase.ENDED
    assert not warned(machine, "calls in flight are cut off")


def asked(count: int) -> list[Request]:
    """Return calls each of which reads the clock."""
    number = NUMBERS["/etcdserverpb.Maintenance/Status"]
    return [(call, number, b"", None) for call in range(1000, 1000 + count)]


def test_what_a_turn_had_no_time_for_is_served_first() -> None:
    cluster, machine = started(1)
    cluster.slices = 1
    opened = (0, "GET", "/", [("host", "a")])
    machine.requests += asked(20)
    machine.events += [(EdgeEventKind.HTTP_OPENED, call, opened) for call in range(2000, 2020)]
    machine.turn()
    drain(machine)
    while machine.server.calls.unary:
        machine.turn()
    assert machine.server.waiting and phase(machine.server) is ServerPhase.DRAINING
    cluster.settle()
    assert set(range(1000, 1020)) <= set(machine.replies)
    assert set(machine.edge.responses) == set(range(2000, 2020))
    assert phase(machine.server) is ServerPhase.ENDED


def test_what_a_turn_had_no_time_for_is_cut_off_with_the_rest() -> None:
    cluster, machine = started(1)
    waiting_forever(cluster, machine)
    drain(machine)
    cluster.pass_time(REQUEST_SECONDS_MAX - HEARTBEAT_SECONDS)
    cluster.slices = 1
    machine.requests += asked(20)
    cluster.now += 2 * HEARTBEAT_SECONDS
    machine.turn()
    assert phase(machine.server) is ServerPhase.FLUSHING
    assert not machine.server.waiting
    served = len(machine.replies)
    cluster.settle()
    assert phase(machine.server) is ServerPhase.ENDED
    assert len(machine.replies) == served


# The leadership.


def test_the_leadership_is_handed_over() -> None:
    cluster, leader = started(3)
    term, began = leader.running.term, cluster.now
    drain(leader)
    cluster.wait(lambda: leader.member is None)
    new = cluster.leader()
    assert new is not leader
    assert new.running.term == term + 1
    # No election timeout was waited for.
    assert cluster.now - began < ELECTION_SECONDS
    assert not isinstance(cluster.call(new, "KV/Put", PUT), errors.Status)


def test_a_leader_leads_until_its_calls_are_answered() -> None:
    """If another member led, they would be refused, or never answered."""
    cluster, leader = started(3)
    cluster.isolate(leader)
    put = cluster.begin(leader, "KV/Put", PUT)
    drain(leader)
    cluster.pass_time(0.5)
    assert put not in leader.replies
    assert leader.running.is_leader and not leader.running.procedures.is_running(Exclusive.TRANSFER)
    cluster.heal()
    assert isinstance(cluster.success(leader, put), bytes)
    cluster.wait(lambda: leader.member is None)


def test_a_follower_has_nothing_to_hand_over() -> None:
    cluster, leader = started(3)
    follower, term, began = cluster.follower(), leader.running.term, cluster.now
    drain(follower)
    cluster.settle()
    assert (phase(follower.server), cluster.now) == (ServerPhase.ENDED, began)
    assert leader.running.is_leader and leader.running.term == term


def test_a_leader_that_nobody_takes_over_from_ends_all_the_same() -> None:
    cluster, leader = started(3)
    for machine in cluster:
        machine.is_paused = machine is not leader
    drain(leader)
    cluster.pass_time(REQUEST_SECONDS_MAX + 2 * ELECTION_SECONDS)
    assert phase(leader.server) is ServerPhase.ENDED


# After the streams have ended.


def flushing(cluster: Fronts, machine: Machine) -> None:
    """Let a server drain, and hold it while it flushes."""
    cluster.call(machine, "KV/Put", PUT)
    machine.held.add(ExecutorKind.FLUSHER)
    drain(machine)
    cluster.settle()
    assert phase(machine.server) is ServerPhase.FLUSHING


def test_nothing_is_answered_after_the_drain() -> None:
    cluster, machine = started(1)
    flushing(cluster, machine)
    ended = list(machine.edge.ended)
    requests: list[tuple[str, bytes]] = [
        ("/etcdserverpb.KV/Range", STALE.SerializeToString()),
        ("/etcdserverpb.KV/Put", PUT.SerializeToString()),
        ("/etcdserverpb.KV/Put", b""),
        ("/etcdserverpb.Maintenance/Status", b""),
        ("/etcdserverpb.KV/Range", b"\xff"),
    ]
    for call, (path, payload) in enumerate(requests, 1000):
        machine.requests.append((call, NUMBERS[path], payload, None))
    watch = NUMBERS["/etcdserverpb.Watch/Watch"]
    machine.events.append((EdgeEventKind.OPENED, 2000, (watch, None)))
    machine.events.append((EdgeEventKind.MESSAGE, 2000, b"\xff"))
    machine.events.append((EdgeEventKind.HTTP_OPENED, 2001, (0, "GET", "/", [("host", "a")])))
    cluster.pass_time(HEARTBEAT_SECONDS)
    assert phase(machine.server) is ServerPhase.FLUSHING
    assert not machine.server.waiting
    machine.held.clear()
    cluster.settle()
    assert phase(machine.server) is ServerPhase.ENDED
    assert machine.edge.ended == ended
    assert machine.edge.sends == []


def test_a_call_that_was_cut_off_is_not_answered_later() -> None:
    cluster, machine = started(1)
    machine.held.add(ExecutorKind.LOG)
    machine.edge.confirms = False
    drain(machine)
    # So late that its own deadline is after the end of the drain.
    cluster.pass_time(0.5)
    put = cluster.begin(machine, "KV/Put", PUT)
    cluster.pass_time(REQUEST_SECONDS_MAX)
    assert phase(machine.server) is ServerPhase.FLUSHING
    machine.held.clear()
    machine.edge.closes = False
    cluster.settle()
    assert machine.running.state.store.get(b"k") is not None
    cluster.pass_time(DRAIN_SECONDS_MAX)
    assert phase(machine.server) is ServerPhase.ENDED
    assert put not in machine.replies


def test_what_is_applied_is_flushed_before_the_files_are_closed() -> None:
    cluster, machine = started(1)
    applied = machine.running.state.applied
    flushing(cluster, machine)
    cluster.pass_time(5.0)
    assert phase(machine.server) is ServerPhase.FLUSHING
    machine.held.clear()
    cluster.settle()
    machine.kill()
    assert machine.start().state.applied > applied


def test_last_answers_are_waited_for_a_moment() -> None:
    cluster, machine = started(1)
    machine.edge.closes = False
    drain(machine)
    cluster.pass_time(DRAIN_SECONDS_MAX - HEARTBEAT_SECONDS)
    assert phase(machine.server) is ServerPhase.FLUSHING
    cluster.pass_time(2 * HEARTBEAT_SECONDS)
    assert phase(machine.server) is ServerPhase.ENDED


def test_a_disk_that_does_not_answer_is_not_waited_for_forever() -> None:
    cluster, machine = started(1)
    flushing(cluster, machine)
    machine.held.add(ExecutorKind.LOG)
    cluster.pass_time(CLOSE_SECONDS_MAX + HEARTBEAT_SECONDS)
    assert phase(machine.server) is ServerPhase.CLOSING
    assert machine.server.room == (0, 0)
    assert machine.server.wake_at(machine.now) <= machine.now + CLOSE_CHECK_SECONDS
    cluster.pass_time(CLOSE_SECONDS_MAX)
    assert phase(machine.server) is ServerPhase.ENDED


def test_the_files_are_closed_by_jobs_that_end_where_they_are_taken() -> None:
    """A job that ends may start the next one, and the member takes no turn in between."""
    ticks: list[bool] = []
    harness = Harness(on_tick=ticks.append)
    harness.ask("KV/Put", PUT)
    server, files, environments = harness.server, harness._files, harness._environments
    server.drain(harness.now)
    while phase(server) is not ServerPhase.CLOSING:
        server.turn(harness.now, (), [], (), ())
        if phase(server) is not ServerPhase.CLOSING:
            server.resume_turn(
                harness.now, [run_job(job, files, environments) for job in server.take_jobs()]
            )
    ticks.clear()
    harness.now += 1.0
    server.turn(harness.now, (), [], (), ())
    assert phase(server) is ServerPhase.CLOSING and not ticks
    rounds = 0
    while jobs := server.take_jobs():
        rounds += 1
        server.resume_turn(harness.now, [run_job(job, files, environments) for job in jobs])
        assert phase(server) is ServerPhase.CLOSING
    assert rounds >= 1
    assert harness.member.is_closed and not server.jobs_under_way
    server.turn(harness.now, (), [], (), ())
    assert phase(server) is ServerPhase.ENDED


# Members that were removed.


def removed(cluster: Fronts, leader: Machine) -> Machine:
    follower = cluster.follower()
    for machine in cluster:
        leader.running.note_connected(machine.running.id, cluster.now - 10.0)
    gone = pb.MemberRemoveRequest(ID=follower.running.id)
    assert len(cluster.call(leader, "Cluster/MemberRemove", gone).members) == 2
    return follower


def test_a_member_that_was_removed_leaves_after_a_while() -> None:
    cluster, leader = started(3)
    machine = removed(cluster, leader)
    cluster.wait(lambda: machine.running.was_removed)
    began = cluster.now
    cluster.pass_time(REMOVED_SECONDS - HEARTBEAT_SECONDS)
    assert phase(machine.server) is ServerPhase.SERVING
    cluster.pass_time(3 * HEARTBEAT_SECONDS)
    assert phase(machine.server) is ServerPhase.ENDED
    assert cluster.now - began < REMOVED_SECONDS + ELECTION_SECONDS
    assert machine.files.open_descriptors() == 0
    assert not isinstance(cluster.call(leader, "KV/Put", PUT), errors.Status)


def test_a_member_that_was_removed_does_not_start_again() -> None:
    cluster, leader = started(3)
    machine = removed(cluster, leader)
    cluster.wait(lambda: machine.member is None)
    machine.start()
    # As long as one that goes on: another member may need its vote to learn of the removal.
    cluster.pass_time(REMOVED_SECONDS - HEARTBEAT_SECONDS)
    with pytest.raises(StartRefused, match="permanently removed"):
        cluster.pass_time(3 * HEARTBEAT_SECONDS)


# Members whose peers are all of another cluster.


def alone(cluster: Fronts) -> Machine:
    """Return a member that nobody answers."""
    names = list(cluster.machines)
    cluster.cut |= {(one, other) for one in names for other in names}
    return cluster[0]


def test_a_member_that_never_joined_ends_among_strangers() -> None:
    cluster = Fronts(3)
    machine = alone(cluster)
    cluster.pass_time(1.0)
    assert len(machine.running.state.cluster.members) == machine.running.state.applied == 3
    machine.peers.strangers = 0xBAD
    cluster.pass_time(STRANGERS_SECONDS - 2 * HEARTBEAT_SECONDS)
    # One of them was away for a moment, or is of this cluster after all.
    machine.peers.strangers = 0
    cluster.pass_time(2 * HEARTBEAT_SECONDS)
    machine.peers.strangers = 0xBAD
    cluster.pass_time(STRANGERS_SECONDS - 2 * HEARTBEAT_SECONDS)
    with pytest.raises(ClusterSettingsError, match=r"to cluster bad, .*--initial-cluster-token"):
        cluster.pass_time(4 * HEARTBEAT_SECONDS)


def test_a_member_with_data_goes_on_among_strangers() -> None:
    cluster, _ = started(3)
    machine = alone(cluster)
    machine.kill()
    machine.start()
    machine.peers.strangers = 0xBAD
    cluster.pass_time(3 * STRANGERS_SECONDS)
    assert phase(machine.server) is ServerPhase.SERVING and not machine.server.is_published


def test_a_member_that_was_restored_goes_on_among_strangers() -> None:
    """It has keys, though it has applied no more than the first entries of its cluster."""
    cluster = Fronts(3)
    machine = alone(cluster)
    cluster.pass_time(1.0)
    transaction = machine.running.state.store.begin()
    transaction.put(b"restored", b"value", 0)
    transaction.commit()
    machine.peers.strangers = 0xBAD
    cluster.pass_time(3 * STRANGERS_SECONDS)
    assert phase(machine.server) is ServerPhase.SERVING


# With anything happening meanwhile.


@given(
    size=st.sampled_from([1, 3]),
    calls=st.integers(0, 5),
    held=st.floats(0.0, 3.0),
    late=st.integers(0, 3),
    confirms=st.booleans(),
    closes=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_a_clean_end_loses_nothing_and_takes_no_longer_than_it_may(
    size: int, calls: int, held: float, late: int, confirms: bool, closes: bool
) -> None:
    cluster, leader = started(size)
    leader.edge.confirms, leader.edge.closes = confirms, closes
    watch = cluster.open(leader, "Watch/Watch")
    leader.held.add(ExecutorKind.LOG)
    puts = [
        cluster.begin(leader, "KV/Put", pb.PutRequest(key=b"%d" % number))
        for number in range(calls)
    ]
    began = cluster.now
    drain(leader)
    for _ in range(late):
        cluster.pass_time(held / (late + 1))
        puts.append(cluster.begin(leader, "KV/Put", PUT))
    cluster.pass_time(held / (late + 1))
    leader.held.clear()
    cluster.wait(lambda: leader.member is None)
    assert leader.edge.ended[-1] == watch
    # Calls from before the drain are answered; later ones may not be.
    assert all(call in leader.replies for call in puts[:calls])
    assert cluster.now - began < held + REQUEST_SECONDS_MAX + 3 * DRAIN_SECONDS_MAX
    assert leader.files.open_descriptors() == 0
    leader.start()
    survivor = cluster.leader()
    for number, call in enumerate(puts[:calls]):
        if isinstance(leader.replies[call], bytes):
            assert survivor.running.state.store.get(b"%d" % number) is not None
