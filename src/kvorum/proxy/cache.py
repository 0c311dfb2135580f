"""The cache of answers to serializable reads, each kept until its range changes.

The cache keeps an answer under the bytes of its request, and under the range that it read. A watch
at a member reports the changes of each range (see `freshness`), and a change removes the range's
older answers. An answer from the cache therefore shows the range as it was at the revision in its
header, and that revision is no older than any write acknowledged before to a client of this proxy.

The cache serves only callers without credentials, and only while the cluster is known to require
none. It watches a range from the second time on that the same request comes, and keeps answers that
are no older than the watch. Its size in bytes is bounded; it evicts first the answers that no
request has used since eviction last passed over them.
"""

from typing import Final, Protocol

from google.protobuf.message import DecodeError

from kvorum.api.codec import read_varint
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.requests import decode_range
from kvorum.proxy.floor import revision_of

ENTRIES_MAX: Final = 2048
"""Answers, and ranges, that the cache keeps: etcd's number. It also bounds the watchers at the
member."""
ENTRY_BYTES: Final = 600
"""The approximate overhead of an answer beside its bytes."""
ENTRY_SHARE_MAX: Final = 8
"""The cache keeps no answer larger than this fraction (one eighth) of its size."""
ASKED_MAX: Final = 4096
"""How many requests the cache remembers to recognise a second one."""


class CachedRange:
    """A watched range and the answers kept for it."""

    __slots__ = ("end", "entries", "id", "is_live", "key", "newest", "sequence")

    def __init__(self, key: bytes, end: bytes) -> None:
        self.key = key
        self.end = end
        self.entries: dict[bytes, CachedAnswer] = {}
        self.id = 0
        """The id of the range's watch."""
        self.sequence = 0
        """How many progress requests preceded the creation of the range's watch."""
        self.is_live = False
        """Whether the member has confirmed the watch; before that the cache keeps no answer."""
        self.newest = 0
        """The revision at which the watch started, or the newest change that it reported."""


class CachedAnswer:
    """A cached answer."""

    __slots__ = ("answer", "as_of", "body", "header", "is_used", "request", "shown", "watched")

    def __init__(
        self,
        request: bytes,
        watched: CachedRange,
        header: pb.ResponseHeader,
        body: bytes,
        answer: bytes,
    ) -> None:
        self.request = request
        self.watched = watched
        self.header = header
        self.body = body
        """The answer without its header."""
        self.answer = answer
        self.as_of: int = header.revision
        self.shown: int = header.revision
        """The revision in `answer`."""
        self.is_used = False

    @property
    def bytes(self) -> int:
        """The memory that the entry counts for."""
        return ENTRY_BYTES + len(self.request) + 2 * len(self.body)

    def show(self, revision: int) -> None:
        """Rebuild the answer with a later revision, up to which the range has not changed."""
        self.header.revision = self.shown = revision
        self.answer = pb.RangeResponse(header=self.header).SerializeToString() + self.body


class Freshness(Protocol):
    """Keeps ranges watched; see `kvorum.proxy.freshness`."""

    fresh_until: float
    """The time until which the cache may answer."""

    def complete_revision(self, watched: CachedRange) -> int:
        """Return the revision up to which a range's watch has had every change; 0: unknown."""

    def watch_range(self, watched: CachedRange) -> None:
        """Watch a range from now on."""

    def cancel_watch(self, watched: CachedRange) -> None:
        """Cancel a range's watch."""

    def request_progress(self) -> None:
        """Send the member a progress request."""


class Cache:
    """The cached answers, by request."""

    def __init__(self, bytes_max: int) -> None:
        self.freshness: Freshness
        self.bytes_max = bytes_max
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self.is_used = False
        """Whether a request has come since this was last set to False."""
        self._entries: dict[bytes, CachedAnswer] = {}
        self.ranges: dict[tuple[bytes, bytes], CachedRange] = {}
        self._asked: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, request: bytes, floor: int, now: float) -> bytes | None:
        """Return an answer to a request that is no older than the revision `floor`, or None."""
        self.is_used = True
        entry = self._entries.get(request)
        if entry is None:
            self.misses += 1
            return None
        freshness, watched = self.freshness, entry.watched
        revision = max(entry.as_of, freshness.complete_revision(watched))
        if revision < floor or now >= freshness.fresh_until:
            self.misses += 1
            freshness.request_progress()
            return None
        self.hits += 1
        entry.is_used = True
        if entry.shown != revision:
            entry.show(revision)
        return entry.answer

    def offer(self, request: bytes, asked: bytes, seen: bytes, answer: bytes) -> None:
        """Keep an answer, if its request has come before and its range is watched.

        `request` and `answer` are the client's; `asked` and `seen` are the same with the namespace,
        as the member knows them.
        """
        if request not in self._asked:
            self._asked[request] = None
            if len(self._asked) > ASKED_MAX:
                del self._asked[next(iter(self._asked))]
            return
        if request in self._entries:
            return
        size = ENTRY_BYTES + len(request) + 2 * len(answer)
        revision = revision_of(seen)
        if size > self.bytes_max // ENTRY_SHARE_MAX or not revision:
            return
        try:
            question = decode_range(asked)
        except DecodeError:
            return
        if not question.serializable or question.revision:
            return
        key, end = question.key, question.range_end
        watched = self.ranges.get((key, end))
        if watched is None:
            watched = self.ranges[key, end] = CachedRange(key, end)
            self.freshness.watch_range(watched)
            self._evict()
        if not watched.is_live or revision < watched.newest:
            return
        try:
            length, at = read_varint(answer, 1)
            header = pb.ResponseHeader.FromString(answer[at : at + length])
        except (DecodeError, IndexError, ValueError):
            return
        entry = CachedAnswer(request, watched, header, answer[at + length :], answer)
        self._entries[request] = watched.entries[request] = entry
        self.bytes += entry.bytes
        self._evict()

    def _evict(self) -> None:
        entries = self._entries
        while self.bytes > self.bytes_max or len(entries) > ENTRIES_MAX:
            request = next(iter(entries))
            entry = entries[request]
            if entry.is_used:
                entry.is_used = False
                entries[request] = entries.pop(request)
                continue
            self._remove(entry)
            if not entry.watched.entries:
                self.drop(entry.watched)
        while len(self.ranges) > ENTRIES_MAX:
            self.drop(next(iter(self.ranges.values())))

    def _remove(self, entry: CachedAnswer) -> None:
        del self._entries[entry.request]
        del entry.watched.entries[entry.request]
        self.bytes -= entry.bytes

    # Called by `Freshness`.

    def note_change(self, watched: CachedRange, revision: int) -> None:
        """Remove a range's answers that are older than its newest change."""
        watched.newest = max(watched.newest, revision)
        if not watched.entries:
            # The range changes more often than clients read it.
            self.drop(watched)
            return
        for entry in list(watched.entries.values()):
            if entry.as_of < revision:
                self._remove(entry)

    def drop(self, watched: CachedRange) -> None:
        """Forget a range, and cancel its watch."""
        if self.ranges.pop((watched.key, watched.end), None) is not None:
            for entry in list(watched.entries.values()):
                self._remove(entry)
            self.freshness.cancel_watch(watched)

    def clear(self) -> None:
        """Forget all answers, ranges and remembered requests."""
        for watched in list(self.ranges.values()):
            self.drop(watched)
        self._asked.clear()
