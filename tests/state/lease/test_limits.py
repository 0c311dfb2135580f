"""Every limit of the lessor: pace of revokes, batches, spread, long lists, memory and cycles."""

import gc
from collections import Counter
from random import Random

import pytest

from kvorum.api.limits import PRODUCTION, WorkLimits
from kvorum.state.lease import Lessor, ttl_seconds_min
from tests.database import Database
from tests.state.lease.model import finish


def lessor_with(
    leases: int, ttl: int = 10, *, limits: WorkLimits = PRODUCTION, **options: float
) -> Lessor:
    lessor = Lessor(Database().backend, limits, **options)  # type: ignore[arg-type]
    for number in range(1, leases + 1):
        lessor.grant(number, ttl, 0.0)
    return lessor


def test_at_most_a_thousand_revokes_in_any_second() -> None:
    lessor = lessor_with(3500, retry_seconds=100.0)
    # Spread out they would not pile up; a primary that was busy for long finds them all at once.
    lessor.promote(0.0, 0.0)
    now, asked = 100.0, list[float]()
    random = Random(1)
    while len(asked) < 3500:
        found = lessor.take_expired(now, random.randrange(1, 800))
        asked += [now] * len(found)
        if not found:
            assert lessor.next_deadline > now
            now = lessor.next_deadline
        else:
            now += random.random() / 10
    for first, later in zip(asked, asked[PRODUCTION.lease_revokes_per_second_max :], strict=False):
        assert later - first >= 1.0
    assert asked[-1] < 105.0


def test_a_call_looks_at_so_many_entries_and_the_next_call_goes_on() -> None:
    leases = 3 * PRODUCTION.lease_deadlines_examined_max
    lessor = lessor_with(leases)
    lessor.promote(0.0, 0.0)
    for lease_id in range(1, leases):
        lessor.renew(lease_id, 9.0)
    # The entries of the heap are from before the renewals.
    calls = 1
    while not (found := lessor.take_expired(15.0, 10)):
        assert lessor.next_deadline <= 15.0
        calls += 1
    assert found == [leases] and calls >= 3


def test_checkpoints_come_in_batches_and_again() -> None:
    leases = PRODUCTION.lease_checkpoints_per_batch_max + 10
    lessor = lessor_with(leases, 1000, checkpoints=True)
    lessor.grant(leases + 1, 300, 0.0)
    lessor.promote(0.0, 0.0)
    assert lessor.next_deadline == 300.0
    assert lessor.take_due_checkpoints(299.0) == []
    first, second = lessor.take_due_checkpoints(300.0), lessor.take_due_checkpoints(300.0)
    assert len(first) == PRODUCTION.lease_checkpoints_per_batch_max and len(second) == 10
    left = dict(first + second)
    # Only those with more than an interval left; and those that were delayed have more left.
    assert set(left) == set(range(1, leases + 1))
    assert set(left.values()) == {700, 702}
    assert lessor.take_due_checkpoints(599.0) == []
    # None of them was applied: they come again.
    assert len(lessor.take_due_checkpoints(600.0)) == PRODUCTION.lease_checkpoints_per_batch_max


def test_a_renewed_lease_needs_no_checkpoint() -> None:
    lessor = lessor_with(1, 1000, checkpoints=True)
    lessor.promote(0.0, 0.0)
    assert lessor.renew(1, 300.0) == 1000
    assert lessor.take_due_checkpoints(300.0) == []
    assert lessor.take_due_checkpoints(600.0) == [(1, 700)]


def test_a_lease_renewed_near_its_end_is_checkpointed_again() -> None:
    lessor = lessor_with(1, 1000, checkpoints=True)
    lessor.checkpoint(1, 100, 0.0)
    lessor.promote(0.0, 0.0)
    # So little is left that it runs out before another checkpoint.
    assert lessor.next_deadline == 100.0
    lessor.checkpoint(1, 0, 50.0)
    assert lessor.renew(1, 50.0) == 1000
    assert lessor.take_due_checkpoints(349.0) == []
    assert lessor.take_due_checkpoints(350.0) == [(1, 700)]


def test_a_renewal_may_come_before_what_an_election_gave() -> None:
    lessor = lessor_with(1)
    lessor.promote(0.0, 5.0)
    assert lessor.renew(1, 1.0) == 10
    assert lessor.next_deadline == 11.0
    assert lessor.take_expired(11.0, 10) == [1]


