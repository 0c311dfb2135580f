"""Simulated clients that speak JSON: they are told what others are told, and leave nothing."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import (
    LeaseGrantRequest,
    LeaseKeepAliveRequest,
    LeaseKeepAliveResponse,
    PutRequest,
    PutResponse,
    RangeRequest,
    RequestOp,
    TxnRequest,
    WatchCreateRequest,
    WatchRequest,
    WatchResponse,
)
from kvorum.api.pb.v3lockpb import LockRequest
from kvorum.sim import json_calls
from kvorum.sim.calls import METHODS
from kvorum.sim.campaign import size_of
from kvorum.sim.gateway_checks import GUARANTEE
from kvorum.sim.json_calls import Dialects, JsonCalls
from kvorum.sim.memory import leftovers
from kvorum.sim.plan import draw_plan
from kvorum.sim.run import simulate_plan
from kvorum.sim.trace import Trace
from kvorum.sim.violation import Violation
from kvorum.sim.watchers import PATH as WATCH_PATH
from tests.incidents.stage import Stage

KEEP_ALIVE_PATH = METHODS[LeaseKeepAliveRequest][0]
NOBODY = Dialects(share=0.0, socket_share=0.5, leader_share=0.5, deadline_chance=0.2)
SEEDS = 40


def dialects(*, sockets: bool) -> Dialects:
    return Dialects(share=1.0, socket_share=sockets, leader_share=0.5, deadline_chance=0.0)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path, members=1)
    yield stage
    stage.close()


@pytest.fixture(params=[False, True], ids=["plain", "sockets"])
def speaker(request: pytest.FixtureRequest, stage: Stage) -> JsonCalls:
    return JsonCalls(stage.world, stage.cluster, dialects(sockets=request.param), "c1")


def answer(stage: Stage, calls: Any, request: Any) -> Any:
    """Return what a request is answered."""
    path, response = METHODS[type(request)]
    told: list[bytes | Status | None] = []
    calls.call(1, path, request.SerializeToString(), told.append)
    stage.run_until(lambda: bool(told))
    return response.FromString(told[0]) if isinstance(told[0], bytes) else told[0]


class Stream:
    """A stream with its messages."""

    def __init__(self, calls: JsonCalls, path: str, kind: Any) -> None:
        self.messages: list[Any] = []
        self.ends: list[object] = []
        self.call = calls.open_stream(
            1, path, self.ends.append, lambda data: self.messages.append(kind.FromString(data))
        )


@pytest.mark.parametrize(
    "request_",
    [
        RangeRequest(key=b"\0", range_end=b"\0"),
        RangeRequest(key=b""),
        TxnRequest(success=[RequestOp(request_range=RangeRequest(key=b"k"))]),
    ],
    ids=["keys", "refused", "nested"],
)
def test_an_answer_is_that_of_grpc(stage: Stage, speaker: JsonCalls, request_: Any) -> None:
    written = answer(stage, speaker, PutRequest(key=b"k", value=bytes(range(256))))
    assert isinstance(written, PutResponse)
    assert answer(stage, speaker, request_) == answer(stage, stage.cluster, request_)


def test_a_watch_gets_its_events(stage: Stage, speaker: JsonCalls) -> None:
    watch = Stream(speaker, WATCH_PATH, WatchResponse)
    create = WatchRequest(create_request=WatchCreateRequest(key=b"k"))
    speaker.send(1, watch.call, create.SerializeToString())
    stage.run_until(lambda: bool(watch.messages))
    assert watch.messages[0].created
    revision = stage.put(b"k", b"v")
    stage.run_until(lambda: len(watch.messages) > 1)
    assert [event.kv.mod_revision for event in watch.messages[1].events] == [revision]


def test_a_lease_is_renewed(stage: Stage, speaker: JsonCalls) -> None:
    lease = answer(stage, speaker, LeaseGrantRequest(TTL=9)).ID
    renewals = Stream(speaker, KEEP_ALIVE_PATH, LeaseKeepAliveResponse)
    speaker.send(1, renewals.call, LeaseKeepAliveRequest(ID=lease).SerializeToString())
    stage.run_until(lambda: bool(renewals.messages))
    renewed = renewals.messages[0]
    assert lease == renewed.ID and renewed.TTL == 9


def test_a_caller_that_hangs_up_leaves_nothing(stage: Stage, speaker: JsonCalls) -> None:
    machine = stage.machine()
    watch = Stream(speaker, WATCH_PATH, WatchResponse)
    create = WatchRequest(create_request=WatchCreateRequest(key=b"k"))
    speaker.send(1, watch.call, create.SerializeToString())
    for lease in (1, 2):
        answer(stage, speaker, LeaseGrantRequest(ID=lease, TTL=60))
    path = METHODS[LockRequest][0]
    told: list[object] = []
    locks = [
        speaker.call(1, path, LockRequest(name=b"l", lease=lease).SerializeToString(), told.append)
        for lease in (1, 2)
    ]
    stage.run_until(lambda: len(told) == 1 and bool(watch.messages))
    assert machine.server is not None and len(machine.server.gateway.open) == 2
    for call in (watch.call, *locks):
        speaker.hang_up(1, call)
    stage.run_until(lambda: not leftovers(machine))
    assert not machine.edge.http and len(told) == 1


def test_no_deadline_outlives_its_call(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_calls, "_SECONDS", (3600.0,))
    always = Dialects(share=1.0, socket_share=0.0, leader_share=0.0, deadline_chance=1.0)
    speaker = JsonCalls(stage.world, stage.cluster, always, "c1")
    for _ in range(10):
        assert isinstance(answer(stage, speaker, PutRequest(key=b"k")), PutResponse)
    assert leftovers(stage.machine()) == {}


def test_a_deadline_that_passes_after_the_drain_is_not_answered(stage: Stage) -> None:
    machine, told = stage.machine(), list[object]()
    headers = [("grpc-timeout", "500m")]
    machine.arrivals.open_http(1000, "/v3/kv/put", headers, told.append, told.append)
    stage.run(0.1)
    assert machine.server is not None and machine.server.gateway.wake_at < inf
    machine.terminate()
    stage.run_until(lambda: machine.is_dead)
    stage.run(0.1)
    assert told == [None]


def _hold(stage: Stage) -> None:
    server = stage.machine().server
    assert server is not None
    server.gateway._held_bytes += 1


def _keep(stage: Stage) -> None:
    """Let the gateway keep a call that the edge has forgotten."""
    edge = stage.machine().edge
    edge.forget(next(iter(edge.http)))


def _forget(stage: Stage) -> None:
    server = stage.machine().server
    assert server is not None
    server.gateway.open.clear()


def _lose(stage: Stage) -> None:
    """Let the server lose a call that the gateway has."""
    server = stage.machine().server
    assert server is not None
    server.calls.streams.clear()


@pytest.mark.parametrize("damage", [_hold, _keep, _forget, _lose])
def test_calls_and_bytes_are_counted_after_every_turn(
    stage: Stage, damage: Callable[[Stage], None]
) -> None:
    speaker = JsonCalls(stage.world, stage.cluster, dialects(sockets=False), "c1")
    watch = Stream(speaker, WATCH_PATH, WatchResponse)
    create = WatchRequest(create_request=WatchCreateRequest(key=b"k"))
    speaker.send(1, watch.call, create.SerializeToString())
    stage.run_until(lambda: bool(watch.messages))
    damage(stage)
    with pytest.raises(Violation, match=GUARANTEE):
        stage.run(5.0)


def test_a_quarter_of_the_seeds_has_json_and_all_else_is_drawn_as_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans = {seed: draw_plan(seed, size_of(seed)) for seed in range(4 * SEEDS)}
    assert SEEDS // 2 < sum(plan.dialects is not None for plan in plans.values()) < 2 * SEEDS
    monkeypatch.setattr(json_calls, "CHANCE", 0.0)
    for seed in range(SEEDS):
        assert draw_plan(seed, size_of(seed)) == replace(plans[seed], dialects=None)


def test_a_run_without_json_callers_is_unchanged() -> None:
    plan = replace(draw_plan(1, 1), dialects=None)
    with_none, without = Trace(), Trace()
    simulate_plan(replace(plan, dialects=NOBODY), with_none)
    simulate_plan(plan, without)
    assert len(without.lines) > 300
    assert [line for line in with_none.lines if f"{NOBODY}" not in line] == without.lines
