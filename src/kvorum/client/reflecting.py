"""A local copy of keys: a full read, then a watch.

- The copy is the store as it was at one revision, which goes back only if that of the store does.
- If compaction removed the watch's history, or the store was restored from a backup, the client
  reads all keys again and replaces the whole copy at once.
- The client retries after transient errors. Any other error ends the updates, and the copy keeps
  its last state.
"""

from collections.abc import Callable
from typing import Final

from kvorum.api.errors import Code
from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.client.core import Core
from kvorum.client.errors import (
    CallError,
    ClosedError,
    CompactedError,
    KvorumError,
    RevisionWentBackError,
    WatchCompactedError,
)
from kvorum.client.keys import KeyRange
from kvorum.client.operations import range_request, range_result, watch_request
from kvorum.client.values import KeyValue
from kvorum.client.watch_set import Watch, WatchSet

PAGE_KEYS: Final = 1000
PAGE_SECONDS_MAX: Final = 5.0


class Reflector:
    """Keys as they were a moment ago. It calls `changed` after every change, and at the end."""

    def __init__(
        self,
        core: Core,
        watching: WatchSet,
        keys: KeyRange,
        cut: int,
        changed: Callable[[], None],
    ) -> None:
        self._core = core
        self._watching = watching
        self._keys = keys
        self._cut = cut
        """How many bytes to cut off each key: the length of a namespace's prefix."""
        self._changed = changed
        self._watch: Watch | None = None
        self._pages: dict[bytes, KeyValue] = {}
        self._order: list[bytes] | None = None
        self.found: dict[bytes, KeyValue] = {}
        self.revision: int = 0
        """The copy includes everything up to this revision; 0 before the first full read."""
        self.readings: int = 0
        """The number of full reads: one, and one more after each gap in the history."""
        self.error: KvorumError | None = None
        """Why the copy is no longer updated."""

    def begin(self) -> None:
        """Read all keys, and then follow their changes."""
        self._pages = {}
        self._ask(self._keys, 0)

    def end(self, error: KvorumError) -> None:
        """Stop following changes."""
        if self.error is not None:
            return
        self.error = error
        if self._watch is not None:
            self._watching.cancel(self._watch)
            self._watch = None
        self._changed()

    def confirm(self) -> None:
        """Check whether the copy is current; if so, advance `revision` to that of the store.

        While only other keys change, the watch reports no new revision for minutes. A progress
        request is no remedy: etcd before 3.5.8 answers it with revisions whose events are still to
        come.
        """
        if self._watch is None:
            return
        before, readings = self.revision, self.readings
        request = range_request(self._keys, limit=1, keys_only=True, mod_revisions=(before + 1, 0))

        def take_answer(answer: bytes | KvorumError) -> None:
            if not isinstance(answer, bytes) or self.error is not None:
                return
            found = range_result(pb.RangeResponse.FromString(answer))
            is_same = (self.revision, self.readings) == (before, readings)
            if is_same and not found.kvs and found.total == len(self.found):
                # No key was set since, and as the count is the same, none was deleted.
                self.revision = max(before, found.revision)
                self._changed()

        self._core.start(rpcs.RANGE, request, PAGE_SECONDS_MAX, take_answer)

    def sorted_keys(self) -> list[bytes]:
        """Return the keys in their order, in a list that callers must not change."""
        order = self._order
        if order is None:
            order = self._order = sorted(self.found)
        return order

    def _ask(self, keys: KeyRange, revision: int) -> None:
        request = range_request(keys, limit=PAGE_KEYS, revision=revision)

        def take_answer(answer: bytes | KvorumError) -> None:
            if self.error is not None:
                return
            if isinstance(answer, bytes):
                self._take_page(keys, revision, pb.RangeResponse.FromString(answer))
            elif isinstance(answer, CompactedError):
                self.begin()
            elif isinstance(answer, ClosedError) or (
                isinstance(answer, CallError) and answer.code is not Code.UNAVAILABLE
            ):
                self.end(answer)
            else:
                # The call has timed out, because no endpoint could be reached.
                self._ask(keys, revision)

        self._core.start(rpcs.RANGE, request, PAGE_SECONDS_MAX, take_answer)

    def _take_page(self, keys: KeyRange, revision: int, response: "pb.RangeResponse") -> None:
        page = range_result(response)
        revision = revision or page.revision
        for each in page.kvs:
            shown = self._strip_prefix(each)
            self._pages[shown.key] = shown
        if page.has_more:
            self._ask(keys._replace(key=page.kvs[-1].key + b"\0"), revision)
            return
        self.found, self._pages, self._order = self._pages, {}, None
        self.revision = revision
        self.readings += 1
        request = watch_request(
            self._keys, revision + 1, previous=False, progress=True, puts=True, deletes=True
        )
        self._watch = self._watching.begin(request, self._take_changes, revision)
        self._changed()

    def _take_changes(self) -> None:
        watch = self._watch
        if watch is None:
            return
        while (changes := self._watching.take(watch)) is not None:
            for event in changes.events:
                kv = self._strip_prefix(event.kv)
                if kv.key not in self.found or not event.is_put:
                    self._order = None
                if event.is_put:
                    self.found[kv.key] = kv
                else:
                    self.found.pop(kv.key, None)
            self.revision = changes.revision
        if isinstance(watch.error, WatchCompactedError | RevisionWentBackError):
            self._watch = None
            self.begin()
        elif watch.error is not None:
            self._watch = None
            self.end(watch.error)
        self._changed()

    def _strip_prefix(self, kv: KeyValue) -> KeyValue:
        return kv._replace(key=kv.key[self._cut :]) if self._cut else kv
