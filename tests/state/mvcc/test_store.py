"""The store against a list of all events, over crashes between any two steps."""

import pytest
from hypothesis import settings

from tests.state.mvcc.machine import StoreMachine

TestStore = StoreMachine.TestCase
TestStore.settings = settings(stateful_step_count=50, deadline=None)


@pytest.mark.parametrize("other", [b"a", b"b"], ids=["alone", "beside another"])
def test_a_key_that_is_deleted_and_put_at_one_revision_is_hashed_as_etcd_does(other: bytes) -> None:
    machine = StoreMachine()
    machine.write_some([("put", b"a", b"", 0), ("put", other, b"", 0)])
    machine.compact(back=0)
    again = (("put", b"a", b"", 0), ("delete", b"a", b""), ("put", b"a", b"", 0))
    machine.execute("txn", (again,))
    machine.begin_hash(back=0)
    machine.finish_hash()
    machine.teardown()
