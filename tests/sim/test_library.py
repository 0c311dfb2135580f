"""Clients of the library in runs: what judges them sees what is wrong, and they are busy."""

from types import SimpleNamespace
from typing import Any

import pytest

from kvorum.api.errors import Code
from kvorum.api.pb.etcdserverpb import (
    LeaseGrantRequest,
    LeaseGrantResponse,
    LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse,
    PutRequest,
    RangeRequest,
)
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.client import rpcs
from kvorum.client.core import Core, CoreSettings
from kvorum.client.endpoints import parse_endpoint
from kvorum.client.errors import CallError, DeadlineError, NoSpaceError, OutcomeUnknownError
from kvorum.client.loop import LoopClient
from kvorum.client.owned_keys import OwnedKeys, OwnershipNames
from kvorum.sim import model
from kvorum.sim.calls import PlannedRequest
from kvorum.sim.campaign import size_of
from kvorum.sim.history import History, Record
from kvorum.sim.lease_checks import check_leases
from kvorum.sim.library.checks import FENCED, HELD, Claim, check_claims
from kvorum.sim.library.leasers import KEYS, Read, check_reads
from kvorum.sim.library.process import Process
from kvorum.sim.library.shell import RecordedCore, Shell
from kvorum.sim.library.tasks import Cancelled, Task, Waiter
from kvorum.sim.plan import draw_plan
from kvorum.sim.run import simulate
from kvorum.sim.violation import Violation
from kvorum.sim.world import World


def history_of(*rows: tuple[int, bytes, float]) -> History:
    """Return a history of revisions that create a key, or, if negative, delete it, and when."""
    history = History()
    for number, key, now in rows:
        main = abs(number)
        kv = KeyValue(key=key, create_revision=main, mod_revision=main, version=1)
        if number < 0:
            kv = KeyValue(key=key)
        row = (main << 32 | (number < 0), kv.SerializeToString())
        history.observe(now, "m1", main, main, -1, [row])
    history.replay()
    return history


def claim(
    key: bytes, fencing: int, since: float, until: float, name: bytes = b"lock", holder: str = "a"
) -> Claim:
    return Claim(name, holder, key, fencing, Record(1, "txn", 0, None, 1, 0.0), since, until)


LOCKED_TWICE = [(2, b"lock/1", 1.0), (-3, b"lock/1", 4.0), (4, b"lock/2", 5.0)]


def test_who_is_sure_for_no_longer_than_its_key_is_there_is_right() -> None:
    claims = [claim(b"lock/1", 2, 1.5, 4.0), claim(b"lock/2", 4, 5.5, 9.0, holder="b")]
    check_claims(history_of(*LOCKED_TWICE), claims)


@pytest.mark.parametrize(
    ("wrong", "guarantee"),
    [
        # Its key was gone before.
        (claim(b"lock/1", 2, 1.5, 4.1), HELD),
        # It never was there, or another revision created it.
        (claim(b"lock/3", 2, 1.5, 2.0), HELD),
        (claim(b"lock/2", 3, 5.5, 6.0), HELD),
        # Somebody who came later held it before.
        (claim(b"lock/1", 2, 6.0, 3.0), FENCED),
    ],
)
def test_who_takes_for_its_own_what_is_not_is_noticed(wrong: Claim, guarantee: str) -> None:
    with pytest.raises(Violation) as found:
        check_claims(history_of(*LOCKED_TWICE), [claim(b"lock/2", 4, 5.5, 9.0, holder="b"), wrong])
    assert found.value.guarantee == guarantee


def test_the_model_sorts_and_filters_as_locks_ask_for() -> None:
    history = history_of((2, b"lock/b", 1.0), (3, b"lock/a", 2.0), (4, b"lock/c", 3.0))
    request = RangeRequest(
        key=b"lock/",
        range_end=b"lock0",
        limit=1,
        sort_order=RangeRequest.DESCEND,
        sort_target=RangeRequest.CREATE,
        max_create_revision=3,
    )
    response, _ = model.run(history, request, 4, 5)
    assert [kv.key for kv in response.kvs] == [b"lock/a"]  # type: ignore[union-attr]
    assert (response.count, response.more) == (3, True)  # type: ignore[union-attr]


