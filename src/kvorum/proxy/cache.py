"""Answers to serializable reads, kept while they are surely what the store holds.

An answer is kept under the bytes of its request, and below the range that it read. Every range is
watched at a member (see `freshness`); what changes there is forgotten. Thus an answer that is
given from here is the range as it was at the revision in its header, and that revision is not older
than anything that clients of this proxy have been told about their writes.

Only callers without credentials are served, and only while a cluster is known to ask for none. A
range is watched from the second time on that a question is asked, and answers are kept that are not
older than its watch. Everything kept is bounded in bytes; what was not asked for since it was last
considered goes first.
"""

from typing import Final, Protocol

from google.protobuf.message import DecodeError

from kvorum.api.codec import read_varint
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.requests import decode_range
from kvorum.proxy.floor import revision_of

ENTRIES_MAX: Final = 2048
"""As many as etcd keeps; it bounds the watchers at the member, too."""
ENTRY_BYTES: Final = 600
"""What an answer takes up beside its bytes, about."""
ENTRY_SHARE_MAX: Final = 8
"""An answer may take up this part of all: larger ones are not kept."""
ASKED_MAX: Final = 4096
"""How many questions are remembered that were asked once."""


class Watched:
    """A range that answers are kept of."""

    __slots__ = ("end", "entries", "id", "is_live", "key", "newest", "sequence")

    def __init__(self, key: bytes, end: bytes) -> None:
        self.key = key
        self.end = end
        self.entries: dict[bytes, Entry] = {}
        self.id = 0
        """The number of its watch."""
        self.sequence = 0
        """How many questions for progress had been asked before its watch was."""
        self.is_live = False
        """Whether the watch is known to be there; no answer is kept before."""
        self.newest = 0
        """The revision at which the watch began, or the newest that it told of."""


class Entry:
    """An answer."""

    __slots__ = ("answer", "as_of", "body", "header", "is_used", "request", "shown", "watched")

    def __init__(
        self,
        request: bytes,
        watched: Watched,
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
        """What it takes up."""
        return ENTRY_BYTES + len(self.request) + 2 * len(self.body)

    def show(self, revision: int) -> None:
        """Make the answer as it is at a later revision, at which nothing has changed."""
        self.header.revision = self.shown = revision
        self.answer = pb.RangeResponse(header=self.header).SerializeToString() + self.body


class Freshness(Protocol):
    """Keeps ranges watched; see `kvorum.proxy.freshness`."""

    fresh_until: float
    """Until when answers may be given from the cache."""

    def known_to(self, watched: Watched) -> int:
        """Return the revision up to which every change of a range has been told; 0: unknown."""

    def begin(self, watched: Watched) -> None:
        """Watch a range from now on."""

    def give_up(self, watched: Watched) -> None:
        """Watch a range no longer."""

    def ask(self) -> None:
        """Ask how far the watches are."""


class Cache:
    """The answers."""

    def __init__(self, bytes_max: int) -> None:
        self.freshness: Freshness
        self.bytes_max = bytes_max
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self.is_used = False
        """Whether somebody asked since this was last set to False."""
        self._entries: dict[bytes, Entry] = {}
        self.ranges: dict[tuple[bytes, bytes], Watched] = {}
        self._asked: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, request: bytes, floor: int, now: float) -> bytes | None:
        """Return the answer to a request that is not older than the revision `floor`."""
        self.is_used = True
        entry = self._entries.get(request)
        if entry is None:
            self.misses += 1
            return None
        freshness, watched = self.freshness, entry.watched
        revision = max(entry.as_of, freshness.known_to(watched))
        if revision < floor or now >= freshness.fresh_until:
            self.misses += 1
            freshness.ask()
            return None
        self.hits += 1
        entry.is_used = True
        if entry.shown != revision:
            entry.show(revision)
        return entry.answer

    def offer(self, request: bytes, asked: bytes, seen: bytes, answer: bytes) -> None:
        """Keep an answer, if it is worth it.

        `asked` and `seen` are the request and its answer as the member knows them, `request` and
        `answer` as the client does.
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
            watched = self.ranges[key, end] = Watched(key, end)
            self.freshness.begin(watched)
            self._evict()
        if not watched.is_live or revision < watched.newest:
            return
        try:
            length, at = read_varint(answer, 1)
            header = pb.ResponseHeader.FromString(answer[at : at + length])
        except (DecodeError, IndexError, ValueError):
            return
        entry = Entry(request, watched, header, answer[at + length :], answer)
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

    def _remove(self, entry: Entry) -> None:
        del self._entries[entry.request]
        del entry.watched.entries[entry.request]
        self.bytes -= entry.bytes

    # What freshness tells.

    def changed(self, watched: Watched, revision: int) -> None:
        """Forget what is known of a range: it changed, the last time at that revision."""
        watched.newest = max(watched.newest, revision)
        if not watched.entries:
            # It changes more often than it is read.
            self.drop(watched)
            return
        for entry in list(watched.entries.values()):
            if entry.as_of < revision:
                self._remove(entry)

    def drop(self, watched: Watched) -> None:
        """Forget a range, and watch it no longer."""
        if self.ranges.pop((watched.key, watched.end), None) is not None:
            for entry in list(watched.entries.values()):
                self._remove(entry)
            self.freshness.give_up(watched)

    def clear(self) -> None:
        """Forget everything."""
        for watched in list(self.ranges.values()):
            self.drop(watched)
        self._asked.clear()
