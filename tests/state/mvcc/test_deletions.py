"""What the deletion of many keys costs: few calls of Python for each, and few slices."""

import sys
from typing import Any

from kvorum.api.limits import PRODUCTION
from kvorum.state.lease import Lessor
from kvorum.state.mvcc.restore import restore_store
from kvorum.state.mvcc.slices import run_to_end
from tests.database import Database
from tests.state.mvcc.machine import Recorder

KEYS = 8 * PRODUCTION.slice_keys
LEASE = 7
CALLS_PER_KEY_MAX = 9.0


def test_the_keys_of_a_lease_are_deleted_by_runs() -> None:
    database = Database()
    lessor = Lessor(database.backend, PRODUCTION)
    lessor.restore()
    lessor.grant(LEASE, 100, 0.0)
    store = restore_store(database.backend, lessor, Recorder(), PRODUCTION)
    keys = [b"k%05d" % number for number in range(KEYS)]
    for key in keys:
        store.put(key, b"v", LEASE)
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    transaction = store.begin()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        run_to_end(transaction.delete_keys_slices(keys))
    finally:
        sys.setprofile(before)
    transaction.commit()
    assert lessor.key_count(LEASE) == 0 and store.key_count == 0
    assert calls / KEYS < CALLS_PER_KEY_MAX, calls / KEYS
    database.close()
