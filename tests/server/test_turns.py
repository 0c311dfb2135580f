"""A turn of a server: what comes first, what is left for the next, and how much is taken."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api.errors import Status
from kvorum.api.limits import PRODUCTION
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.v3lockpb import LockRequest, UnlockRequest
from kvorum.member.jobs import ExecutorKind
from kvorum.member.member import Member
from kvorum.network.edge.interface import EdgeEventKind, Event, Request
from kvorum.process.settings.checks import make_config
from kvorum.raft.messages import MessageType
from kvorum.raft.wire import decode_message
from kvorum.server.rpc.table import NUMBERS
from kvorum.server.settings import server_settings
from kvorum.state.apply.callers import Caller
from tests.member.harness import HEARTBEAT_SECONDS, Cluster
from tests.server.fronts import Fronts
from tests.server.rpc.harness import Harness
from tests.server.seams import LINK, NoPeers

PUT = NUMBERS["/etcdserverpb.KV/Put"]
RANGE = NUMBERS["/etcdserverpb.KV/Range"]
STATUS = NUMBERS["/etcdserverpb.Maintenance/Status"]
STALE = pb.RangeRequest(key=b"k", serializable=True).SerializeToString()
VALUE = pb.PutRequest(key=b"k", value=b"v").SerializeToString()
LISTENER = 5


class NotedPeers(NoPeers):
    """Notes when it is given something, and when it may send."""

    def __init__(self, member: Member, noted: list[str]) -> None:
        super().__init__(member)
        self.noted = noted

    @property
    def open(self) -> tuple[int]:
        return (LINK,)

    def open_request(self, call: int, method: str, target: str, headers: Any, now: float) -> None:
        del call, method, headers, now
        self.noted.append(target)

    def handle(self, kind: int, call: int, detail: Any, now: float) -> None:
        del kind, call, now
        self.noted.append(detail)

    def deliver(self, now: float) -> None:
        del now
        self.noted.append("peers")


class Noting:
    """A server that notes what it does, in order."""

    def __init__(self) -> None:
        self.noted: list[str] = []
        self.harness = Harness(
            make_peers=lambda member, _edge: NotedPeers(member, self.noted),
            on_tick=lambda _is_idle: self.noted.append("tick"),
        )
        self.server = self.harness.server
        self.server.peer_listeners.add(LISTENER)
        unary = self.harness.services._unary
        serve = unary[STATUS]

        def status(call: int, caller: Caller, payload: bytes) -> Any:
            self.noted.append(f"call {call}")
            return serve(call, caller, payload)

        unary[STATUS] = status
        self.noted.clear()

    def turn(self, requests: list[Request], events: list[Event]) -> list[str]:
        """Take a turn without its jobs; return what was done."""
        self.noted.clear()
        self.harness.begin_turn()
        self.server.turn(self.harness.now, requests, events, (), ())
        return list(self.noted)


def status(call: int) -> Request:
    return call, STATUS, b"", None


def said(text: str) -> Event:
    return EdgeEventKind.MESSAGE, LINK, text


@pytest.fixture
def noting() -> Noting:
    return Noting()


def test_other_members_and_ticks_come_before_clients(noting: Noting) -> None:
    opened: Event = (EdgeEventKind.HTTP_OPENED, 7, (LISTENER, "GET", "asked", ()))
    noting.harness.now += HEARTBEAT_SECONDS
    noted = noting.turn([status(1)], [said("first"), opened, said("last")])
    assert noted == ["first", "asked", "last", "tick", "call 1", "peers"]


def replying(noting: Noting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Note when clients get answers."""
    edge = noting.harness.edge
    reply = edge.reply

    def noted(batch: Any) -> None:
        noting.noted.append("clients")
        reply(batch)

    monkeypatch.setattr(edge, "reply", noted)


def test_clients_are_answered_first_where_nothing_is_to_be_written(
    noting: Noting, monkeypatch: pytest.MonkeyPatch
) -> None:
    replying(noting, monkeypatch)
    assert noting.turn([(1, RANGE, STALE, None)], []) == ["clients", "peers"]


def test_others_hear_of_it_before_a_job_of_the_disk_is_begun(
    noting: Noting, monkeypatch: pytest.MonkeyPatch
) -> None:
    replying(noting, monkeypatch)
    noted = noting.turn([(1, PUT, VALUE, None), (2, RANGE, STALE, None)], [])
    # Nor does an answer wait for a write that it does not depend on.
    assert noted == ["peers", "clients"]
    assert set(noting.harness.edge.replies) == {2}
    noting.noted.clear()
    noting.harness.settle()
    assert set(noting.harness.edge.replies) == {1, 2}


