"""Lock and Election with several contenders: who waits, who is next, who gave up."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api import errors
from kvorum.api.errors import Code, Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.v3electionpb import (
    CampaignRequest,
    CampaignResponse,
    LeaderRequest,
    ProclaimRequest,
    ResignRequest,
)
from kvorum.api.pb.v3lockpb import LockRequest, LockResponse, UnlockRequest
from kvorum.network.edge.interface import EdgeEventKind
from tests.server.rpc.harness import Harness, Stream

LOCK = "/v3lockpb.Lock/Lock"
CAMPAIGN = "/v3electionpb.Election/Campaign"


@pytest.fixture
def harness() -> Harness:
    harness = Harness()
    for lease in range(1, 6):
        harness.ask("Lease/LeaseGrant", pb.LeaseGrantRequest(ID=lease, TTL=1000))
    return harness


def lock(harness: Harness, lease: int, name: bytes = b"l") -> int:
    return harness.begin(LOCK, LockRequest(name=name, lease=lease))


def campaign(harness: Harness, lease: int, value: bytes = b"") -> int:
    return harness.begin(CAMPAIGN, CampaignRequest(name=b"e", lease=lease, value=value))


def is_waiting(harness: Harness, call: int) -> bool:
    assert call in harness.edge.waiting, "the edge tells when its client is gone"
    return call not in harness.edge.replies


def key_of(harness: Harness, call: int) -> bytes:
    result = harness.answer(call)
    assert isinstance(result, bytes), result
    return LockResponse.FromString(result).key


def leader_of(harness: Harness, call: int) -> Any:
    result = harness.answer(call)
    assert isinstance(result, bytes), result
    return CampaignResponse.FromString(result).leader


def unlock(harness: Harness, key: bytes) -> None:
    assert not isinstance(harness.ask("Lock/Unlock", UnlockRequest(key=key)), Status)


def keys(harness: Harness, prefix: bytes) -> list[bytes]:
    found = harness.ask("KV/Range", pb.RangeRequest(key=prefix + b"/", range_end=prefix + b"0"))
    return [kv.key for kv in found.kvs]


def test_a_lock_passes_on_in_the_order_of_arrival(harness: Harness) -> None:
    calls = [lock(harness, lease) for lease in (3, 1, 2)]
    for place, (call, lease) in enumerate(zip(calls, (3, 1, 2), strict=True)):
        assert all(is_waiting(harness, later) for later in calls[place + 1 :])
        assert key_of(harness, call) == b"l/%d" % lease
        unlock(harness, b"l/%d" % lease)
    assert keys(harness, b"l") == []


def test_the_same_lease_has_the_lock_already(harness: Harness) -> None:
    assert key_of(harness, lock(harness, 1)) == key_of(harness, lock(harness, 1))


def test_locks_of_other_names_are_others(harness: Harness) -> None:
    key_of(harness, lock(harness, 1))
    assert key_of(harness, lock(harness, 2, b"m")) == b"m/2"
    assert key_of(harness, lock(harness, 2, b"")) == b"/2"


def test_a_lock_without_a_lease_gets_one(harness: Harness) -> None:
    key = key_of(harness, lock(harness, 0))
    lease = int(key.removeprefix(b"l/"), 16)
    left = harness.ask("Lease/LeaseTimeToLive", pb.LeaseTimeToLiveRequest(ID=lease, keys=True))
    assert (left.grantedTTL, list(left.keys)) == (60, [key])


def test_a_lock_of_a_negative_lease(harness: Harness) -> None:
    harness.ask("Lease/LeaseGrant", pb.LeaseGrantRequest(ID=-255, TTL=100))
    assert key_of(harness, lock(harness, -255)) == b"l/-ff"


def test_who_gives_up_leaves_the_queue(harness: Harness) -> None:
    first, second, third = (lock(harness, lease) for lease in (1, 2, 3))
    harness.happen((EdgeEventKind.ENDED, second, None))
    assert keys(harness, b"l") == [b"l/1", b"l/3"]
    unlock(harness, key_of(harness, first))
    assert key_of(harness, third) == b"l/3"
    assert second not in harness.edge.replies


def test_a_waiting_lock_whose_lease_ran_out(harness: Harness) -> None:
    first, second = lock(harness, 1), lock(harness, 2)
    harness.ask("Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=2))
    assert is_waiting(harness, second)
    unlock(harness, key_of(harness, first))
    assert harness.answer(second) == errors.SESSION_EXPIRED


def test_the_lock_of_a_lease_that_runs_out_passes_on(harness: Harness) -> None:
    harness.ask("Lease/LeaseGrant", pb.LeaseGrantRequest(ID=9, TTL=5))
    first, second = lock(harness, 9), lock(harness, 2)
    key_of(harness, first)
    harness.pass_time(4.0)
    assert is_waiting(harness, second)
    harness.pass_time(4.0)
    assert key_of(harness, second) == b"l/2"


def test_a_lock_with_an_unknown_lease(harness: Harness) -> None:
    expected = Status(Code.UNKNOWN, errors.LEASE_NOT_FOUND.text)
    assert harness.answer(lock(harness, 77)) == expected
    empty = Status(Code.UNKNOWN, errors.EMPTY_KEY.text)
    assert harness.ask("Lock/Unlock", UnlockRequest()) == empty


def test_leadership_passes_on(harness: Harness) -> None:
    first, second = campaign(harness, 1, b"one"), campaign(harness, 2, b"two")
    leader = leader_of(harness, first)
    assert (leader.name, leader.key, leader.lease) == (b"e", b"e/1", 1)
    assert harness.ask("Election/Leader", LeaderRequest(name=b"e")).kv.value == b"one"
    assert is_waiting(harness, second)
    resigned = harness.ask("Election/Resign", ResignRequest(leader=leader))
    assert leader_of(harness, second).key == b"e/2"
    assert resigned.header.revision == harness.member.state.store.revision
    assert harness.ask("Election/Leader", LeaderRequest(name=b"e")).kv.value == b"two"
    proclaim = ProclaimRequest(leader=leader, value=b"late")
    assert harness.ask("Election/Proclaim", proclaim) == errors.ELECTION_NOT_LEADER
    # To resign too late is no error.
    assert not isinstance(harness.ask("Election/Resign", ResignRequest(leader=leader)), Status)


def test_a_second_campaign_of_a_leader_proclaims(harness: Harness) -> None:
    leader = leader_of(harness, campaign(harness, 1, b"one"))
    again = leader_of(harness, campaign(harness, 1, b"two"))
    assert again == leader
    assert harness.ask("Election/Leader", LeaderRequest(name=b"e")).kv.value == b"two"


def test_a_campaign_that_is_given_up(harness: Harness) -> None:
    leader_of(harness, campaign(harness, 1))
    second = campaign(harness, 2)
    harness.happen((EdgeEventKind.ENDED, second, None))
    assert keys(harness, b"e") == [b"e/1"]


def test_elections_need_a_leader_where_they_speak_of_one(harness: Harness) -> None:
    assert harness.ask("Election/Proclaim", ProclaimRequest()) == errors.LEADER_FIELD_MISSING
    assert harness.ask("Election/Resign", ResignRequest()) == errors.LEADER_FIELD_MISSING
    leader = LeaderRequest(name=b"nobody")
    assert harness.ask("Election/Leader", leader) == errors.ELECTION_NO_LEADER


def observe(harness: Harness) -> Stream:
    stream = harness.open("Election/Observe")
    stream.send(LeaderRequest(name=b"e"))
    stream.half_close()
    return stream


def values(stream: Stream) -> list[bytes]:
    return [response.kv.value for response in stream.received()]


def test_observers_see_every_value_and_every_leader(harness: Harness) -> None:
    early = observe(harness)
    assert values(early) == []
    leader = leader_of(harness, campaign(harness, 1, b"1"))
    late = observe(harness)
    for value in (b"2", b"3"):
        harness.ask("Election/Proclaim", ProclaimRequest(leader=leader, value=value))
    campaign(harness, 2, b"4")
    harness.ask("Election/Resign", ResignRequest(leader=leader))
    assert values(early) == values(late) == [b"1", b"2", b"3", b"4"]
    early.cancel()
    late.cancel()
    harness.settle()
    assert harness.member.hub.streams_open == 0


def test_an_observer_that_was_held_back_misses_nothing(harness: Harness) -> None:
    leader = leader_of(harness, campaign(harness, 1, b"0"))
    stream = observe(harness)
    harness.edge.pending[stream.call] = 1 << 20
    wanted = [b"%d" % number for number in range(50)]
    for value in wanted[1:]:
        harness.ask("Election/Proclaim", ProclaimRequest(leader=leader, value=value))
    assert len(harness.edge.sent[stream.call]) < 5
    del harness.edge.pending[stream.call]
    stream.writable()
    harness.settle()
    assert values(stream) == wanted


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["lock", "unlock", "cancel", "revoke"]), st.integers(1, 5)),
        max_size=40,
    )
)
@settings(max_examples=60, deadline=None)
def test_at_most_one_holds_the_lock(steps: list[tuple[str, int]]) -> None:
    harness = Harness()
    calls: dict[int, int] = {}
    for step, lease in steps:
        harness.ask("Lease/LeaseGrant", pb.LeaseGrantRequest(ID=lease, TTL=1000))
        if step == "lock" and lease not in calls:
            calls[lease] = lock(harness, lease)
        elif step == "unlock" and calls.get(lease) in harness.edge.replies:
            unlock(harness, b"l/%d" % lease)
            del calls[lease]
        elif step == "cancel" and lease in calls and calls[lease] not in harness.edge.replies:
            harness.happen((EdgeEventKind.ENDED, calls.pop(lease), None))
        elif step == "revoke":
            harness.ask("Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=lease))
        held = [
            lease
            for lease, call in calls.items()
            if isinstance(harness.edge.replies.get(call), bytes)
            and b"l/%d" % lease in keys(harness, b"l")
        ]
        assert len(held) <= 1
    # A call that waits gets the lock when those before it are gone.
    for lease, call in sorted(calls.items(), key=lambda each: each[1]):
        result = harness.answer(call)
        if isinstance(result, bytes):
            unlock(harness, b"l/%d" % lease)
        else:
            assert result == errors.SESSION_EXPIRED