# What errors say of a write.


@pytest.mark.parametrize(
    ("error", "is_known"),
    [
        (OutcomeUnknownError("maybe"), False),
        (NoSpaceError(Code.RESOURCE_EXHAUSTED, ""), False),
        (CallError(Code.INVALID_ARGUMENT, "refused"), True),
        (DeadlineError("never sent"), True),
    ],
)
def test_only_what_the_library_calls_unknown_may_have_taken_effect(
    error: Exception, is_known: bool
) -> None:
    shell = Shell.__new__(Shell)
    shell._world, shell._history = World(1), History()
    record = Record(1, "put", 0, PutRequest(), 1, 0.0)
    shell._note(record, PutRequest, error)  # type: ignore[arg-type]
    assert (record.response is not None) == is_known == (record.returned is not None)


def test_a_shell_has_the_names_of_the_one_on_a_loop() -> None:
    """Clients use these; what they touch beyond is not there in a run."""
    for name in ("call", "turn", "wait", "start_reading", "keep", "release", "set_endpoints"):
        assert hasattr(Shell, name) and hasattr(LoopClient, name)
    core = Core([parse_endpoint("m1:2379")], CoreSettings())
    assert core.copy().endpoints.all.keys() == core.endpoints.all.keys()


# What goes into the history.


def recorded_shell() -> tuple[World, Shell, History]:
    """Return the shell of a client that reaches no member, and what it records."""
    world, history = World(1), History()
    cluster: Any = SimpleNamespace(history=history, front=lambda _: None)
    core = RecordedCore([parse_endpoint("m1:2379")], CoreSettings())
    return world, Shell(world, cluster, Process(world, "p"), core, 1), history


def test_what_a_user_asks_is_recorded_once() -> None:
    world, shell, history = recorded_shell()
    asked = PlannedRequest("put", PutRequest(key=b"k"), ((b"k", None),))

    async def ask() -> None:
        await shell.ask(asked, rpcs.PUT, 1.0)

    Task(world, shell.process, ask(), at_once=True)
    world.run_until(2.0)
    assert [(each.kind, each.expected) for each in history.records] == [("put", asked.expected)]
    # It was never sent.
    assert history.records[0].returned is not None


def test_the_revoke_of_a_leasing_client_is_recorded_and_explains_the_end_of_its_lease() -> None:
    """Seed 61001194: the client gave its lease up, and nobody had revoked it by the history."""
    world, shell, history = recorded_shell()
    grant, status = LeaseGrantResponse(ID=7, TTL=5), LeaseTimeToLiveResponse(ID=7, TTL=-1)

    def answered(request: object, response: object) -> None:
        record = Record(2, "asked", 1, request, history.moment(), world.now)
        record.response, record.returned = response, history.moment()
        record.finished = world.now
        history.records.append(record)

    answered(LeaseGrantRequest(TTL=5), grant)
    world.run_until(1.0)
    owning = OwnedKeys(shell.core, shell.watching, OwnershipNames(b"", b"leasing/"), 7)
    with shell.turn():
        owning.end()
    revoke = history.records[-1]
    assert (revoke.kind, revoke.request.ID, revoke.started) == ("leaserevoke", 7, 1.0)
    world.run_until(1.5)
    shell.end()
    # Nobody can say whether it took effect.
    assert (revoke.response, revoke.finished) == (None, 1.5)
    answered(LeaseTimeToLiveRequest(ID=7), status)
    check_leases(history)
    # No revoke explains an end before it was asked for.
    history.records[-1].finished = 0.5
    with pytest.raises(Violation, match="leases do not end early"):
        check_leases(history)


# Coroutines.


