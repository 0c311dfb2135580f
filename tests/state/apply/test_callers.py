"""The caller goes with a request, and every member decides by what the entry says about it."""

from collections.abc import Callable
from typing import Any

import pytest

from kvorum.api.codec import length_delimited, varint
from kvorum.api.errors import PERMISSION_DENIED, Status
from kvorum.api.pb.etcdserverpb import (
    InternalRaftRequest,
    PutRequest,
    PutResponse,
    RequestHeader,
)
from kvorum.member.waits import Propose, Read, Steps
from kvorum.state.apply import requests
from kvorum.state.apply.callers import Caller, Front
from kvorum.state.apply.execution import APPLIERS
from kvorum.state.apply.state import State
from tests.member.harness import CLIENT, Cluster, Machine

Seen = dict[int, list[tuple[str, int, Front, bytes]]]

ALICE = Caller(Front.GRPC, "alice", 7)
MALLORY = Caller(Front.GRPC, "mallory", 7)
LONG_NAME = "m" * 200


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Let only nobody and alice put; return who asked for which key, by member id."""
    plain = APPLIERS[requests.PUT]
    found: Seen = {}

    def put(state: State, caller: Caller, request: Any, wanted: bool) -> Any:
        asked = (caller.user, caller.revision, caller.front, request.key)
        found.setdefault(state.cluster.local_id, []).append(asked)
        if caller.user not in ("", ALICE.user):
            return PERMISSION_DENIED
        return plain(state, caller, request, wanted)

    monkeypatch.setitem(APPLIERS, requests.PUT, put)
    return found


def body_of(key: bytes) -> bytes:
    return PutRequest(key=key, value=b"v").SerializeToString()


def put_as(machine: Machine, caller: Caller, key: bytes) -> int:
    return machine.propose(requests.PUT, body_of(key), caller=caller)


def has(machine: Machine, key: bytes) -> bool:
    return machine.running.state.store.get(key) is not None


@pytest.mark.parametrize("is_leader", [True, False], ids=["leader", "follower"])
def test_all_members_decide_alike_and_who_waits_is_answered(seen: Seen, is_leader: bool) -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    proposer = leader if is_leader else next(each for each in cluster if each is not leader)
    cluster.settle()
    calls = {
        key: put_as(proposer, caller, key)
        for caller, key in ((ALICE, b"a"), (MALLORY, b"b"), (CLIENT, b"c"))
    }
    answers = {key: cluster.answer(proposer, call) for key, call in calls.items()}
    cluster.settle()
    assert answers[b"b"] == PERMISSION_DENIED
    assert not any(isinstance(answers[key], Status) for key in (b"a", b"c"))
    for machine in cluster:
        assert [has(machine, key) for key in (b"a", b"b", b"c")] == [True, False, True]
        # On every member, the put of nobody's went the short way, past the applier.
        assert seen[machine.running.id] == [
            ("alice", 7, Front.LOG, b"a"),
            ("mallory", 7, Front.LOG, b"b"),
        ]


def test_a_member_that_replays_its_log_decides_as_before(seen: Seen) -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    late = next(each for each in cluster if each is not leader)
    cluster.settle()
    for caller, key in ((ALICE, b"a"), (MALLORY, b"b"), (CLIENT, b"c")):
        cluster.answer(leader, put_as(leader, caller, key))
    cluster.settle()
    number = late.running.id
    before = seen.pop(number)
    late.kill()
    late.start()
    cluster.wait(lambda: has(late, b"c"))
    assert seen[number] == before
    assert [has(late, key) for key in (b"a", b"b", b"c")] == [True, False, True]


def test_requests_of_one_user_are_told_apart() -> None:
    cluster = Cluster(3)
    follower = next(each for each in cluster if each is not cluster.leader())
    cluster.settle()
    calls = [put_as(follower, ALICE, b"%d" % number) for number in range(20)]
    answers = [cluster.success(follower, call) for call in calls]
    revisions = [PutResponse.FromString(each).header.revision for each in answers]
    assert revisions == list(range(revisions[0], revisions[0] + 20))
    for number, revision in enumerate(revisions):
        assert follower.running.state.store.revision_of(b"%d" % number) >> 32 == revision


def headers_of(user: bytes) -> dict[str, bytes]:
    """Return headers that name a user, in forms that Kvorum never writes."""
    name, revision = length_delimited(b"\x12", user), b"\x18\x07"
    return {
        "the id last": name + revision + b"\x08\x2a",
        "the id last, as long as ours": name + revision + b"\x08" + varint(1 << 63 | 5),
        "no revision": b"\x08\x2a" + name,
        "fields that nobody knows": b"\x20\x01\x08\x2a" + name + b"\x2a\x03\x08\x01\x08\x3d1234",
        "the user twice": b"\x08\x2a" + length_delimited(b"\x12", b"alice") + name,
    }


PLANTED: dict[str, Callable[[bytes, bytes], bytes]] = {
    "behind": lambda put, header: put + header,
    "before": lambda put, header: header + put,
}


@pytest.mark.parametrize("place", PLANTED)
@pytest.mark.parametrize("user", [b"mallory", LONG_NAME.encode()], ids=["short", "long"])
@pytest.mark.parametrize("kind", headers_of(b""))
def test_headers_of_other_members_are_read_by_all_alike(
    seen: Seen, kind: str, user: bytes, place: str
) -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.settle()
    put = length_delimited(b"\x22", body_of(b"b"))
    header = length_delimited(b"\xa2\x06", headers_of(user)[kind])
    call = put_as(leader, CLIENT, b"c")
    leader.running.replica.node.propose(PLANTED[place](put, header))
    cluster.success(leader, call)
    cluster.settle()
    for machine in cluster:
        assert [(each[0], each[3]) for each in seen[machine.running.id]] == [(user.decode(), b"b")]
        assert [has(machine, key) for key in (b"b", b"c")] == [False, True]


def ends_as(encoded_id: bytes) -> bytes:
    """Return an entry with a user whose name ends like an entry with this id."""
    name = b"mallory" + b"\xa2\x06" + varint(1 + len(encoded_id)) + b"\x08" + encoded_id
    header = b"\x08\x2a" + length_delimited(b"\x12", name)
    return length_delimited(b"\x22", body_of(b"b")) + length_delimited(b"\xa2\x06", header)


def test_an_entry_that_ends_as_another_is_not_taken_for_it(seen: Seen) -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.settle()
    call = put_as(leader, CLIENT, b"c")
    (encoded_id,) = leader.running.replica.proposals.ids
    leader.running.replica.node.propose(ends_as(encoded_id))
    cluster.success(leader, call)
    cluster.settle()
    for machine in cluster:
        assert [each[3] for each in seen[machine.running.id]] == [b"b"]
        assert [has(machine, key) for key in (b"b", b"c")] == [False, True]


def test_a_user_whose_name_ends_as_the_entrys_id_is_a_user_all_the_same(seen: Seen) -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.settle()
    encoded_id = varint(leader.running.replica.ids.next_id() + 1)
    name = (b"mallory" + encoded_id).decode("utf-8", "surrogateescape")
    call = put_as(leader, Caller(Front.GRPC, name), b"b")
    assert leader.running.replica.proposals.ids == [encoded_id]
    assert cluster.answer(leader, call) == PERMISSION_DENIED
    cluster.settle()
    for machine in cluster:
        assert seen[machine.running.id] == [(name, 0, Front.LOG, b"b")]
        assert not has(machine, b"b")


def test_an_entry_of_an_earlier_life_with_the_same_id_is_not_taken_for_a_request() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.settle()
    call = put_as(leader, CLIENT, b"c")
    (encoded_id,) = leader.running.replica.proposals.ids
    (payload,) = leader.running.replica.proposals.payloads
    header = RequestHeader(ID=requests.decode(payload)[1])
    old = InternalRaftRequest(header=header, put=PutRequest(key=b"old", value=b"v"))
    leader.running.replica.node.propose(old.SerializeToString())
    assert old.SerializeToString().endswith(encoded_id)
    answer = PutResponse.FromString(cluster.success(leader, call))
    cluster.settle()
    for machine in cluster:
        assert [has(machine, key) for key in (b"old", b"c")] == [True, True]
        assert machine.running.state.store.revision_of(b"c") >> 32 == answer.header.revision


def test_a_procedure_proposes_and_reads_for_its_caller(seen: Seen) -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    readers: list[Caller] = []

    def read(_state: State, caller: Caller, _request: object) -> bytes:
        readers.append(caller)
        return b"read"

    def steps() -> Steps:
        yield Propose(requests.PUT, body_of(b"a"))
        answer: bytes = yield Read(read, None, linearizable=True)
        return answer

    call = cluster.next_call()
    machine.running.start(call, ALICE, steps())
    assert cluster.answer(machine, call) == b"read"
    assert seen[machine.running.id] == [("alice", 7, Front.LOG, b"a")]
    assert readers == [ALICE]


class Lobby:
    """An origin that knows one client."""

    def remote(self, call: int) -> str:
        return "10.0.0.1:5" if call == 3 else ""

    def certificate_name(self, call: int) -> str:
        return "al\nice" if call == 3 else ""


def test_a_caller_is_described_by_what_is_known_of_its_call() -> None:
    caller = Caller(Front.GRPC, "ali\x1bce", 1, Lobby())
    expected = "'ali\\x1bce' over gRPC from 10.0.0.1:5 with a certificate of 'al\\nice'"
    assert caller.describe(3) == expected
    assert Caller(Front.GRPC, origin=Lobby()).describe(4) == "nobody over gRPC"
    assert Caller(Front.PEER).describe(3) == "nobody from another member"
