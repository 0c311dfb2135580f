"""Proxies in runs: their calls to members keep the contract, and what judges them sees mistakes."""

from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest

from kvorum.api.errors import Code
from kvorum.api.pb.etcdserverpb import (
    PutRequest,
    PutResponse,
    RangeRequest,
    RangeResponse,
    ResponseHeader,
    WatchCreateRequest,
    WatchRequest,
    WatchResponse,
)
from kvorum.network.edge.upstream import UpstreamEvent
from kvorum.network.edge.upstream import UpstreamEventKind as Kind
from kvorum.proxy.proxy import Proxy
from kvorum.sim.campaign import replay, size_of
from kvorum.sim.cluster import Cluster
from kvorum.sim.faults import without_faults
from kvorum.sim.history import History, Record
from kvorum.sim.plan import Plan, draw_plan
from kvorum.sim.proxies.checks import GUARANTEE, ORDERED, check_cached
from kvorum.sim.proxies.host import ANSWERED
from kvorum.sim.proxies.upstream import SimulatedUpstream
from kvorum.sim.run import memory_directory, simulate, simulate_plan
from kvorum.sim.violation import Violation
from kvorum.sim.world import World

PUT = "/etcdserverpb.KV/Put"
WATCH = "/etcdserverpb.Watch/Watch"
MEMBER = 1
ENDPOINT, OTHER_ENDPOINT = 1, 2
EVENTS_MAX, BYTES_MAX = 1000, 1 << 20


class Stage:
    """A cluster of one member, and what calls it as a proxy does."""

    def __init__(self, directory: str) -> None:
        self.world = World(1)
        self.cluster = Cluster(self.world, 1, without_faults(), directory, {})
        self.cluster.start()
        self.machine = self.cluster.machines[MEMBER]
        random = self.world.stream("upstream")
        self.upstream = SimulatedUpstream(self.world, self.cluster, random, 1 << 20, lambda: None)
        self.pass_time(2.0)
        self.upstream.connect(ENDPOINT, f"m{MEMBER}:2379", "")
        assert self.poll() == [(Kind.CONNECTED, ENDPOINT, None)]

    def pass_time(self, seconds: float = 1.0) -> None:
        self.world.run_until(self.world.now + seconds)

    def poll(self) -> list[UpstreamEvent]:
        """Return what is told within a second."""
        self.pass_time()
        return self.upstream.poll(EVENTS_MAX, BYTES_MAX)

    def put(self, call: int, endpoint: int = ENDPOINT) -> None:
        message = PutRequest(key=b"k", value=b"%d" % call).SerializeToString()
        self.upstream.call([(call, endpoint, PUT, message, ())])

    def watch(self, call: int) -> None:
        self.upstream.open(call, ENDPOINT, WATCH, ())
        create = WatchCreateRequest(key=b"k")
        request = WatchRequest(create_request=create).SerializeToString()
        self.upstream.send([(call, request)])


@pytest.fixture
def stage() -> Iterator[Stage]:
    with TemporaryDirectory(dir=memory_directory()) as directory:
        stage = Stage(directory)
        yield stage
        for machine in stage.cluster.machines.values():
            machine.end()


def values(events: list[UpstreamEvent]) -> list[bytes]:
    """Return what was put, by the messages of a watch."""
    messages = [WatchResponse.FromString(detail) for kind, _, detail in events]
    return [event.kv.value for message in messages for event in message.events]


def test_a_call_is_answered_and_one_to_no_member_was_never_processed(stage: Stage) -> None:
    stage.put(5)
    stage.put(6, OTHER_ENDPOINT)
    events = {call: (kind, detail) for kind, call, detail in stage.poll()}
    assert events[5][0] == Kind.ANSWERED and PutResponse.FromString(events[5][1]).header.revision
    kind, (code, _, is_unprocessed) = events[6]
    assert (kind, code, is_unprocessed) == (Kind.ENDED, Code.UNAVAILABLE, True)