def test_a_task_goes_on_when_its_process_runs_and_is_cancelled_where_it_waits() -> None:
    world = World(1)
    process = Process(world, "p")
    first, second = Waiter(), Waiter()
    steps: list[tuple[float, str]] = []

    async def work() -> None:
        await first
        steps.append((world.now, "woken"))
        try:
            await second
        except Cancelled:
            steps.append((world.now, "cancelled"))
            await Waiter()

    task = Task(world, process, work())
    process.paused_until = 3.0
    world.after(1.0, first.wake)
    # One that is woken and cancelled at once is cancelled, and not woken again.
    world.at(5.0, task.cancel)
    world.at(5.0, second.wake)
    world.run_until(6.0)
    assert steps == [(3.0, "woken"), (5.0, "cancelled")]
    assert not task.is_done
    task.end()
    assert task.is_done


def test_a_suspension_stops_timers_and_the_monotonic_clock_and_no_other() -> None:
    world = World(1)
    process = Process(world, "p")
    fired: list[tuple[str, float]] = []
    for moment in (0.5, 2.0):
        process.at(moment, lambda moment=moment: fired.append((f"{moment}", world.now)))
    process.on_resume = lambda: fired.append(("resumed", world.now))
    world.at(1.0, process.suspend, 10.0)

    # What is put off to the moment of the resumption comes after that.
    def read() -> None:
        if not process.later(process.runs_at, read):
            fired.append(("read", world.now))

    world.at(3.0, read)
    world.run_until(20.0)
    assert fired == [("0.5", 0.5), ("resumed", 11.0), ("read", 11.0), ("2.0", 12.0)]
    assert (process.monotonic(), process.clock()) == (10.0, 20.0)


@pytest.mark.parametrize(
    ("started", "finished", "revision", "is_right"),
    [
        (0.5, 0.6, 0, True),
        (1.5, 1.6, 2, True),
        (1.5, 1.6, 0, False),
        # It was changed while it was read.
        (1.5, 2.5, 3, True),
        (2.5, 2.6, 2, False),
        (2.5, 3.5, 0, True),
        (3.5, 3.6, 3, False),
        (3.5, 3.6, 0, True),
        (4.5, 4.6, 0, False),
        (4.5, 4.6, 5, True),
    ],
)
def test_a_read_of_what_was_changed_before_is_noticed(
    started: float, finished: float, revision: int, is_right: bool
) -> None:
    key = KEYS[0]
    history = history_of((2, key, 1.0), (3, key, 2.0), (-4, key, 3.0), (5, key, 4.0))
    reads = [Read("a", key, started, finished, revision)]
    if is_right:
        check_reads(history, reads)
    else:
        with pytest.raises(Violation, match="asked for"):
            check_reads(history, reads)


# Runs.


def test_in_a_part_of_those_seeds_clients_are_suspended() -> None:
    plans = [draw_plan(seed, size_of(seed)) for seed in range(400)]
    suspended = [plan for plan in plans if plan.suspensions is not None]
    assert 20 < len(suspended) < 50
    assert all(plan.library is not None for plan in suspended)


@pytest.mark.long
def test_they_read_what_they_own_and_are_suspended_in_a_run() -> None:
    outcome = simulate(19, size_of(19))
    assert (outcome.guarantee, outcome.violation) == ("", "")
    for name in ("clients suspended", "reads by leases"):
        assert outcome.counts[name] > 10, name


def test_a_fifth_of_the_seeds_has_clients_of_the_library() -> None:
    plans = [draw_plan(seed, size_of(seed)) for seed in range(400)]
    assert 50 < sum(plan.library is not None for plan in plans) < 110
    assert all(plan.realm is None for plan in plans if plan.library is not None)


@pytest.mark.long
def test_they_hold_lose_and_watch_in_a_run() -> None:
    outcome = simulate(15, size_of(15))
    assert (outcome.guarantee, outcome.violation) == ("", "")
    for name in ("claims", "connections of the library lost", "clients cut off", "watch events"):
        assert outcome.counts[name], name