def test_a_longer_minimum_holds_for_leases_from_before() -> None:
    database = Database()
    Lessor(database.backend, PRODUCTION).grant(1, 3, 0.0)
    lessor = Lessor(database.backend, PRODUCTION, ttl_seconds_min=5)
    lessor.restore()
    lessor.promote(0.0, 0.0)
    assert lessor.time_to_live(1, 0.0) == (5, 5)


@pytest.mark.parametrize("count", [999, 1000, 4000])
def test_after_an_election_leases_do_not_run_out_all_at_once(count: int) -> None:
    lessor = lessor_with(count, 10)
    finish(lessor.promote_in_slices(50.0, 1.0))
    expiries = sorted(lessor._leases[lease_id].expiry for lease_id in lessor.leases())
    assert expiries[0] == 61.0
    per_second = Counter(int(expiry) for expiry in expiries)
    if count < PRODUCTION.lease_revokes_per_second_max:
        assert per_second == {61: count}
    else:
        # The first second has those that did not need a delay, too.
        assert max(per_second.values()) <= 2 * 750
        assert sum(sorted(per_second.values())[:-1]) <= 750 * (len(per_second) - 1)
        assert expiries[-1] <= 61.0 + count / 750


@pytest.mark.parametrize("seed", range(5))
def test_a_spread_delays_and_never_hastens(seed: int) -> None:
    random = Random(seed)
    lessor = lessor_with(0)
    ttls = {number: random.randrange(2, 5) for number in range(1, 5000)}
    for number, ttl in ttls.items():
        lessor.grant(number, ttl, 0.0)
    lessor.promote(50.0, 1.0)
    expiries = {number: lessor._leases[number].expiry for number in ttls}
    assert all(expiries[number] >= 51.0 + ttl for number, ttl in ttls.items())
    # They queue up behind the first at the pace of the spread, and no further.
    assert max(expiries.values()) == pytest.approx(53.0 + len(ttls) / 750)


def test_a_promotion_is_the_same_in_slices_and_ends_with_a_demotion() -> None:
    lessor = lessor_with(5 * PRODUCTION.lease_slice_items)
    _, slices = finish(lessor.promote_in_slices(5.0, 1.0))
    assert slices >= 10 and lessor.is_primary
    expiries = {number: lease.expiry for number, lease in lessor._leases.items()}
    lessor.promote(5.0, 1.0)
    assert expiries == {number: lease.expiry for number, lease in lessor._leases.items()}
    for suspended in range(slices):
        promotion = lessor.promote_in_slices(5.0, 1.0)
        for _ in range(suspended + 1):
            next(promotion)
        assert not lessor.is_primary and lessor.take_expired(1e9, 10) == []
        lessor.demote()
        assert next(promotion, "ended") == "ended"
        assert not lessor.is_primary
    # One that was overtaken does not touch its successor.
    overtaken = lessor.promote_in_slices(5.0, 1.0)
    next(overtaken)
    lessor.promote(7.0, 1.0)
    assert next(overtaken, "ended") == "ended"
    assert lessor.is_primary and lessor.next_deadline == 18.0


def test_a_lease_with_very_many_keys() -> None:
    lessor = lessor_with(1)
    random = Random(1)
    keys = [random.randbytes(8) for _ in range(20_000)]
    for key in keys:
        lessor.attach(1, key)
    ordered, slices = finish(lessor.sorted_keys_in_slices(1))
    assert (
        ordered == sorted(set(keys))
        and slices >= 2 * len(ordered) // PRODUCTION.lease_slice_items - 1
    )
    lessor.forget(1)
    assert not any(lessor.lease_of(key) for key in keys)


@pytest.mark.parametrize(
    ("ticks", "heartbeat", "expected"),
    [(10, 0.1, 2), (5, 0.01, 1), (10, 0.2, 3), (500, 0.1, 75), (11, 0.1, 2), (14, 0.1, 3)],
)
def test_the_shortest_ttl(ticks: int, heartbeat: float, expected: int) -> None:
    assert ttl_seconds_min(ticks, heartbeat) == expected


def test_no_reference_cycles() -> None:
    gc.collect()
    gc.disable()
    try:
        limits = WorkLimits(lease_checkpoint_seconds=5.0)
        lessor = lessor_with(2000, limits=limits, checkpoints=True)
        lessor.promote(0.0, 1.0)
        for number in range(1, 2000):
            lessor.attach(number % 7 + 1, b"%d" % number)
            lessor.renew(number, 1.0)
        lessor.take_due_checkpoints(6.0)
        for lease_id in lessor.take_expired(1e6, 500):
            finish(lessor.sorted_keys_in_slices(lease_id))
            lessor.forget(lease_id)
        lessor.demote()
        assert gc.collect() == 0
    finally:
        gc.enable()
