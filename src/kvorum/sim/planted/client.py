"""Planted bugs of the client library: of its watches, leases and calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from kvorum.api.pb.etcdserverpb import WatchRequest, WatchResponse
from kvorum.client import rpcs
from kvorum.client.keeping import Keeping, KeptLease
from kvorum.client.watching import Watch, Watching
from kvorum.sim.library import process


@contextmanager
def resume_a_revision_too_late() -> Iterator[None]:
    """Make a watch that lost its stream skip the revision that it waits for."""
    original = Watching._create_request

    def create_request(watching: Watching, watch: Watch) -> bytes:
        was_created = watch.is_created
        request = original(watching, watch)
        if was_created:
            watch.options.start_revision += 1
            request = WatchRequest(create_request=watch.options).SerializeToString()
        return request

    with patch.object(Watching, "_create_request", create_request):
        yield


@contextmanager
def tell_each_fragment_by_itself() -> Iterator[None]:
    """Treat one fragment of a revision as all of it, so that the watch skips the rest."""
    original = Watching._tell

    def tell(watching: Watching, watch: Watch, response: WatchResponse) -> None:
        parts = [*watch.parts, response]
        watch.parts.clear()
        for part in parts:
            original(watching, watch, part)

    with patch.object(Watching, "_tell", tell):
        yield


@contextmanager
def count_a_renewal_from_its_answer() -> Iterator[None]:
    """Count a lease's time from the arrival of the answer instead of from the request."""
    original = Keeping._take_message

    def take_message(keeping: Keeping, message: bytes) -> None:
        for kept in keeping._kept.values():
            if kept.asked_at is not None:
                kept.asked_at = keeping._core.now
        original(keeping, message)

    with patch.object(Keeping, "_take_message", take_message):
        yield


@contextmanager
def ask_a_clock_that_a_suspend_stops() -> Iterator[None]:
    """Rely on a lease by `time.monotonic`, which stands still while the machine is suspended."""

    def monotonic(clocks: Any) -> Any:
        return clocks.monotonic

    with patch.object(process, "lasting_clock", monotonic):
        yield


@contextmanager
def rely_on_a_lease_until_a_timer_ends_it() -> Iterator[None]:
    """Consider a lease lost only after a timer noticed that, without reading the clock."""
    original = Keeping.pass_time
    look = KeptLease.lost

    def pass_time(keeping: Keeping, now: float) -> None:
        for kept in keeping._kept.values():
            look(kept, now)
        original(keeping, now)

    with (
        patch.object(KeptLease, "lost", lambda kept, _: kept.error),
        patch.object(Keeping, "pass_time", pass_time),
    ):
        yield


@contextmanager
def make_a_write_again() -> Iterator[None]:
    """Repeat a put whose answer was lost, as if puts were safe to repeat."""
    with patch.object(rpcs, "PUT", rpcs.PUT._replace(is_repeatable=True)):
        yield
