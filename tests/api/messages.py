"""Requests for keys, as hypothesis makes them: small alphabets, and every edge of a number."""

from typing import Any

from hypothesis import strategies as st

from kvorum.api.pb.etcdserverpb import (
    Compare,
    DeleteRangeRequest,
    PutRequest,
    RangeRequest,
    RequestOp,
    TxnRequest,
)

EDGES = [edge + step for edge in (1 << shift for shift in range(0, 63, 7)) for step in (-1, 0, 1)]

int64s = st.one_of(
    st.just(0), st.integers(0, 3), st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from(EDGES)
)
keys = st.one_of(st.binary(min_size=1, max_size=3), st.binary(min_size=120, max_size=140))
ends = st.one_of(st.just(b""), st.just(b"\0"), keys)
values = st.one_of(st.binary(max_size=3), st.integers(16380, 16390).map(bytes))
flags = st.booleans()

puts = st.builds(
    PutRequest,
    key=keys,
    value=values,
    lease=int64s,
    prev_kv=flags,
    ignore_value=flags,
    ignore_lease=flags,
)
ranges = st.builds(
    RangeRequest,
    key=keys,
    range_end=ends,
    limit=int64s,
    revision=int64s,
    sort_order=st.integers(0, 4),
    sort_target=st.integers(0, 6),
    serializable=flags,
    keys_only=flags,
    count_only=flags,
    min_mod_revision=int64s,
    max_mod_revision=int64s,
    min_create_revision=int64s,
    max_create_revision=int64s,
)
simple_ranges = st.builds(RangeRequest, key=keys, serializable=flags)
deletes = st.builds(DeleteRangeRequest, key=keys, range_end=ends, prev_kv=flags)

_OPERANDS = ("version", "create_revision", "mod_revision", "value", "lease")


@st.composite
def compares(draw: st.DrawFn) -> Compare:
    target = draw(st.integers(0, 4))
    fields: dict[str, Any] = {
        "result": draw(st.integers(0, 4)),
        "target": target,
        "key": draw(keys),
        _OPERANDS[target]: draw(values if target == 3 else int64s),
    }
    return Compare(**fields)


operations = st.one_of(
    st.builds(RequestOp, request_put=puts),
    st.builds(RequestOp, request_range=st.one_of(ranges, simple_ranges)),
    st.builds(RequestOp, request_delete_range=deletes),
)


def transactions(of: st.SearchStrategy[RequestOp]) -> st.SearchStrategy[TxnRequest]:
    few = st.lists(of, max_size=3)
    return st.builds(TxnRequest, compare=st.lists(compares(), max_size=3), success=few, failure=few)


txns = transactions(
    st.recursive(
        operations,
        lambda inner: st.builds(RequestOp, request_txn=transactions(inner)),
        max_leaves=5,
    )
)
