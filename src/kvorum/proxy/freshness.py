"""The cache's invalidation: one stream of watches, and a check whether callers need credentials.

Each range of the cache has a watch on one stream to a member that knows a leader. Progress requests
find out how far the watches are: the answer to one says that every watch created before the request
has had every change up to a revision. If that revision is below the floor (see `floor`), the cache
does not answer until progress reaches it. A member does not answer while one of the watches lags or
starts in the member's future, so the proxy resends the request. An answer may belong to an earlier
send; the proxy never credits it to a later request.

A linearizable read without credentials, every `CHECK_SECONDS`, finds out whether the cluster
requires them. The cache answers only if both checks succeeded within the last `FRESH_SECONDS`.
That bounds how long the cache still answers after a client enabled authentication elsewhere, or
after the member with the watches was cut off. The proxy closes the stream after `IDLE_SECONDS`
without a request to the cache.
"""

from collections.abc import Callable
from itertools import count
from math import inf
from typing import Final

from google.protobuf.message import DecodeError

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.network.edge.upstream import End
from kvorum.proxy.cache import Cache, CachedRange
from kvorum.proxy.routes import Routes

CHECK_SECONDS: Final = 1.0
FRESH_SECONDS: Final = 2.5
IDLE_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 1.0
"""Pause after the end of the stream of watches, in which the cache keeps nothing."""
RETRY_SECONDS: Final = 0.1
"""Time after which an unanswered progress request is sent again."""
PROGRESS_ID: Final = -1
"""The watch id in answers to progress requests."""

_METADATA: Final = (("hasleader", b"true"),)
_CHECK: Final = pb.RangeRequest(key=b"\0", count_only=True).SerializeToString()
_PROGRESS: Final = pb.WatchRequest(progress_request=pb.WatchProgressRequest()).SerializeToString()


