"""Planted bugs of answers: to transactions, ranges, leases, locks."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from kvorum.api.requests import Txn
from kvorum.member import leases
from kvorum.member.procedures import Procedures
from kvorum.server.rpc import sessions
from kvorum.state.apply import transactions
from kvorum.state.apply.state import State
from kvorum.state.lease.lessor import Lessor
from kvorum.state.mvcc.ranges import RangeOptions, RangeResult
from kvorum.state.mvcc.store import Store


@contextmanager
def miss_the_last_compare() -> Iterator[None]:
    """Check all compares of a transaction except the last, if there are several."""
    original = transactions.txn

    def txn(state: State, request: Txn, wanted: bool) -> Any:
        compares = request.compares[:-1] or request.compares
        return original(state, Txn(compares, request.success, request.failure), wanted)

    with patch.object(transactions, "txn", txn):
        yield


@contextmanager
def serve_a_range_across_two_revisions() -> Iterator[None]:
    """Read the second half of a range at the store's then current revision."""
    original = Store.range_slices

    def range_slices(store: Store, options: RangeOptions) -> Generator[None, None, RangeResult]:
        first = yield from original(store, options)
        if options.revision or not options.range_end or len(first.kvs) < 2:
            return first
        for _ in range(4):
            yield
        second = yield from original(store, options)
        half = len(first.kvs) // 2
        kvs = first.kvs[:half] + second.kvs[half : len(first.kvs)]
        return RangeResult(kvs, first.count, first.more, first.revision)

    with patch.object(Store, "range_slices", range_slices):
        yield


@contextmanager
def keep_a_lease_alive_on_a_deposed_leader() -> Iterator[None]:
    """Renew leases without checking when the leadership was last confirmed."""
    with patch.object(leases, "is_confirmed", lambda _: True):
        yield


@contextmanager
def end_leases_early_after_an_election() -> Iterator[None]:
    """Make a new leader count leases from the grant, and ignore later renewals."""
    original = Lessor.promote

    def promote(lessor: Lessor, now: float, extension: float) -> None:
        original(lessor, now - 3.0, extension)

    with patch.object(Lessor, "promote", promote):
        yield


@contextmanager
def skip_the_queue_of_a_lock() -> Iterator[None]:
    """Wait only for the deletion of the queue's oldest key, not of all older keys."""
    original = sessions.wait_for_older

    def wait_for_older(name: bytes, own_revision: int) -> Any:
        waiting = original(name, own_revision)
        try:
            waited = next(waiting)
            while True:
                answer = yield waited
                if type(waited).__name__ == "KeyDeleted":
                    return
                waited = waiting.send(answer)
        except StopIteration:
            return

    with patch.object(sessions, "wait_for_older", wait_for_older):
        yield


@contextmanager
def keep_procedures_of_clients_that_left() -> Iterator[None]:
    """Continue calls after their clients have left."""

    def cancel(_procedures: Procedures, _call: int) -> None:
        pass

    with patch.object(Procedures, "cancel", cancel):
        yield