def test_a_paused_stream_tells_nothing_and_then_everything_in_order(stage: Stage) -> None:
    stage.watch(5)
    assert [kind for kind, *_ in stage.poll()] == [Kind.MESSAGE]
    stage.put(6)
    stage.pass_time()
    # It has come, and is not polled.
    stage.upstream.pause(5)
    for call in (7, 8):
        stage.put(call)
        stage.pass_time()
    assert [call for _, call, _ in stage.poll()] == [6, 7, 8]
    stage.upstream.resume(5)
    stage.put(9)
    events = [event for event in stage.poll() if event[1] == 5]
    assert values(events) == [b"6", b"7", b"8", b"9"]


def test_a_paused_stream_that_has_ended_says_so_behind_its_messages(stage: Stage) -> None:
    stage.watch(5)
    stage.poll()
    stage.upstream.pause(5)
    stage.put(6)
    assert [call for _, call, _ in stage.poll()] == [6]
    stage.machine.crash(power_cut=False)
    assert [kind for kind, *_ in stage.poll()] == [Kind.DISCONNECTED]
    stage.upstream.resume(5)
    assert [(kind, call) for kind, call, _ in stage.poll()][-1] == (Kind.ENDED, 5)


def test_a_cancelled_call_has_no_further_events(stage: Stage) -> None:
    stage.watch(5)
    stage.put(6)
    stage.pass_time()
    for call in (5, 6):
        stage.upstream.cancel(call)
    stage.put(7)
    assert [call for _, call, _ in stage.poll()] == [7]
    assert stage.machine.server is not None and not stage.machine.server.calls.streams


def test_a_connection_that_is_given_up_or_lost_ends_its_calls_first(stage: Stage) -> None:
    stage.watch(5)
    stage.poll()
    stage.upstream.disconnect(ENDPOINT)
    (ended, number, end), lost = stage.poll()
    assert (ended, number, end[0]) == (Kind.ENDED, 5, Code.CANCELLED)
    assert lost[:2] == (Kind.DISCONNECTED, ENDPOINT)
    stage.upstream.connect(OTHER_ENDPOINT, f"m{MEMBER}:2379", "")
    stage.poll()
    stage.upstream.open(6, OTHER_ENDPOINT, WATCH, ())
    stage.pass_time()
    stage.machine.crash(power_cut=False)
    (ended, number, end), lost = stage.poll()
    assert (ended, number, end[::2]) == (Kind.ENDED, 6, (Code.UNAVAILABLE, False))
    assert lost[:2] == (Kind.DISCONNECTED, OTHER_ENDPOINT)


def test_a_member_that_drains_refuses_calls_which_it_never_looked_at(stage: Stage) -> None:
    stage.watch(5)
    stage.poll()
    stage.machine.edge.drain()
    stage.pass_time()
    stage.put(6)
    leaving, (ended, number, end) = stage.poll()
    assert leaving == (Kind.LEAVING, ENDPOINT, None)
    assert (ended, number, end[::2]) == (Kind.ENDED, 6, (Code.UNAVAILABLE, True))
    stage.upstream.cancel(5)
    assert [(kind, number) for kind, number, _ in stage.poll()] == [(Kind.DISCONNECTED, ENDPOINT)]


def test_what_is_cut_off_comes_later(stage: Stage) -> None:
    with (
        patch("kvorum.sim.proxies.upstream.BREAK_CHANCE", 0.0),
        patch("kvorum.sim.proxies.upstream.ONE_WAY_CHANCE", 0.0),
    ):
        stage.upstream.cut_off(MEMBER, stage.world.now + 3.0)
        stage.put(5)
        assert stage.poll() == []
        stage.pass_time(2.0)
        assert [kind for kind, *_ in stage.poll()] == [Kind.ANSWERED]


