"""Kubernetes' load at a fixed rate: updates of node leases, watched ranges, lists in pages.

An update is an API server's transaction: put if the key is unchanged, otherwise read it. Calls are
sent when they are due, even if earlier ones have no answer yet. The native upstream of the edge
sends and receives in batches, once a millisecond, so that the servers keep most of the machine;
latencies are exact to about a millisecond.
"""

import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from bench.latencies import NANOS, Activity, Schedule
from kvorum.api.pb import etcdserverpb as pb
from kvorum.network.edge import make_upstream
from kvorum.network.edge.upstream import Unary, UpstreamEventKind

TXN, RANGE, WATCH = "/etcdserverpb.KV/Txn", "/etcdserverpb.KV/Range", "/etcdserverpb.Watch/Watch"
LEASES, PODS = b"/registry/leases/kube-node-lease/node-", b"/registry/pods/default/pod-"
VALUE_BYTES = 1024
WATCHERS = 100
CONNECTIONS = 6
PAGE_KEYS = 500
TICK_SECONDS = 0.001
ANSWER_SECONDS_MAX = 60
"""Time limit for answers after the last call; calls without an answer then count as lost."""
EVENTS_MAX, BYTES_MAX = 500, 8 << 20
"""Limits of one poll: after a pause thousands of answers arrive at once, and updates that become
due must not wait until all are handled."""
RETRY_SECONDS = 1.0
_FIRST_UPDATE = 1 << 32
_RETRY = 1 << 40
"""Difference between the call numbers of two attempts of the same update."""


def lease_key(number: int) -> bytes:
    """Return the key of a node's lease."""
    return LEASES + b"%08d" % number


