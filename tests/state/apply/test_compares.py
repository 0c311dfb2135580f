"""Compares of ranges: one sweep decides what a look at every key would, and no more than that."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.api import requests as api
from kvorum.api.pb.etcdserverpb import Compare, PutRequest, RangeRequest, RequestOp, TxnRequest
from kvorum.api.pb.etcdserverpb import TxnResponse as Response
from kvorum.api.requests import Compare as Compared
from kvorum.api.requests import Txn
from kvorum.state.apply.compares import RangeCompares
from kvorum.state.mvcc.keyvalue import fields_of
from kvorum.state.mvcc.ranges import RangeOptions
from kvorum.state.mvcc.slices import Meter, Slices, run_to_end
from kvorum.state.mvcc.store import Store
from tests.member.harness import Cluster

KEYS = [b"a", b"b", b"c", b"d", b"e"]
ENDS = [*KEYS, b"f", b"\0", b""]
LEASE = 7
PUTS = st.lists(
    st.tuples(
        st.sampled_from(KEYS), st.sampled_from([b"", b"v", b"w"]), st.booleans(), st.booleans()
    )
)


def compare(result: int, target: int, key: bytes, end: bytes, number: int) -> Compared:
    operand = [b"", b"u", b"v", b"w"][number % 4] if target == api.VALUE else number
    return Compared(result, target, key, end, operand)


COMPARES = st.lists(
    st.builds(
        compare,
        st.integers(0, 4),
        st.integers(-1, 5),
        st.sampled_from(KEYS),
        st.sampled_from([end for end in ENDS if end]),
        st.integers(0, 8),
    ),
    min_size=1,
)


def holds(store: Store, each: Compared, revision: int) -> bool:
    """Look at every key, as etcd does."""
    kvs = store.range(RangeOptions(each.key, each.range_end, revision=revision)).kvs
    known = 0 <= each.target <= api.LEASE
    if not kvs and known:
        if each.target == api.VALUE:
            return False
        stored: list[Any] = [0]
    else:
        found = [fields_of(kv) for kv in kvs]
        names = ("version", "create_revision", "mod_revision", "value", "lease")
        stored = [getattr(kv, names[each.target]) if known else each.operand for kv in found]
        stored = stored or [each.operand]
    return all(
        {
            api.EQUAL: value == each.operand,
            api.GREATER: value > each.operand,
            api.LESS: value < each.operand,
            api.NOT_EQUAL: value != each.operand,
        }.get(each.result, True)
        for value in stored
    )


@given(PUTS, COMPARES, COMPARES, st.booleans())
def test_a_sweep_decides_as_a_look_at_every_key(
    puts: list[tuple[bytes, bytes, bool, bool]],
    compares: list[Compared],
    nested: list[Compared],
    is_past: bool,
) -> None:
    member = Cluster(1).leader().running
    store = member.state.store
    member.state.lessor.grant(LEASE, 100, 0.0)
    revisions = [store.revision]
    for key, value, has_lease, is_deleted in puts:
        if is_deleted:
            transaction = store.begin()
            transaction.delete_one(key)
            transaction.commit()
        else:
            store.put(key, value, LEASE * has_lease)
        revisions.append(store.revision)
    revision = revisions[len(revisions) // 2] if is_past else 0
    txn = Txn(compares, [Txn(nested, [], [])], [])
    ranges = RangeCompares(store, txn, revision)
    for each in (*compares, *nested):
        found = run_to_end(ranges.holds(each, Meter(store.limits)))
        assert found == holds(store, each, revision), vars_of(each)


def vars_of(each: Compared) -> tuple[object, ...]:
    return each.result, each.target, each.key, each.range_end, each.operand


# How much is done.


def request(count: int, target: int = Compare.VALUE, *, writes: bool) -> TxnRequest:
    operand: dict[str, Any] = {"value": b"a"} if target == Compare.VALUE else {"create_revision": 0}
    write = RequestOp(request_put=PutRequest(key=b"x", value=b"y"))
    read = RequestOp(request_range=RangeRequest(key=b"x"))
    return TxnRequest(
        compare=[
            # Ranges that differ, and hold the same keys.
            Compare(
                key=b"k",
                range_end=b"l%d" % number,
                target=target,  # type: ignore[arg-type]
                result=Compare.GREATER,
                **operand,
            )
            for number in range(count)
        ],
        success=[write if writes else read],
    )


@pytest.mark.parametrize("writes", [False, True])
def test_many_compares_take_as_many_turns_as_one(writes: bool) -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    for number in range(5_000):
        machine.put(b"k%04d" % number, b"value")
    cluster.settle()
    turns = []
    for count in (1, 100):
        cluster.slices = 50  # looks at the clock until a turn is over
        asked = request(count, writes=writes)
        call = machine.txn(asked) if writes else machine.read_txn(asked)
        taken = 0
        while call not in machine.replies:
            machine.turn()
            taken += 1
        turns.append(taken)
        cluster.slices = 0
        answer = machine.replies[call]
        assert isinstance(answer, bytes) and Response.FromString(answer).succeeded
    assert turns[1] <= turns[0] + 2, turns


def slices_of(store: Store, txn: Txn) -> int:
    """Return how many slices it takes to see that all compares hold."""
    ranges, meter = RangeCompares(store, txn, 0), Meter(store.limits)

    def work() -> Slices[None]:
        for each in txn.compares:
            assert (yield from ranges.holds(each, meter))

    return sum(1 for _ in work())


def test_each_key_is_looked_at_once_whatever_is_compared() -> None:
    member = Cluster(1).leader().running
    for number in range(2_000):
        member.state.store.put(b"k%04d" % number, b"value", 0)
    for target in (api.VALUE, api.CREATE, api.MOD, api.VERSION):
        operand: Any = b"a" if target == api.VALUE else 0

        def made(count: int, target: int = target, operand: Any = operand) -> Txn:
            compares = [
                Compared(api.GREATER, target, b"k", b"l%d" % number, operand)
                for number in range(count)
            ]
            return Txn(compares, [], [])

        alone = slices_of(member.state.store, made(1))
        # Some 250 keys each; many compares are some more work by themselves.
        assert 2_000 / 260 <= alone <= slices_of(member.state.store, made(120)) <= alone + 2
