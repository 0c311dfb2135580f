"""A watch stream: the watchers of one call, their ids, and its back-pressure.

Rules: a stream appends control responses and events alike to the hub's outgoing list, in order, so
a watcher's `created` precedes its events and `canceled` follows them. A paused stream receives no
events, but still answers its client's requests. After `close` the hub drops the stream at once and
its watchers in steps.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final

from kvorum.api.coverage import reach
from kvorum.api.errors import COMPACTED, WATCH_ID_DUPLICATE, WATCH_RANGE_EMPTY
from kvorum.api.responses import (
    CANCELED,
    CREATED,
    NO_WATCHER,
    watch_compacted,
    watch_refused,
)
from kvorum.state.mvcc.watch.matching import key_range
from kvorum.state.mvcc.watch.watcher import NO_DELETE, NO_PUT, PREV_KV, Watcher, WatcherState

if TYPE_CHECKING:
    from kvorum.state.mvcc.watch.hub import WatchHub

# `WatchCreateRequest.FilterType`; the server ignores other values.
_FILTERS: Final = {0: NO_PUT, 1: NO_DELETE}


class WatchStream:
    """The server's side of one Watch call; `WatchHub.open_stream` creates it."""

    __slots__ = (
        "_future",
        "_hub",
        "_next_id",
        "_watchers",
        "call",
        "held",
        "is_paused",
        "progress",
        "progress_seconds",
        "synced",
        "turn",
        "unsent_bytes",
    )

    def __init__(self, hub: "WatchHub", call: int, progress_seconds: float) -> None:
        self.call = call
        self.is_paused = False
        self.held: dict[Watcher, None] = {}
        self.progress: dict[Watcher, None] = {}
        self.progress_seconds = progress_seconds
        self.synced = 0
        """The number of synced watchers; the hub maintains it."""
        # `unsent_bytes` counts this stream's bytes in the outgoing list during turn `turn`; the
        # hub resets it at the first response of a later turn.
        self.turn = -1
        self.unsent_bytes = 0
        self._hub = hub
        self._watchers: dict[int, Watcher] = {}
        self._next_id = 0
        # A heap of watchers whose start was in the future: (-start revision, watch id).
        # Cancelled watchers leave their entries behind.
        self._future: list[tuple[int, int]] = []

    def __len__(self) -> int:
        """Return the number of watchers, including those that a compaction ended."""
        return len(self._watchers)

    def create(
        self,
        key: bytes,
        range_end: bytes = b"",
        start_revision: int = 0,
        *,
        watch_id: int = 0,
        progress_notify: bool = False,
        filters: Iterable[int] = (),
        prev_kv: bool = False,
        fragment: bool = False,
    ) -> None:
        """Serve a WatchCreateRequest, whose unchanged fields are the arguments.

        A caller that checks permissions does so first, and only if `start_revision` is not
        negative: etcd refuses in this order.
        """
        hub = self._hub
        where = key_range(key, range_end)
        if start_revision < 0:
            return self.refuse(COMPACTED.text)
        if where is None:
            return self.refuse(WATCH_RANGE_EMPTY.text)
        if watch_id in self._watchers and watch_id != 0:
            return self.refuse(WATCH_ID_DUPLICATE.text)
        if watch_id == 0:
            while self._next_id in self._watchers:
                self._next_id += 1
            watch_id = self._next_id
            self._next_id += 1
        selection = PREV_KV if prev_kv else 0
        for kind in filters:
            selection |= _FILTERS.get(kind, 0)
        watcher = Watcher(self, watch_id, where, start_revision, selection, fragment)
        self._watchers[watch_id] = watcher
        hub.send(self, hub.header.field(hub.history.revision) + watcher.id_field + CREATED)
        hub.counters.creations += 1
        hub.watchers_open += 1
        if start_revision > hub.history.revision:
            self._await(watcher)
        hub.admit(watcher)
        if progress_notify:
            self.progress[watcher] = None
            if len(self.progress) == 1:
                hub.expect_progress(self)
        return None

    def refuse(self, reason: str) -> None:
        """Refuse a create request; callers also use this for reasons of their own."""
        hub = self._hub
        hub.counters.creations += 1
        hub.send(self, watch_refused(hub.header.field(hub.history.revision), reason))

    def cancel(self, watch_id: int) -> None:
        """Serve a WatchCancelRequest; send no answer for an unknown id."""
        watcher = self._watchers.pop(watch_id, None)
        if watcher is not None:
            hub = self._hub
            self._forget(watcher)
            hub.send(self, hub.header.field(hub.history.revision) + watcher.id_field + CANCELED)

    def request_progress(self) -> None:
        """Serve a WatchProgressRequest.

        As in etcd, drop the request unless every watcher has received all events and starts no
        later than the current revision, because a client may resume from the answer's revision.
        The check takes the same time for any number of watchers.
        """
        hub = self._hub
        is_synced = self._watchers and self.synced == len(self._watchers)
        if is_synced and not hub.is_publishing and not self._awaits_future():
            hub.counters.responses += 1
            hub.send(self, hub.header.field(hub.history.revision) + NO_WATCHER)

    def _await(self, watcher: Watcher) -> None:
        """Remember a watcher that starts after the current revision."""
        future = self._future
        if len(future) > 2 * len(self._watchers) + 64:
            future[:] = [each for each in future if self._is_watched(each)]
            heapify(future)
        heappush(future, (-watcher.start_revision, watcher.watch_id))

    def _awaits_future(self) -> bool:
        """Return whether a watcher starts after the current revision."""
        future = self._future
        # The greatest start revision comes first in this heap.
        while future and -future[0][0] > self._hub.history.revision:
            if self._is_watched(future[0]):
                return True
            heappop(future)
        future.clear()
        return False

    def _is_watched(self, start: tuple[int, int]) -> bool:
        watcher = self._watchers.get(start[1])
        return watcher is not None and watcher.start_revision == -start[0]

    def pause(self) -> None:
        """Stop sending events, because the client reads too slowly.

        A watcher whose range changes while its stream is paused falls behind and keeps only the
        revision to continue from.
        """
        self.is_paused = True
        self._hub.pauses += 1

    def resume(self) -> None:
        """Send events again; watchers that fell behind catch up from history."""
        self.is_paused = False
        self._hub.release(self)

    def close(self) -> None:
        """Remove the stream and its watchers after its call ended; send nothing more."""
        self.pause()
        self._hub.close_stream(self)

    def forget_some(self, count: int) -> bool:
        """Remove `count` watchers of a closed stream, for the hub; return True if none is left."""
        for watch_id in tuple(islice(self._watchers, count)):
            self._forget(self._watchers.pop(watch_id))
        return not self._watchers

    def _forget(self, watcher: Watcher) -> None:
        self._hub.remove(watcher)
        self._hub.watchers_open -= 1
        self.held.pop(watcher, None)
        self.progress.pop(watcher, None)

    def end_compacted(self, watcher: Watcher, compacted_revision: int) -> None:
        """Cancel a watcher whose next revision was compacted, for the hub."""
        watcher.standing = WatcherState.COMPACTED
        reach("watcher ended by a compaction")
        hub = self._hub
        hub.send(self, watch_compacted(hub.header.field(0), watcher.id_field, compacted_revision))
