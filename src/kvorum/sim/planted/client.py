"""Bugs of the library: of its watches, leases and calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from kvorum.api.pb.etcdserverpb import WatchRequest, WatchResponse
from kvorum.client import rpcs
from kvorum.client.keeping import Keeping, Kept
from kvorum.client.watching import Watch, Watching
from kvorum.sim.library import process


@contextmanager
def resume_a_revision_too_late() -> Iterator[None]:
    """Let a watch that lost its stream leave out the revision that it waits for."""
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
    """Take a part of a revision for all of it, so that its rest counts as told."""
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
    """Rely on a lease for its time from when the answer came, not from when it was asked for."""
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
    """Take a lease for lost once a timer has found that, without a look at the clock."""
    original = Keeping.pass_time
    look = Kept.lost

    def pass_time(keeping: Keeping, now: float) -> None:
        for kept in keeping._kept.values():
            look(kept, now)
        original(keeping, now)

    with (
        patch.object(Kept, "lost", lambda kept, _: kept.error),
        patch.object(Keeping, "pass_time", pass_time),
    ):
        yield


@contextmanager
def make_a_write_again() -> Iterator[None]:
    """Send a put again whose answer was lost, as if that did no harm."""
    with patch.object(rpcs, "PUT", rpcs.PUT._replace(is_repeatable=True)):
        yield
