"""Duties beside the updates of `bench.kubernetes`: lists, compactions, snapshot, defragmentation.

Each duty gets the time once a tick, and records when its activities started and ended.
"""

import time
from functools import partial
from threading import Thread

from bench.kubernetes import PAGE_KEYS, PODS, RANGE, Clients
from bench.latencies import NANOS, Activity, Schedule
from bench.load import Load
from kvorum.api.pb import etcdserverpb as pb

COMPACT = "/etcdserverpb.KV/Compact"
DEFRAGMENT, SNAPSHOT = (f"/etcdserverpb.Maintenance/{name}" for name in ("Defragment", "Snapshot"))


def _note(
    clients: Clients, name: str, begin: int, now: int, answer: bytes | None, error: str
) -> None:
    """Record the end of an activity, and the reason if it failed."""
    clients.seen.activities.append(Activity(name, begin / NANOS, now / NANOS))
    if answer is None:
        clients.seen.refusals[f"{name}: {error}"] += 1


class Lists:
    """Lists of all pods, as pages at a fixed rate; all pages of one list read one revision.

    A page's due time does not depend on the previous page's answer, but its first key does.
    """

    def __init__(self, clients: Clients, per_second: int, member: int) -> None:
        self._clients, self._member = clients, member
        self._schedule = Schedule(per_second)
        self._asked = self._answered = 0
        self._from = PODS
        self._revision = 0

    def step(self, now: int) -> None:
        """Request the next page if it is due and the previous one has arrived."""
        if self._asked == self._answered < self._schedule.due_count(now):
            self._asked += 1
            request = pb.RangeRequest(
                key=self._from,
                range_end=PODS[:-1] + b".",
                limit=PAGE_KEYS,
                revision=self._revision,
            )
            self._clients.ask(self._member, RANGE, request.SerializeToString(), self._take)

    def _take(self, now: int, answer: bytes | None, error: str) -> None:
        seen, due = self._clients.seen, self._schedule.due_nanos(self._answered)
        seen.pages.append((now - due) / NANOS)
        seen.activities.append(Activity("list", due / NANOS, now / NANOS))
        self._answered += 1
        self._from, self._revision = PODS, 0
        if answer is None:
            # A refused list restarts; so does one whose revision was compacted meanwhile.
            if "compacted" not in error:
                seen.refusals[f"page: {error}"] += 1
            return
        page = pb.RangeResponse.FromString(answer)
        if page.more:
            self._revision = page.header.revision if not self._revision else self._revision
            self._from = page.kvs[-1].key + b"\0"


class Compactions:
    """Compactions at fixed intervals, each to the newest revision of the previous interval."""

    def __init__(self, clients: Clients, seconds: float, member: int) -> None:
        self._clients, self._every, self._member = clients, seconds * NANOS, member
        self._revision = clients.revision
        self._next = self._every

    def step(self, now: int) -> None:
        """Compact if it is time."""
        if now >= self._next:
            # A physical compaction answers after removing the rows, which gives its full duration.
            request = pb.CompactionRequest(revision=self._revision, physical=True)
            self._revision = self._clients.revision
            self._next += self._every
            take = partial(self._take, now)
            self._clients.ask(self._member, COMPACT, request.SerializeToString(), take)

    def _take(self, begin: int, now: int, answer: bytes | None, error: str) -> None:
        _note(self._clients, "compaction", begin, now, answer, error)


class Defragment:
    """One defragmentation of one member."""

    def __init__(self, clients: Clients, at_seconds: float, member: int) -> None:
        self._clients, self._at, self._member = clients, at_seconds * NANOS, member
        self._begin = 0

    def step(self, now: int) -> None:
        """Defragment if it is time."""
        if not self._begin and now >= self._at:
            self._begin = now
            self._clients.ask(self._member, DEFRAGMENT, b"", self._take)

    def _take(self, now: int, answer: bytes | None, error: str) -> None:
        _note(self._clients, "defragment", self._begin, now, answer, error)


class Snapshot:
    """One snapshot, fetched as fast as possible by a process of its own."""

    def __init__(self, clients: Clients, at_seconds: float, address: str) -> None:
        self._clients, self._at, self._address = clients, at_seconds * NANOS, address
        self._begin = 0

    def step(self, now: int) -> None:
        """Fetch the snapshot if it is time."""
        if not self._begin and now >= self._at:
            self._begin = now
            Thread(target=self._fetch).start()

    def _fetch(self) -> None:
        began = time.monotonic_ns()
        Load(self._address, SNAPSHOT, [b""], connections=1, streams=1, requests=1).finish()
        end = self._begin + time.monotonic_ns() - began
        _note(self._clients, "snapshot", self._begin, end, b"", "")