def test_what_a_turn_has_no_time_for_stays_in_order(noting: Noting) -> None:
    """With one read of the clock a turn, each serves one message of a member and one call."""
    harness = noting.harness
    calls = [status(call) for call in range(1, 4)]
    harness.looks_max = 1
    assert noting.turn(calls, [said("a"), said("b")]) == ["a", "call 1", "peers"]
    assert noting.server.waiting == 3
    assert noting.server.room == (0, 0)
    assert noting.server.is_busy
    assert noting.turn([], []) == ["b", "call 2", "peers"]
    assert noting.server.room == (0, 0)
    assert noting.turn([], []) == ["call 3", "peers"]
    assert not noting.server.waiting
    assert min(noting.server.room) > 0


def test_a_heartbeat_is_sent_however_much_there_is_to_do() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.pass_time(1.0)
    cluster.slices = 1
    leader.requests += [status(call) for call in range(1000, 1100)]
    leader.turn()
    for _ in range(3):
        cluster.messages.clear()
        cluster.now += HEARTBEAT_SECONDS
        leader.turn()
        sent = [decode_message(data).type for _, _, data, _ in cluster.messages]
        assert sent.count(MessageType.HEARTBEAT) == 2
    assert leader.server.waiting


Cut = tuple[list[int], int]


def served(requests: list[bytes], cut: Cut) -> dict[int, bytes | Status]:
    """Let puts arrive in batches, with so many reads of the clock a turn; return the answers."""
    sizes, looks_max = cut
    harness = Harness()
    harness.looks_max = looks_max
    rest: list[Request] = [(call, PUT, body, None) for call, body in enumerate(requests, 1)]
    while rest or harness.server.waiting:
        size = sizes.pop() if sizes else len(rest)
        arrived = rest[:size] if min(harness.server.room) > 0 else []
        rest = rest[len(arrived) :]
        harness.turn(arrived)
    harness.looks_max = 0
    harness.settle()
    return harness.edge.replies


PUTS = st.builds(
    pb.PutRequest,
    key=st.sampled_from([b"", b"a", b"b"]),
    value=st.sampled_from([b"", b"v"]),
    prev_kv=st.booleans(),
    ignore_value=st.booleans(),
)


@given(
    st.lists(PUTS, min_size=1, max_size=20),
    st.lists(st.integers(0, 9), max_size=5),
    st.integers(0, 4),
)
@settings(max_examples=25, deadline=None)
def test_how_requests_are_cut_into_turns_changes_no_answer(
    puts: list[pb.PutRequest], sizes: list[int], looks_max: int
) -> None:
    bodies = [put.SerializeToString() for put in puts]
    expected = served(bodies, ([1] * len(bodies), 0))
    assert len(expected) == len(bodies)
    assert served(bodies, (list(sizes), looks_max)) == expected


# Where the log is written.


@pytest.mark.parametrize(
    ("calls", "bytes_max"),
    [(1, PRODUCTION.inline_alone_bytes_max), (PRODUCTION.inline_calls_max + 1, 0)],
)
def test_the_log_of_few_calls_is_written_where_the_turn_is_taken(
    noting: Noting, calls: int, bytes_max: int
) -> None:
    noting.turn([(call, PUT, VALUE, None) for call in range(calls)], [])
    assert noting.server.inline_bytes_max == bytes_max


def test_where_others_wait_less_is_written_there() -> None:
    cluster = Fronts(3)
    leader = cluster.leader()
    cluster.begin(leader, "KV/Put", pb.PutRequest(key=b"k"))
    assert leader.server.inline_bytes_max == PRODUCTION.inline_shared_bytes_max


# Ticks.


def test_a_member_that_is_alone_leads_at_once() -> None:
    ticks: list[bool] = []
    harness = Harness(on_tick=ticks.append)
    assert harness.now == 1000.0
    assert len(ticks) == 1
    harness.pass_time(1.05)
    assert len(ticks) == 11


def test_ticks_that_were_missed_are_counted_and_not_made_up_for(noting: Noting) -> None:
    harness, counters = noting.harness, noting.server.counters
    harness.now += HEARTBEAT_SECONDS
    assert noting.turn([], []).count("tick") == 1
    # A tick that is late by less than a heartbeat is not missed: the next one is in time again.
    harness.now += 1.5 * HEARTBEAT_SECONDS
    assert noting.turn([], []).count("tick") == 1
    assert counters.heartbeats_late == 0
    assert noting.server.wake_at(harness.now) == pytest.approx(
        harness.now + 0.5 * HEARTBEAT_SECONDS
    )
    harness.now += 10.0
    assert noting.turn([], []).count("tick") == 1
    assert noting.turn([], []).count("tick") == 0
    assert counters.heartbeats_late == 1
    assert noting.server._next_tick == pytest.approx(harness.now + HEARTBEAT_SECONDS)


def test_clients_that_do_nothing_are_told_apart() -> None:
    idle: list[bool] = []
    harness = Harness(on_tick=idle.append)
    harness.pass_time(HEARTBEAT_SECONDS)
    harness.begin("/etcdserverpb.KV/Range", STALE)
    harness.pass_time(2 * HEARTBEAT_SECONDS)
    assert idle[-2:] == [False, True]


