"""What keeps the cache true: one stream of watches, and a look at whether callers need credentials.

Each range of the cache has a watch on one stream to a member that knows a leader. How far the
watches are is asked for: the answer to such a question says that every change up to a revision has
been told, for every watch that was begun before the question. Where clients of this proxy were told
of a newer revision, the cache waits for it. A member does not answer while one of the watches lags,
or begins in its future; the question is then sent again. No answer is taken for a later question
than the one that it may belong to.

Whether the cluster asks for credentials is seen by a read without any, which the leader confirms,
every `LOOK_SECONDS`. The cache is silent unless both were answered within `FRESH_SECONDS`: nobody
is served for longer than that after authentication was enabled elsewhere, or after the member of
the watches was cut off. What nobody asks for is given up after `IDLE_SECONDS`.
"""

from collections.abc import Callable
from itertools import count
from math import inf
from typing import Final

from google.protobuf.message import DecodeError

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.edge.upstream import End
from kvorum.proxy.cache import Cache, Watched
from kvorum.proxy.routes import Routes

LOOK_SECONDS: Final = 1.0
FRESH_SECONDS: Final = 2.5
IDLE_SECONDS: Final = 30.0
REST_SECONDS: Final = 1.0
"""How long nothing is kept after the stream of watches has ended."""
RETRY_SECONDS: Final = 0.1
"""After which time a question for progress is sent again."""
PROGRESS_ID: Final = -1
"""The number of the watch that answers to questions for progress name."""

_METADATA: Final = (("hasleader", b"true"),)
_LOOK: Final = pb.RangeRequest(key=b"\0", count_only=True).SerializeToString()
_PROGRESS: Final = pb.WatchRequest(progress_request=pb.WatchProgressRequest()).SerializeToString()


class Freshness:
    """Watches the ranges of a cache."""

    def __init__(self, cache: Cache, routes: Routes) -> None:
        self._cache = cache
        self._routes = routes
        self.fresh_until = 0.0
        self._stream: int | None = None
        self._next_id: Callable[[], int] = count(1).__next__
        self._watches: dict[int, Watched] = {}
        self._asked = 0
        """How many questions for progress were asked on this stream."""
        self._asked_at = inf
        """When the one was asked that is not answered yet."""
        self._sent_at = 0.0
        self._sends = 0
        """How often that one was sent."""
        self._skipped = 0
        """How many more answers there may be to the questions before."""
        self._answered = 0
        self._told = 0
        """The revision that the last answer named."""
        self._told_until = 0.0
        self._open_until = 0.0
        """Until when it counts that no credentials were needed."""
        self._generation = 0
        """Looks that were begun in an earlier one count no more."""
        self._look_at = inf
        self._idle_at = inf
        self._rests_until = 0.0

    # What the cache asks for.

    def known_to(self, watched: Watched) -> int:
        """Return the revision up to which every change of a range has been told; 0: unknown."""
        return self._told if watched.sequence < self._answered else 0

    def begin(self, watched: Watched) -> None:
        """Watch a range from now on.

        Not from a revision of the past: members are slow to begin such a watch.
        """
        now = self._routes.now
        if now < self._rests_until:
            self._cache.drop(watched)
            return
        if self._stream is None:
            self._stream = self._routes.stream(rpcs.WATCH.path, _METADATA, self)
            self._asked = self._answered = self._told = self._skipped = 0
            self._asked_at = inf
            self._look_at = now
            self._idle_at = now + IDLE_SECONDS
        watched.id = self._next_id()
        watched.sequence = self._asked
        self._watches[watched.id] = watched
        create = pb.WatchCreateRequest(key=watched.key, range_end=watched.end, watch_id=watched.id)
        request = pb.WatchRequest(create_request=create)
        self._routes.send(self._stream, request.SerializeToString())

    def give_up(self, watched: Watched) -> None:
        """Watch a range no longer."""
        if self._watches.pop(watched.id, None) is not None and self._stream is not None:
            cancel = pb.WatchCancelRequest(watch_id=watched.id)
            request = pb.WatchRequest(cancel_request=cancel)
            self._routes.send(self._stream, request.SerializeToString())

    def ask(self) -> None:
        """Ask how far the watches are, unless that is being asked."""
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

    def doubt(self) -> None:
        """Forget everything: somebody is about to change who may read."""
        self._generation += 1
        self._open_until = self.fresh_until = 0.0
        self._cache.clear()

    # The stream of watches.

    def message(self, data: bytes) -> None:
        """Take what a watch told."""
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
                # One was refused, and it is not said which: callers need credentials.
                self._close()
        elif response.created:
            if watched is not None:
                watched.is_live = True
                watched.newest = max(watched.newest, response.header.revision)
        elif response.events:
            if watched is not None:
                newest = max(event.kv.mod_revision for event in response.events)
                self._cache.changed(watched, newest)
        elif response.watch_id == PROGRESS_ID:
            self._take_progress(response.header.revision)

    def _take_progress(self, revision: int) -> None:
        if self._skipped:
            self._skipped -= 1
        elif self._asked_at < inf:
            self._told = revision
            self._answered = self._asked
            self._told_until = self._asked_at + FRESH_SECONDS
            self._asked_at = inf
            self._skipped = self._sends - 1
            self._note_fresh()

    def ended(self, _end: End) -> None:
        """Forget everything: changes are not told any more."""
        self._stream = None
        self._rest()

    def writable(self) -> None:
        """Do nothing: requests are few and short."""

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            self._routes.cancel(stream)
        self._rest()

    def _rest(self) -> None:
        self._rests_until = self._routes.now + REST_SECONDS
        self._look_at = self._idle_at = self._asked_at = inf
        self.fresh_until = self._told_until = 0.0
        self._watches.clear()
        self._cache.clear()

    # Looks.

    def _note_fresh(self) -> None:
        self.fresh_until = min(self._told_until, self._open_until)

    def _look(self, now: float) -> None:
        """See whether a read needs no credentials."""
        self._look_at = now + LOOK_SECONDS
        generation = self._generation

        def answered(answer: bytes | End) -> None:
            if generation != self._generation or self._stream is None:
                return
            if isinstance(answer, bytes):
                self._open_until = now + FRESH_SECONDS
                self._note_fresh()
            else:
                self._close()

        self._routes.unary(rpcs.RANGE.path, _LOOK, (), answered, LOOK_SECONDS)

    def pass_time(self, now: float) -> float:
        """Do what is due; return when something will be due next."""
        if self._stream is None:
            return inf
        if self._cache.is_used:
            self._cache.is_used = False
            self._idle_at = now + IDLE_SECONDS
        if now >= self._idle_at:
            self._close()
            return inf
        if now >= self._look_at:
            self._look(now)
            self.ask()
        return self._look_at