def test_what_has_not_left_when_its_connection_is_lost_never_arrives(stage: Stage) -> None:
    with patch("kvorum.sim.proxies.upstream.ONE_WAY_CHANCE", 0.0):
        stage.upstream.cut_off(MEMBER, stage.world.now + 3.0)
    stage.watch(5)
    stage.upstream.break_one()
    stage.pass_time(5.0)
    assert stage.machine.server is not None and not stage.machine.server.calls.streams


# What judges proxies.


def record(history: History, request: Any, revision: int, member: int = 101) -> Record:
    """Add a request that was answered by a proxy at a second that is its moment."""
    kind = "put" if isinstance(request, PutRequest) else "get"
    made = Record(1, kind, member, request, history.moment(), 0.0)
    header = ResponseHeader(revision=revision)
    if isinstance(request, PutRequest):
        made.response = PutResponse(header=header)
    else:
        made.response = RangeResponse(header=header)
    made.returned = history.moment()
    made.finished = float(made.returned)
    history.records.append(made)
    return made


def judged(*records: tuple[Any, int], started: tuple[float, ...], is_ordering: bool) -> str:
    history = History()
    for request, revision in records:
        record(history, request, revision)
    try:
        check_cached(history, 101, started, is_ordering=is_ordering)
    except Violation as violation:
        return violation.guarantee
    return ""


READ, PAST = RangeRequest(key=b"k"), RangeRequest(key=b"k", revision=3)
WRITE = PutRequest(key=b"k")


@pytest.mark.parametrize("is_ordering", [False, True])
@pytest.mark.parametrize(
    ("records", "started", "guarantees"),
    [
        ([(WRITE, 5), (READ, 5)], (0.0,), ("", "")),
        ([(READ, 4), (WRITE, 5)], (0.0,), ("", "")),
        ([(WRITE, 5), (READ, 4)], (0.0,), (GUARANTEE, GUARANTEE)),
        ([(WRITE, 5), (READ, 6), (READ, 4)], (0.0,), (GUARANTEE, ORDERED)),
        # Another process knows nothing of that.
        ([(WRITE, 5), (READ, 4)], (0.0, 2.5), ("", "")),
        # Who reads the past gets it.
        ([(WRITE, 5), (PAST, 4)], (0.0,), ("", "")),
        ([(READ, 5), (READ, 4)], (0.0,), ("", ORDERED)),
    ],
)
def test_a_read_is_not_older_than_earlier_answers_of_its_proxy(
    records: list[tuple[Any, int]],
    started: tuple[float, ...],
    guarantees: tuple[str, str],
    is_ordering: bool,
) -> None:
    assert judged(*records, started=started, is_ordering=is_ordering) == guarantees[is_ordering]


# Runs.


def plans() -> Iterator[Plan]:
    """Yield plans with proxies, those without users, which take less time."""
    for seed in range(1000):
        plan = draw_plan(seed, size_of(seed))
        if plan.tier is not None and plan.realm is None:
            yield plan


def test_about_a_sixth_of_the_seeds_has_proxies() -> None:
    found = [seed for seed in range(600) if draw_plan(seed, size_of(seed)).tier is not None]
    assert 70 < len(found) < 140


def test_a_seed_with_proxies_gives_one_history_and_uses_them() -> None:
    plan = next(plans())
    (outcome, trace), again = replay(plan.seed, plan.members), simulate(plan.seed, plan.members)
    assert (outcome.guarantee, outcome.violation) == ("", "")
    assert (again.counts, again.faults) == (outcome.counts, outcome.faults)
    assert outcome.counts["calls through proxies"] > 20
    assert any(" m101 " in line for line in trace.lines)
    assert any(each.who == "m101" for each in trace.moments.events), "pictures show it"


def test_a_proxy_that_forgets_calls_is_noticed() -> None:
    with patch.object(Proxy, "_serve", lambda *_: None):
        assert simulate_plan(next(plans())).guarantee == ANSWERED
