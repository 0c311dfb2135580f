"""Leases across leaders: none runs out before its time, all run out in the end."""

from random import Random

import pytest

from tests.state.lease.cluster import (
    EXTEND_SECONDS,
    INTERVAL_SECONDS,
    RETRY_SECONDS,
    TURN_SECONDS,
    LeaseCluster,
)


@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.parametrize("seed", range(15))
def test_no_lease_expires_early_and_all_expire(seed: int, checkpoints: bool) -> None:
    random = Random(seed)
    cluster = LeaseCluster(checkpoints=checkpoints)
    promised: dict[int, float] = {}
    ttls: dict[int, int] = {}
    for _ in range(800):
        # What a holder was told before the turn holds in it.
        cluster.turn(is_lost=random.random() < 0.1, is_slow=random.random() < 0.9)
        for lease_id, revoked in cluster.revoked.items():
            assert revoked >= promised[lease_id]
        chance = random.random()
        if chance < 0.05:
            lease_id = random.getrandbits(40) + 1
            ttls[lease_id] = ttl = random.randrange(2, 40)
            cluster.grant(lease_id, ttl)
            promised[lease_id] = cluster.now + ttl
        elif chance < 0.4 and ttls:
            lease_id = random.choice(list(ttls))
            if cluster.renew(lease_id, is_lost=random.random() < 0.3):
                promised[lease_id] = cluster.now + ttls[lease_id]
        elif chance < 0.45:
            cluster.elect(random.randrange(3), is_lost=random.random() < 0.5)
        elif chance < 0.47:
            cluster.restart(random.randrange(3))
    assert cluster.revoked, "nothing was ever revoked"
    # One leader and no more renewals: everything goes.
    cluster.pass_time(max(ttls.values()) + EXTEND_SECONDS + RETRY_SECONDS + 1)
    assert set(cluster.revoked) == set(ttls)
    assert [len(lessor) for lessor in cluster.lessors] == [0, 0, 0]
    cluster.close()


def test_checkpoints_survive_any_number_of_leaders() -> None:
    # etcd 17132: a later change of the leader brought a checkpointed lease back to its full TTL.
    ttl, term_seconds = 300, 7.0
    cluster = LeaseCluster(checkpoints=True)
    cluster.grant(1, ttl)
    elections = 0
    while not cluster.revoked:
        cluster.pass_time(term_seconds)
        elections += 1
        if elections % 3 == 0:
            cluster.restart(cluster.leader)
        else:
            cluster.elect((cluster.leader + 1) % 3)
        # Every leader takes a lease at least so much further.
        gained = elections * (INTERVAL_SECONDS - EXTEND_SECONDS - 1)
        left = cluster.primary.time_to_live(1, cluster.now)
        assert left is None or left.remaining <= max(ttl - gained, INTERVAL_SECONDS) + 1
        if left is not None and left.remaining <= INTERVAL_SECONDS + EXTEND_SECONDS:
            cluster.pass_time(INTERVAL_SECONDS + EXTEND_SECONDS + TURN_SECONDS)
    assert cluster.revoked[1] >= ttl
    cluster.close()


def test_without_checkpoints_a_leader_gives_the_whole_ttl_again() -> None:
    cluster = LeaseCluster(checkpoints=False)
    cluster.grant(1, 20)
    cluster.pass_time(7.0)
    cluster.elect(1)
    left = cluster.primary.time_to_live(1, cluster.now)
    assert left is not None and left.remaining == 20 + EXTEND_SECONDS
    cluster.close()


def test_a_checkpoint_on_its_way_undoes_no_renewal() -> None:
    cluster = LeaseCluster(checkpoints=True)
    cluster.grant(1, 60)
    while len(cluster.log) < 2:
        cluster.turn(is_slow=True)
    # A clearance between the two is not enough.
    first, second = cluster.log
    cluster.log = [first]
    cluster.commit()
    cluster.checkpoint(1, 0)
    cluster.log = [second]
    assert not cluster.renew(1, is_lost=True)
    assert cluster.renew(1)
    cluster.elect(1)
    left = cluster.primary.time_to_live(1, cluster.now)
    assert left is not None and left.remaining == 60 + EXTEND_SECONDS
    cluster.close()


def test_a_renewal_waits_for_its_checkpoint() -> None:
    # Otherwise the next leader would go by the old checkpoint, and break the promise.
    cluster = LeaseCluster(checkpoints=True)
    cluster.grant(1, 60)
    cluster.pass_time(30.0)
    cluster.elect(1)
    assert not cluster.renew(1, is_lost=True)
    assert cluster.renew(1)
    cluster.elect(2)
    left = cluster.primary.time_to_live(1, cluster.now)
    assert left is not None and left.remaining == 60 + EXTEND_SECONDS
    cluster.close()