class Freshness:
    """Watches the ranges of a cache."""

    def __init__(self, cache: Cache, routes: Routes) -> None:
        self._cache = cache
        self._routes = routes
        self.fresh_until = 0.0
        self._stream: int | None = None
        self._next_id: Callable[[], int] = count(1).__next__
        self._watches: dict[int, CachedRange] = {}
        self._asked = 0
        """Progress requests on this stream, without resends."""
        self._asked_at = inf
        """When the unanswered progress request was first sent; infinite if there is none."""
        self._sent_at = 0.0
        self._sends = 0
        """How often that request was sent."""
        self._skipped = 0
        """Answers to earlier, resent requests that may still come, and do not count."""
        self._answered = 0
        self._answered_revision = 0
        """The revision in the last answer."""
        self._answer_fresh_until = 0.0
        self._open_until = 0.0
        """The time until which the last read without credentials proves that none are needed."""
        self._generation = 0
        """Incremented by `invalidate`: reads from an earlier generation prove nothing."""
        self._check_at = inf
        self._idle_at = inf
        self._paused_until = 0.0

    # Called by the cache.

    def complete_revision(self, watched: CachedRange) -> int:
        """Return the revision up to which a range's watch has had every change; 0: unknown."""
        return self._answered_revision if watched.sequence < self._answered else 0

    def watch_range(self, watched: CachedRange) -> None:
        """Watch a range from now on.

        The watch has no start revision in the past, because members are slow to start such a watch.
        """
        now = self._routes.now
        if now < self._paused_until:
            self._cache.drop(watched)
            return
        if self._stream is None:
            self._stream = self._routes.open_stream(rpcs.WATCH.path, _METADATA, self)
            self._asked = self._answered = self._answered_revision = self._skipped = 0
            self._asked_at = inf
            self._check_at = now
            self._idle_at = now + IDLE_SECONDS
        watched.id = self._next_id()
        watched.sequence = self._asked
        self._watches[watched.id] = watched
        create = pb.WatchCreateRequest(key=watched.key, range_end=watched.end, watch_id=watched.id)
        request = pb.WatchRequest(create_request=create)
        self._routes.send(self._stream, request.SerializeToString())

    def cancel_watch(self, watched: CachedRange) -> None:
        """Cancel a range's watch."""
        if self._watches.pop(watched.id, None) is not None and self._stream is not None:
            cancel = pb.WatchCancelRequest(watch_id=watched.id)
            request = pb.WatchRequest(cancel_request=cancel)
            self._routes.send(self._stream, request.SerializeToString())

    def request_progress(self) -> None:
        """Send a progress request, or resend one that is unanswered for `RETRY_SECONDS`."""
        now = self._routes.now
        if self._stream is None:
            return
        if self._asked_at == inf:
            self._asked += 1
            self._asked_at = now
            self._sends = 0
        elif now < self._sent_at + RETRY_SECONDS:
            return
        self._sends += 1
        self._sent_at = now
        self._routes.send(self._stream, _PROGRESS)

    def invalidate(self) -> None:
        """Clear the cache, because a client is enabling authentication."""
        self._generation += 1
        self._open_until = self.fresh_until = 0.0
        self._cache.clear()

    # The stream of watches.

    def take_message(self, data: bytes) -> None:
        """Process a message of the stream of watches."""
        try:
            response = pb.WatchResponse.FromString(data)
        except DecodeError:
            self._close()
            return
        watched = self._watches.get(response.watch_id)
        if response.canceled:
            if watched is not None:
                del self._watches[response.watch_id]
                self._cache.drop(watched)
            elif response.created:
                # A refusal does not name its watch; it means that callers need credentials.
                self._close()
        elif response.created:
            if watched is not None:
                watched.is_live = True
                watched.newest = max(watched.newest, response.header.revision)
        elif response.events:
            if watched is not None:
                newest = max(event.kv.mod_revision for event in response.events)
                self._cache.note_change(watched, newest)
        elif response.watch_id == PROGRESS_ID:
            self._take_progress(response.header.revision)

    def _take_progress(self, revision: int) -> None:
        if self._skipped:
            self._skipped -= 1
        elif self._asked_at < inf:
            self._answered_revision = revision
            self._answered = self._asked
            self._answer_fresh_until = self._asked_at + FRESH_SECONDS
            self._asked_at = inf
            self._skipped = self._sends - 1
            self._note_fresh()

    def take_end(self, _end: End) -> None:
        """Clear the cache: without the stream, no watch reports changes."""
        self._stream = None
        self._pause()

    def take_writable(self) -> None:
        """Do nothing: requests are few and short."""

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            self._routes.cancel(stream)
        self._pause()

    def _pause(self) -> None:
        self._paused_until = self._routes.now + PAUSE_SECONDS
        self._check_at = self._idle_at = self._asked_at = inf
        self.fresh_until = self._answer_fresh_until = 0.0
        self._watches.clear()
        self._cache.clear()

    # The check for credentials.

    def _note_fresh(self) -> None:
        self.fresh_until = min(self._answer_fresh_until, self._open_until)

    def _check_credentials(self, now: float) -> None:
        """Check that a read needs no credentials."""
        self._check_at = now + CHECK_SECONDS
        generation = self._generation

        def take_answer(answer: bytes | End) -> None:
            if generation != self._generation or self._stream is None:
                return
            if isinstance(answer, bytes):
                self._open_until = now + FRESH_SECONDS
                self._note_fresh()
            else:
                self._close()

        self._routes.start_unary(rpcs.RANGE.path, _CHECK, (), take_answer, CHECK_SECONDS)

    def pass_time(self, now: float) -> float:
        """Run the timers that are due; return when the next one is."""
        if self._stream is None:
            return inf
        if self._cache.is_used:
            self._cache.is_used = False
            self._idle_at = now + IDLE_SECONDS
        if now >= self._idle_at:
            self._close()
            return inf
        if now >= self._check_at:
            self._check_credentials(now)
            self.request_progress()
        return self._check_at
