"""Planted bugs of watching."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from kvorum.api.responses import NO_WATCHER
from kvorum.state.mvcc.watch.catchup import CatchUp
from kvorum.state.mvcc.watch.hub import WatchHub
from kvorum.state.mvcc.watch.stream import WatchStream
from kvorum.state.mvcc.watch.watcher import Watcher, WatcherState


@contextmanager
def lose_an_event_at_catch_up() -> Iterator[None]:
    """Drop the last row of a piece of history that a watcher catches up with."""
    original = CatchUp._read

    def read(catch_up: CatchUp, history: Any) -> bool:
        is_read = original(catch_up, history)
        if is_read and len(catch_up._rows) > 2:
            catch_up._rows.pop()
        return is_read

    with patch.object(CatchUp, "_read", read):
        yield


@contextmanager
def deliver_an_event_twice() -> Iterator[None]:
    """Start a watcher that fell behind with the last event it received."""
    original = WatchHub._enqueue

    def enqueue(hub: WatchHub, watcher: Watcher, next_revision: int) -> None:
        if watcher.standing in (WatcherState.HELD, WatcherState.SYNCED) and next_revision > 2:
            next_revision -= 1
        original(hub, watcher, next_revision)

    with patch.object(WatchHub, "_enqueue", enqueue):
        yield


@contextmanager
def tell_progress_too_soon() -> Iterator[None]:
    """Report progress for a watcher that is still catching up."""

    def request_progress(stream: WatchStream) -> None:
        hub = stream._hub
        if stream._watchers and not stream._awaits_future():
            hub.send(stream, hub.header.field(hub.history.revision) + NO_WATCHER)

    with patch.object(WatchStream, "request_progress", request_progress):
        yield
