"""The watch hub: matches changes with watchers and produces their responses.

The rules of this module:

- Tables hold the synced watchers by range. The hub sends them each write transaction at its commit:
  one response with all its events, and the transaction's revision as `header.revision`. All other
  watchers are behind and catch up from history in pieces. Their `header.revision` is the store's,
  as in etcd, although events below it may follow: only a response without events promises that all
  earlier events were sent.
- The call that sends a watcher everything up to the current revision also makes it synced, so no
  commit falls in between. A watcher falls behind when its stream is full (paused, or over its share
  of bytes in this turn) or when all streams together exceed
  `watch_unsent_bytes_max`. It then keeps only the next revision it needs.
- The hub publishes a transaction in steps if it has many changes or very many watchers. Until the
  last step the hub sends no progress, and the next transaction should wait; if it does not, the hub
  first publishes the rest at once.
- A call does a bounded amount of work; `step` does the remainder. The hub has no clock and no
  thread: callers pass in time and randomness. Nothing here depends on the order of a set.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice, repeat
from math import inf
from typing import Protocol

from kvorum.api.codec import HeaderEncoder
from kvorum.api.coverage import reach
from kvorum.api.limits import WorkLimits
from kvorum.state.mvcc.watch.batch import ChangeBatch, Match
from kvorum.state.mvcc.watch.catchup import CatchUp
from kvorum.state.mvcc.watch.counters import WatchCounters
from kvorum.state.mvcc.watch.history import MAIN_SHIFT, Change, History
from kvorum.state.mvcc.watch.matching import DeliveryGroups, RangeWatchers, WatchedRanges
from kvorum.state.mvcc.watch.publication import Publication
from kvorum.state.mvcc.watch.stream import WatchStream
from kvorum.state.mvcc.watch.watcher import Watcher, WatcherState

REQUEST_BYTES_MAX = 1536 * 1024
FRAGMENT_OVERHEAD_BYTES = 512 * 1024
PROGRESS_SECONDS = 600.0
PROGRESS_JITTER = 0.1


class Random(Protocol):
    """The only function that the hub needs from a source of randomness."""

    def random(self) -> float:
        """Return a number in [0, 1)."""


class WatchHub:
    """All watch streams of a member. The owner assigns `history` once the store exists."""

    history: History

    def __init__(
        self,
        header: HeaderEncoder,
        random: Random,
        limits: WorkLimits,
        *,
        request_bytes_max: int = REQUEST_BYTES_MAX,
        progress_seconds: float = PROGRESS_SECONDS,
    ) -> None:
        self.header = header
        self.is_watched = False
        """Whether any watcher is synced; if not, the store need not publish."""
        self.watchers_open = 0
        self.counters = WatchCounters()
        self._random = random
        self._limits = limits
        self._fragment_bytes_max = request_bytes_max + FRAGMENT_OVERHEAD_BYTES
        self._progress_seconds = progress_seconds
        self.now = 0.0
        """The current time, set by the owner every turn: progress intervals start from it."""
        self._streams: dict[int, WatchStream] = {}
        self._synced: WatchedRanges[Watcher] = WatchedRanges()
        # Synced watchers have received everything up to this revision.
        self._served_revision = 0
        self._publication: Publication | None = None
        self._behind: deque[Watcher] = deque()
        self._catch_up: CatchUp | None = None
        # The revision at which the next piece should begin. Catching up sweeps upwards through
        # history repeatedly, so that watchers which need the same rows share a piece, and none
        # waits longer than one sweep.
        self._sweep_revision = 0
        # Streams with held watchers that `take_outgoing` releases.
        self._full: dict[WatchStream, None] = {}
        self._closing: list[WatchStream] = []
        self._outgoing: list[tuple[int, bytes]] = []
        self.inner: list[int] = []
        """The member's own (negative) calls that have news; the member takes and clears it."""
        self.pauses = 0
        """How often streams were paused or closed; a change makes audiences stale."""
        # Upper bound of the bytes that one stream received through audiences since the list
        # was taken; `WatchStream.unsent_bytes` does not count them.
        self._spread_bytes = 0
        self._unsent_bytes = 0
        self._turn = 0
        self._progress_due: list[tuple[float, int]] = []
        # Streams whose periodic progress is due, each with its remaining watchers.
        self._progressing: deque[tuple[WatchStream, Iterator[Watcher]]] = deque()

    # Called by fronts.

    def open_stream(self, call: int) -> WatchStream:
        """Open a stream whose responses carry this call's number."""
        assert call not in self._streams, f"call {call} has a watch stream already"
        jitter = 1 + PROGRESS_JITTER * self._random.random()
        stream = WatchStream(self, call, self._progress_seconds * jitter)
        self._streams[call] = stream
        return stream

    def take_outgoing(self) -> list[tuple[int, bytes]]:
        """Return (call, encoded WatchResponse) pairs in order, and start a new list.

        The member calls this once a turn. It releases the streams that the returned bytes filled.
        """
        outgoing, self._outgoing = self._outgoing, []
        self._unsent_bytes = self._spread_bytes = 0
        self._turn += 1
        full, self._full = self._full, {}
        for stream in full:
            self.release(stream)
        return outgoing

    @property
    def unsent_bytes(self) -> int:
        """Bytes of responses that `take_outgoing` has not returned yet."""
        return self._unsent_bytes

    @property
    def streams_open(self) -> int:
        """Number of streams."""
        return len(self._streams)

    @property
    def watchers_behind(self) -> int:
        """Number of watchers that are not synced, including those that a compaction ended."""
        return self.watchers_open - self._synced.count

    # Called by the store.

    def publish(self, main: int, changes: Sequence[Change]) -> None:
        """Publish a committed write transaction; the store's revision is already `main`.

        The store may skip this call while `is_watched` is false.
        """
        if self._publication is not None:
            self._finish_publication()
        self._publication = Publication(main, changes)
        self._publish_some()

    def publish_change(self, key: bytes, revision: int, kv: bytes, previous: int) -> None:
        """Publish a transaction with a single change, faster than `publish` does."""
        synced = self._synced
        main = revision >> MAIN_SHIFT
        if self._publication is not None:
            self._finish_publication()
        # Almost every put ends here, after one lookup for any number of watchers.
        if key not in synced.keys and not synced.has_wide:
            self._served_revision = main
            return
        entries = synced.matching(key)
        changes = ((key, revision, kv, previous),)
        if sum([len(entry.watchers) for entry in entries]) > self._limits.watch_deliveries_per_step:
            self.publish(main, changes)
            return
        if entries:
            batch = ChangeBatch(changes)
            header, size, limits = self.header.field(main), len(kv), self._limits
            for entry in entries:
                match = Match(batch, [0])
                audience = entry.audience
                if audience is None or audience.pauses != self.pauses:
                    audience = entry.audience = self._find_audience(entry, main)
                if (
                    audience is not None
                    and self._spread_bytes + size < limits.watch_spread_bytes_max
                    and self._unsent_bytes + size * len(entry.watchers)
                    < limits.watch_unsent_bytes_max
                ):
                    self._deliver_to_audience(audience, match, header)
                    continue
                for watcher in tuple(entry.watchers):
                    self._deliver(watcher, match, header, main)
        self._served_revision = main

    def resync(self) -> None:
        """Let every watcher catch up from its next revision after the store was replaced.

        Watchers that have not received the last transaction yet read it from the new store.
        """
        reach("watchers resynced")
        self._publication = None
        self._abandon_catch_up()
        for entry in self._synced.entries():
            for watcher in entry.watchers:
                watcher.stream.synced -= 1
                self._enqueue(watcher, max(watcher.next_revision, self._served_revision + 1))
        self._synced = WatchedRanges()
        self.is_watched = False

    # Called by the member.

    @property
    def is_publishing(self) -> bool:
        """Whether the last transaction is still being published: apply no other meanwhile."""
        return self._publication is not None

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do, before the outgoing list is taken."""
        if self._publication is not None or self._closing or self._progressing:
            return True
        has_room = self._unsent_bytes < self._limits.watch_unsent_bytes_max
        return has_room and bool(self._catch_up or self._behind)

    def step(self) -> bool:
        """Do a bounded piece of the remaining work; return whether more is left."""
        if self._publication is not None:
            self._publish_some()
        elif self._closing:
            if self._closing[-1].forget_some(self._limits.watchers_removed_per_step):
                self._closing.pop()
        elif self._progressing:
            self._send_progress()
        elif self.has_work:
            self._catch_up_some()
        return self.has_work

    @property
    def next_deadline(self) -> float:
        """The time at which `tick` next has something to do; infinite for never."""
        return self._progress_due[0][0] if self._progress_due else inf

    def tick(self, now: float) -> None:
        """Set the time; send a bounded part of the due periodic progress, the rest in `step`."""
        self.now = now
        if self._publication is not None:
            return
        while self._progress_due and self._progress_due[0][0] <= now:
            _, call = heappop(self._progress_due)
            stream = self._streams.get(call)
            if stream is not None and stream.progress:
                self._progressing.append((stream, iter(tuple(stream.progress))))
                self.expect_progress(stream)
        if self._progressing:
            self._send_progress()

    # Called by streams.

    def send(self, stream: WatchStream, response: bytes) -> None:
        """Queue a response; for the member's own calls only record the call's number in `inner`."""
        if stream.call < 0:
            self.inner.append(stream.call)
            return
        self._outgoing.append((stream.call, response))
        size = len(response)
        self._unsent_bytes += size
        if stream.turn != self._turn:
            stream.turn = self._turn
            stream.unsent_bytes = 0
        stream.unsent_bytes += size

    def admit(self, watcher: Watcher) -> None:
        """Add a new watcher: synced, behind, or ended because its start is compacted."""
        start, history = watcher.start_revision, self.history
        if start == 0 or start > history.revision:
            watcher.next_revision = max(start, history.revision + 1)
            self._join_synced(watcher)
        elif start < history.compacted_revision:
            watcher.stream.end_compacted(watcher, history.compacted_revision)
        else:
            self._enqueue(watcher, start)

    def remove(self, watcher: Watcher) -> None:
        """Close a watcher, whatever its standing; the queue skips closed watchers."""
        if watcher.standing is WatcherState.SYNCED:
            self._leave_synced(watcher)
        watcher.standing = WatcherState.CLOSED

    def release(self, stream: WatchStream) -> None:
        """Queue some of a stream's held watchers for catching up, unless the stream is paused."""
        if stream.is_paused:
            return
        for watcher in tuple(islice(stream.held, self._limits.watch_catch_up_watchers_max)):
            del stream.held[watcher]
            self._enqueue(watcher, watcher.next_revision)
        if stream.held:
            self._full[stream] = None

    def close_stream(self, stream: WatchStream) -> None:
        """Remove a paused stream and its watchers; if they are many, `step` removes the rest."""
        del self._streams[stream.call]
        self._full.pop(stream, None)
        if not stream.forget_some(self._limits.watchers_removed_per_step):
            self._closing.append(stream)

    def expect_progress(self, stream: WatchStream) -> None:
        """Schedule a stream's next periodic progress one interval from now."""
        due = self._progress_due
        # Closed streams leave their entry in the heap.
        if len(due) > 2 * len(self._streams) + 64:
            due[:] = [moment for moment in due if moment[1] in self._streams]
            heapify(due)
        heappush(due, (self.now + stream.progress_seconds, stream.call))

    # Moving watchers between synced, behind and held.

    def _join_synced(self, watcher: Watcher) -> None:
        if not self.is_watched:
            self._served_revision = self.history.revision
            self.is_watched = True
        self._synced.add(watcher.where, watcher)
        watcher.standing = WatcherState.SYNCED
        watcher.stream.synced += 1

    def _leave_synced(self, watcher: Watcher) -> None:
        self._synced.remove(watcher.where, watcher)
        watcher.stream.synced -= 1
        self.is_watched = self._synced.count > 0

    def _enqueue(self, watcher: Watcher, next_revision: int) -> None:
        watcher.next_revision = next_revision
        watcher.standing = WatcherState.BEHIND
        self._behind.append(watcher)

    def _hold(self, watcher: Watcher) -> None:
        stream = watcher.stream
        watcher.standing = WatcherState.HELD
        reach("victim watcher")
        stream.held[watcher] = None
        if not stream.is_paused:
            self._full[stream] = None

    def _is_full(self, stream: WatchStream) -> bool:
        return stream.is_paused or (
            stream.unsent_bytes >= self._limits.watch_stream_unsent_bytes_max
            and stream.turn == self._turn
        )

    def _send_events(self, watcher: Watcher, match: Match, header: bytes) -> None:
        made = match.responses(watcher, header, self.history, self._fragment_bytes_max)
        self._send_all(watcher, made)

    def _send_all(self, watcher: Watcher, made: tuple[list[bytes], int]) -> None:
        found, events = made
        for response in found:
            self.send(watcher.stream, response)
            watcher.had_events = True
        if events:
            self.counters.responses += 1
            self.counters.events += events

    # Publishing.

    def _publish_some(self) -> None:
        publication = self._publication
        assert publication is not None
        limits = self._limits
        if not publication.match_some(self._synced, limits.watch_changes_per_step):
            return
        main = publication.main
        header = self.header.field(main)
        delivered = 0
        for watcher, match in islice(publication.targets, limits.watch_deliveries_per_step):
            delivered += 1
            # The watcher may have left since the matching began.
            if watcher.standing is WatcherState.SYNCED:
                self._deliver(watcher, match, header, main)
        if delivered < limits.watch_deliveries_per_step:
            self._served_revision = main
            self._publication = None

    def _deliver(self, watcher: Watcher, match: Match, header: bytes, main: int) -> None:
        """Send a transaction to a synced watcher, or let it fall behind."""
        # The watcher may start in the future, or has received this revision from history.
        if watcher.next_revision > main:
            return
        if self._is_full(watcher.stream):
            self._leave_synced(watcher)
            watcher.next_revision = main
            self._hold(watcher)
        elif self._unsent_bytes >= self._limits.watch_unsent_bytes_max:
            self._leave_synced(watcher)
            self._enqueue(watcher, main)
        else:
            # All events have one revision, so the watcher needs all of them or none.
            made = match.whole.get(watcher.variant)
            if made is None:
                made = match.responses(watcher, header, self.history, self._fragment_bytes_max)
            self._send_all(watcher, made)
            watcher.next_revision = main + 1

    def _find_audience(
        self, entry: RangeWatchers[Watcher], main: int
    ) -> DeliveryGroups[Watcher] | None:
        """Group an entry's watchers by response bytes; None if any needs individual handling.

        Sending to a group updates no watcher, which is safe: a synced watcher has received
        everything whatever its `next_revision`, and only periodic progress needs `had_events`.
        """
        groups: dict[bytes, tuple[Watcher, list[int]]] = {}
        for watcher in entry.watchers:
            stream = watcher.stream
            if (
                stream.is_paused
                or stream.call < 0
                or watcher.next_revision > main
                or watcher.is_fragmented
                or watcher in stream.progress
            ):
                return None
            group = groups.get(watcher.variant)
            if group is None:
                group = groups[watcher.variant] = (watcher, [])
            group[1].append(stream.call)
        return DeliveryGroups(list(groups.values()), self.pauses)

    def _deliver_to_audience(
        self, audience: DeliveryGroups[Watcher], match: Match, header: bytes
    ) -> None:
        """Send a transaction to an audience without checking or charging each stream."""
        for watcher, calls in audience.groups:
            found, events = match.responses(watcher, header, self.history, self._fragment_bytes_max)
            for response in found:
                count = len(calls)
                self._outgoing.extend(zip(calls, repeat(response)))
                self._unsent_bytes += count * len(response)
                self._spread_bytes += len(response)
                self.counters.responses += count
                self.counters.events += count * events

    def _finish_publication(self) -> None:
        while self._publication is not None:
            self._publish_some()

    # Catching up.

    def _catch_up_some(self) -> None:
        history = self.history
        if self._catch_up is None:
            self._begin_catch_up()
        elif history.compacted_revision > self._catch_up.first:
            self._abandon_catch_up()
        catch_up = self._catch_up
        if catch_up is None or not catch_up.advance(history):
            return
        served = catch_up.served_revision
        header = self.header.field(catch_up.store_revision)
        enough = min(
            self._unsent_bytes + self._limits.watch_catch_up_bytes_per_step,
            self._limits.watch_unsent_bytes_max,
        )
        for watcher, match in catch_up.targets:
            if watcher.standing is not WatcherState.BEHIND:
                continue
            if watcher.next_revision > served:
                catch_up.ahead.append(watcher)
            elif self._is_full(watcher.stream):
                self._hold(watcher)
            else:
                if match is not None:
                    self._send_events(watcher, match, header)
                watcher.next_revision = served + 1
                if served == history.revision:
                    self._join_synced(watcher)
                else:
                    self._behind.append(watcher)
                if self._unsent_bytes >= enough:
                    return
        self._behind.extendleft(reversed(catch_up.ahead))
        self._sweep_revision = served + 1
        self._catch_up = None

    def _begin_catch_up(self) -> None:
        """Start a piece of history: choose its first revision and its watchers from the queue."""
        history, behind = self.history, self._behind
        waiting = []
        for _ in range(min(self._limits.watch_catch_up_watchers_max, len(behind))):
            watcher = behind.popleft()
            if watcher.standing is not WatcherState.BEHIND:
                continue
            if watcher.next_revision > history.revision:
                self._join_synced(watcher)
            elif self._is_full(watcher.stream):
                self._hold(watcher)
            elif watcher.next_revision < history.compacted_revision:
                watcher.stream.end_compacted(watcher, history.compacted_revision)
            else:
                waiting.append(watcher)
        if not waiting:
            return
        needed = [watcher.next_revision for watcher in waiting]
        first = min((n for n in needed if n >= self._sweep_revision), default=min(needed))
        chosen = [watcher for watcher in waiting if watcher.next_revision >= first]
        behind.extendleft(w for w in reversed(waiting) if w.next_revision < first)
        self._catch_up = CatchUp(chosen, first, self._limits)

    def _abandon_catch_up(self) -> None:
        catch_up, self._catch_up = self._catch_up, None
        if catch_up is not None:
            reach("catch-up abandoned")
            self._behind.extendleft(reversed(catch_up.unserved()))

    def _send_progress(self) -> None:
        """Send periodic progress to a bounded number of watchers."""
        revision = self.history.revision
        header = self.header.field(revision)
        left = self._limits.watch_deliveries_per_step
        while self._progressing and left:
            stream, watchers = self._progressing[0]
            for watcher in islice(watchers, left):
                left -= 1
                # A watcher gets progress only if it has received everything and starts no later
                # than this revision; recent events make progress superfluous.
                is_current = (
                    watcher.standing is WatcherState.SYNCED and watcher.start_revision <= revision
                )
                if is_current and not watcher.had_events and not self._is_full(stream):
                    self.send(stream, header + watcher.id_field)
                watcher.had_events = False
            if left:
                self._progressing.popleft()
                self.counters.progresses += 1