@pytest.mark.parametrize(
    ("advances", "connected", "elapsed"), [(True, 2, 9), (True, 1, 1), (False, 2, 1)]
)
def test_most_of_the_first_election_timeout_passes_when_others_are_reached(
    advances: bool, connected: int, elapsed: int
) -> None:
    cluster = Cluster(3)
    machine = cluster[0]
    machine.kill()
    machine.settings = server_settings(make_config({"initial-election-tick-advance": advances}))
    member = machine.start()
    for other in list(cluster)[1 : 1 + connected]:
        member.note_connected(other.running.id, cluster.now)
    machine.turn()
    assert member.replica.node.raft.election_elapsed == elapsed
    cluster.now += HEARTBEAT_SECONDS
    machine.turn()
    assert member.replica.node.raft.election_elapsed == elapsed + 1


# When there is more to do.


def test_whoever_waits_for_a_key_goes_on_at_once() -> None:
    harness = Harness()
    for lease in (7, 8):
        harness.ask("Lease/LeaseGrant", pb.LeaseGrantRequest(ID=lease, TTL=1000))
    held = harness.ask("Lock/Lock", LockRequest(name=b"l", lease=7))
    waiting = harness.begin("/v3lockpb.Lock/Lock", LockRequest(name=b"l", lease=8))
    harness.pass_time(1.0)
    assert waiting not in harness.edge.replies
    # Answered without any time passing.
    harness.begin("/v3lockpb.Lock/Unlock", UnlockRequest(key=held.key))
    assert waiting in harness.edge.replies


# Calls that take long.


def lines(found: list[tuple[str, dict[str, object]]], message: str) -> list[dict[str, object]]:
    return [fields for line, fields in found if line == message]


def test_a_call_that_takes_long_is_told_once() -> None:
    cluster = Fronts(1)
    machine = cluster.leader()
    for lease in (7, 8):
        cluster.call(machine, "Lease/LeaseGrant", pb.LeaseGrantRequest(ID=lease, TTL=1000))
    cluster.call(machine, "Lock/Lock", LockRequest(name=b"l", lease=7))
    # A call that waits for others by its nature is not reported.
    cluster.begin(machine, "Lock/Lock", LockRequest(name=b"l", lease=8))
    machine.held.add(ExecutorKind.LOG)
    call = cluster.begin(machine, "KV/Put", pb.PutRequest(key=b"k"))
    slow = "slow request is still in flight"
    cluster.pass_time(0.25)
    assert lines(machine.logger.lines, slow) == []
    cluster.pass_time(5.0)
    fields = {"method": "/etcdserverpb.KV/Put", "remote": f"127.0.0.1:{call}"}
    assert lines(machine.logger.lines, slow) == [fields]


@pytest.mark.parametrize(("seconds", "is_told"), [(0.1, True), (0.2, False)])
def test_an_entry_that_is_applied_for_long_is_told(seconds: float, is_told: bool) -> None:
    cluster = Fronts(1)
    machine = cluster[0]
    machine.kill()
    machine.settings = server_settings(make_config({"warning-apply-duration": seconds}))
    machine.start()
    cluster.leader()
    for number in range(2000):
        machine.put(b"%05d" % number)
    cluster.settle()
    cluster.slices = 1
    machine.delete(b"\0", b"\0")
    while machine.running.replica.apply_queue.entry is None:
        machine.turn()
    cluster.now += 0.05
    machine.turn()
    cluster.now += 0.1
    cluster.slices = 0
    cluster.settle()
    found = lines(machine.logger.lines, "apply request took too long")
    assert [fields["took"] for fields in found] == (["150.000ms"] if is_told else [])
    assert machine.server.counters.slow_applies == is_told


class CountedCalls(tuple[int, ...]):
    """The calls of other members, which counts how often it is searched."""

    searched = 0

    def __contains__(self, call: object) -> bool:
        CountedCalls.searched += 1
        return super().__contains__(call)


def test_events_that_wait_are_searched_for_other_members_once(
    noting: Noting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NotedPeers, "open", CountedCalls([LINK]))
    noting.harness.looks_max = 1
    count = 30
    gone: list[Event] = [(EdgeEventKind.ENDED, call, None) for call in range(100, 100 + count)]
    CountedCalls.searched = 0
    # There is no time for the second message: it comes first in the next turn.
    assert noting.turn([], [*gone, said("a"), said("b")]) == ["a", "peers"]
    assert noting.turn([], []) == ["b", "peers"]
    turns = 2
    while noting.server.waiting:
        assert noting.turn([], []) == ["peers"]
        turns += 1
    assert turns >= count
    # By the two turns above, and a few times when each is served; not by every turn.
    assert CountedCalls.searched <= 6 * count
