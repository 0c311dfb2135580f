"""Rows of leases: protobuf's bytes, any id, and damage that is noticed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api.pb.leasepb import Lease as LeaseMessage
from kvorum.state.lease import LeaseRowError
from kvorum.state.lease.lease import Lease, lease_of_row, row_key, row_value

IDS = st.integers(-(1 << 63), (1 << 63) - 1).filter(bool)


@settings(deadline=None)
@given(IDS, st.integers(1, 9 * 10**9), st.integers(0, 9 * 10**9))
def test_a_row_is_what_protobuf_writes(lease_id: int, ttl: int, remaining: int) -> None:
    message = LeaseMessage(ID=lease_id, TTL=ttl, RemainingTTL=remaining)
    key, value = row_key(lease_id), row_value(Lease(lease_id, ttl, remaining))
    assert value == message.SerializeToString()
    assert int.from_bytes(key, "big", signed=True) == lease_id and len(key) == 8
    again = lease_of_row(key, value)
    assert (again.id, again.ttl, again.remaining) == (lease_id, ttl, remaining)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (row_key(1), b"\xff"),
        (row_key(1), row_value(Lease(2, 10))),
        (row_key(1), b""),
        (b"\x01", row_value(Lease(1, 10))),
    ],
)
def test_a_damaged_row_is_refused(key: bytes, value: bytes) -> None:
    with pytest.raises(LeaseRowError, match=f"row {key.hex()} = {value.hex()}"):
        lease_of_row(key, value)