def objects(count: int, leases: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield `count` objects: leases, and pods for the rest."""
    value = b"x" * VALUE_BYTES
    for number in range(leases):
        yield lease_key(number), value
    for number in range(count - leases):
        yield PODS + b"%08d" % number, value


@dataclass(slots=True)
class Seen:
    """What clients observed in a run; times are in seconds from its start."""

    per_second: int
    updates: "array[float]"
    """The latency of each update, in the order of their due times."""
    events: "array[float]" = field(default_factory=lambda: array("d"))
    """Times from an update's due time to its event at a watcher."""
    pages: "array[float]" = field(default_factory=lambda: array("d"))
    activities: list[Activity] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    """Reasons for refused updates; each was retried, and its latency counts from its due time."""
    conflicts: int = 0
    """Updates that lost against an unanswered update of the same lease."""
    late_seconds: float = 0.0
    """The longest delay caused by the generator itself."""
    processors: float = 0.0
    """The generator's own processor usage, in processors."""

    def dues(self) -> "array[float]":
        """Return the due time of each update."""
        schedule = Schedule(self.per_second)
        return array("d", (schedule.due_nanos(n) / NANOS for n in range(len(self.updates))))


Answered: TypeAlias = Callable[[int, bytes | None, str], None]
"""Called with the time in nanoseconds, and a call's answer or the reason why it has none."""
Duty: TypeAlias = Callable[[int], None]
"""Called with the time in nanoseconds once a tick; does the work that is due."""


class Clients:
    """All clients of one cluster, in one thread."""

    def __init__(self, addresses: Sequence[str], leases: int) -> None:
        self._upstream = make_upstream()
        self._leases = leases
        self._addresses = addresses
        self._revisions = array("q", [0]) * leases
        self._dues = array("q", [0]) * leases
        self._revision = 0
        self._update = _FIRST_UPDATE
        self._other = WATCHERS
        self._answers: dict[int, Answered] = {}
        self._put = pb.TxnRequest(
            compare=[pb.Compare(target=pb.Compare.MOD, result=pb.Compare.EQUAL)],
            success=[pb.RequestOp(request_put=pb.PutRequest(value=b"y" * VALUE_BYTES))],
            failure=[pb.RequestOp(request_range=pb.RangeRequest())],
        )
        self._seen, self._schedule = Seen(1, array("d")), Schedule(1)
        self._first = self._update
        self._unanswered = 0
        self._retries: deque[tuple[int, int]] = deque()
        """Times and call numbers of updates to retry."""
        self._connect()
        self._read_revisions()
        self._watch()

    def close(self) -> None:
        """Close the connections."""
        self._upstream.stop()

    def _connect(self) -> None:
        """Open several connections for updates and watches, and one per member for the rest."""
        wanted = CONNECTIONS + len(self._addresses)
        for endpoint in range(wanted):
            address = self._addresses[endpoint % len(self._addresses)]
            self._upstream.connect(endpoint, address, address)
        while wanted:
            for kind, endpoint, detail in self._upstream.poll(EVENTS_MAX, BYTES_MAX):
                assert kind == UpstreamEventKind.CONNECTED, f"endpoint {endpoint}: {detail}"
                wanted -= 1
            time.sleep(TICK_SECONDS)

    def _endpoint(self, member: int) -> int:
        """Return the connection to a member that neither updates nor watches use."""
        size = len(self._addresses)
        return next(
            each for each in range(CONNECTIONS, CONNECTIONS + size) if each % size == member
        )

    def ask(self, member: int, path: str, message: bytes, answered: Answered) -> None:
        """Call a member; `answered` gets the answer or the error."""
        self._other += 1
        self._answers[self._other] = answered
        self._upstream.call([(self._other, self._endpoint(member), path, message, ())])

    def _wait(self) -> None:
        """Wait until all calls made with `ask` are answered."""
        while self._answers:
            self._take(0)
            time.sleep(TICK_SECONDS)

    def _read_revisions(self) -> None:
        """Read the revision of every lease, as an API server's cache does."""

        def take(_: int, answer: bytes | None, error: str) -> None:
            assert answer is not None, error
            found = pb.RangeResponse.FromString(answer)
            self._revision = found.header.revision
            for kv in found.kvs:
                self._revisions[int(kv.key[-8:])] = kv.mod_revision

        for first in range(0, self._leases, PAGE_KEYS):
            end = lease_key(first + PAGE_KEYS)
            message = pb.RangeRequest(key=lease_key(first), range_end=end, keys_only=True)
            self.ask(0, RANGE, message.SerializeToString(), take)
            self._wait()

    def _watch(self) -> None:
        """Watch all leases, each watcher a range of them on a stream of its own."""
        for watcher in range(WATCHERS):
            first, end = (self._leases * each // WATCHERS for each in (watcher, watcher + 1))
            create = pb.WatchCreateRequest(key=lease_key(first), range_end=lease_key(end))
            message = pb.WatchRequest(create_request=create).SerializeToString()
            self._upstream.open(watcher, watcher % CONNECTIONS, WATCH, ())
            self._upstream.send([(watcher, message)])
        wanted = WATCHERS
        while wanted:
            for kind, watcher, detail in self._upstream.poll(EVENTS_MAX, BYTES_MAX):
                assert kind == UpstreamEventKind.MESSAGE, f"watcher {watcher}: {detail}"
                wanted -= pb.WatchResponse.FromString(detail).created
            time.sleep(TICK_SECONDS)

    def offer(self, per_second: int, seconds: int, duties: Sequence[Duty] = ()) -> Seen:
        """Update leases in turn at a fixed rate, and run the duties; return the observations."""
        schedule, total = Schedule(per_second), per_second * seconds
        seen = self._seen = Seen(per_second, array("d", [float("inf")]) * total)
        self._schedule, self._unanswered, self._first = schedule, total, self._update
        self._update += total
        sent, begin, spent = 0, time.monotonic_ns(), time.process_time()
        self._retries.clear()
        while True:
            now = time.monotonic_ns() - begin
            if sent < total:
                due = min(schedule.due_count(now), total)
                if due > sent:
                    late = (now - schedule.due_nanos(sent)) / NANOS
                    seen.late_seconds = max(seen.late_seconds, late)
                    self._send(sent, due)
                    sent = due
                for duty in duties:
                    duty(now)
            while self._retries and self._retries[0][0] <= now:
                self._upstream.call([self._request(self._retries.popleft()[1])])
            now = time.monotonic_ns() - begin
            is_drained = self._take(now)
            if sent == total:
                waits = self._unanswered or self._answers
                waits = waits or len(seen.events) + seen.conflicts < total
                if not waits or now / NANOS > seconds + ANSWER_SECONDS_MAX:
                    seen.processors = (time.process_time() - spent) * NANOS / now
                    return seen
            if is_drained:
                time.sleep(TICK_SECONDS - time.monotonic_ns() % 1_000_000 / NANOS)

    def _send(self, first: int, end: int) -> None:
        """Send updates `first` to `end`, which are due."""
        for number in range(first, end):
            self._dues[(self._first + number) % self._leases] = self._schedule.due_nanos(number)
        self._upstream.call([self._request(self._first + each) for each in range(first, end)])

    def _request(self, call: int) -> Unary:
        """Encode an update or its retry as a unary call."""
        message, lease = self._put, call % _RETRY % self._leases
        (compare,), (put,), (get,) = message.compare, message.success, message.failure
        key = lease_key(lease)
        compare.key = put.request_put.key = get.request_range.key = key
        compare.mod_revision = self._revisions[lease]
        return call, lease % CONNECTIONS, TXN, message.SerializeToString(), ()

    def _take(self, now: int) -> bool:
        """Handle one poll's events; return whether no more are waiting."""
        events = self._upstream.poll(EVENTS_MAX, BYTES_MAX)
        for kind, call, detail in events:
            if kind == UpstreamEventKind.MESSAGE:
                self._take_events(now, detail)
            elif call >= _FIRST_UPDATE:
                self._take_update(now, call, kind == UpstreamEventKind.ANSWERED, detail)
            elif call in self._answers:
                answered = self._answers.pop(call)
                if kind == UpstreamEventKind.ANSWERED:
                    answered(now, detail, "")
                else:
                    answered(now, None, detail[1])
            else:
                raise SystemExit(f"a watch or a connection ended: {detail}")
        return len(events) < EVENTS_MAX

    def _take_events(self, now: int, detail: bytes) -> None:
        """Find a response's events by their keys; parsing all of it would cost much more."""
        at = detail.find(LEASES)
        if at < 0:
            response = pb.WatchResponse.FromString(detail)
            assert not response.canceled and not response.events, response
        while at >= 0:
            number = at + len(LEASES)
            lease = int(detail[number : number + 8])
            self._seen.events.append((now - self._dues[lease]) / NANOS)
            at = detail.find(LEASES, number)

    def _take_update(self, now: int, call: int, is_answered: bool, detail: Any) -> None:
        seen, number = self._seen, call % _RETRY - self._first
        if number < 0:
            return  # The previous run lost it, and this one ignores it.
        if not is_answered:
            seen.refusals[detail[1]] += 1
            self._retries.append((now + int(RETRY_SECONDS * NANOS), call + _RETRY))
            return
        seen.updates[number] = (now - self._schedule.due_nanos(number)) / NANOS
        self._unanswered -= 1
        response = pb.TxnResponse.FromString(detail)
        revision = response.header.revision
        self._revision = max(self._revision, revision)
        if not response.succeeded:
            seen.conflicts += 1
            revision = response.responses[0].response_range.kvs[0].mod_revision
        lease = call % _RETRY % self._leases
        self._revisions[lease] = max(self._revisions[lease], revision)

    @property
    def revision(self) -> int:
        """The newest revision in any answer."""
        return self._revision

    @property
    def seen(self) -> Seen:
        """The observations of the current run."""
        return self._seen
