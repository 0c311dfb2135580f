"""Bugs of the library: of its watches, leases and calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from kvorum.api.pb.etcdserverpb import WatchRequest, WatchResponse
from kvorum.client import rpcs
from kvorum.client.keeping import Keeping
from kvorum.client.watching import Watch, Watching


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
def make_a_write_again() -> Iterator[None]:
    """Send a put again whose answer was lost, as if that did no harm."""
    with patch.object(rpcs, "PUT", rpcs.PUT._replace(is_repeatable=True)):
        yield
