"""Planted bugs of the client library: of its watches, leases and calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from kvorum.api.pb.etcdserverpb import WatchRequest, WatchResponse
from kvorum.client import rpcs
from kvorum.client.lease_keeper import KeptLease, LeaseKeeper
from kvorum.client.watch_set import Watch, WatchSet
from kvorum.sim.library import process


@contextmanager
def resume_a_revision_too_late() -> Iterator[None]:
    """Make a watch that lost its stream skip the revision that it waits for."""
    original = WatchSet._create_request

    def create_request(watching: WatchSet, watch: Watch) -> bytes:
        was_created = watch.is_created
        request = original(watching, watch)
        if was_created:
            watch.options.start_revision += 1
            request = WatchRequest(create_request=watch.options).SerializeToString()
        return request

    with patch.object(WatchSet, "_create_request", create_request):
        yield


@contextmanager
def tell_each_fragment_by_itself() -> Iterator[None]:
    """Treat one fragment of a revision as all of it, so that the watch skips the rest."""
    original = WatchSet._queue_changes

    def tell(watching: WatchSet, watch: Watch, response: WatchResponse) -> None:
        parts = [*watch.parts, response]
        watch.parts.clear()
        for part in parts:
            original(watching, watch, part)

    with patch.object(WatchSet, "_queue_changes", tell):
        yield


@contextmanager
def count_a_renewal_from_its_answer() -> Iterator[None]:
    """Count a lease's time from the arrival of the answer instead of from the request."""
    original = LeaseKeeper._take_message

    def take_message(keeping: LeaseKeeper, message: bytes) -> None:
        for kept in keeping._kept.values():
            if kept.asked_at is not None:
                kept.asked_at = keeping._core.now
        original(keeping, message)

    with patch.object(LeaseKeeper, "_take_message", take_message):
        yield


@contextmanager
def ask_a_clock_that_a_suspend_stops() -> Iterator[None]:
    """Rely on a lease by `time.monotonic`, which stands still while the machine is suspended."""

    def monotonic(clocks: Any) -> Any:
        return clocks.monotonic

    with patch.object(process, "choose_boot_clock", monotonic):
        yield


@contextmanager
def rely_on_a_lease_until_a_timer_ends_it() -> Iterator[None]:
    """Consider a lease lost only after a timer noticed that, without reading the clock."""
    original = LeaseKeeper.pass_time
    look = KeptLease.find_loss

    def pass_time(keeping: LeaseKeeper, now: float) -> None:
        for kept in keeping._kept.values():
            look(kept, now)
        original(keeping, now)

    with (
        patch.object(KeptLease, "find_loss", lambda kept, _: kept.error),
        patch.object(LeaseKeeper, "pass_time", pass_time),
    ):
        yield


@contextmanager
def make_a_write_again() -> Iterator[None]:
    """Repeat a put whose answer was lost, as if puts were safe to repeat."""
    with patch.object(rpcs, "PUT", rpcs.PUT._replace(is_repeatable=True)):
        yield
