"""The counters and durations of a member's metrics: plain numbers that decide nothing.

Durations come from the member's stopwatch, which may always show 0. Requests of one turn share one
start, and those that end between two readings of the stopwatch are observed together, each with
their mean duration: only unusual requests are timed individually.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from kvorum.api.errors import COMPACTED, FUTURE_REV, Status
from kvorum.api.histograms import Histogram, exponential
from kvorum.state.apply.requests import RANGE

if TYPE_CHECKING:
    from kvorum.member.reads import Read

READ_TXN: Final = -1
"""The kind of a read-only transaction, where other kinds are field numbers of entries."""
PIECE: Final = -2
"""The kind of a piece of a streamed range."""

_SHORT: Final = exponential(0.0001, 20)
_LONG: Final = exponential(0.001, 14)
_PAUSES: Final = exponential(1.0, 13)
_INDEX_PAUSES: Final = exponential(0.5, 14)
_COMPACTIONS: Final = exponential(100.0, 14)
_IMAGES: Final = exponential(0.01, 17)

_NOT_FOUND: Final = (COMPACTED, FUTURE_REV)
"""The errors of a range that started and failed; all other refusals come before its start."""


class Outcomes:
    """The durations of successful and of failed requests."""

    __slots__ = ("failed", "succeeded")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.succeeded = Histogram(bounds)
        self.failed = Histogram(bounds)

    def observe(self, is_success: bool, seconds: float, count: int = 1) -> None:
        """Count requests with their duration."""
        if is_success:
            self.succeeded.observe(seconds, count)
        else:
            self.failed.observe(seconds, count)


class MemberCounters:
    """Totals and durations since the start of the process."""

    __slots__ = (
        "_answered",
        "_compaction_began",
        "_groups",
        "_index_seconds",
        "_started",
        "_succeeded",
        "applied_by_kind",
        "compaction_batch_milliseconds",
        "compaction_ended_unix_seconds",
        "compaction_milliseconds",
        "image_seconds",
        "index_compaction_milliseconds",
        "kinds",
        "last_reading",
        "leases_expired",
        "promotions",
        "promotions_refused",
        "ranges",
        "requested_by_kind",
        "run_kind",
        "stopwatch",
    )

    def __init__(self, stopwatch: Callable[[], float]) -> None:
        self.stopwatch = stopwatch
        self.last_reading = 0.0
        """The last reading of the stopwatch while applying entries."""
        # The current run: successful entries of one kind, applied since the stopwatch was last
        # read, which gives all of them their mean duration. `_groups` counts those proposed here
        # by their start, `_answered` those of the newest group, which began at `_started`.
        self.run_kind = 0
        self._succeeded = 0
        self._groups: list[tuple[object, int]] = []
        self._started: object = None
        self._answered = 0
        self.kinds: dict[Any, int] = {}
        """The kind of each function that executes reads; others are not counted."""
        self.applied_by_kind: dict[int, Outcomes] = {}
        self.requested_by_kind: dict[int, Outcomes] = {}
        self.ranges = Outcomes(_SHORT)
        self.index_compaction_milliseconds = Histogram(_INDEX_PAUSES)
        self.compaction_batch_milliseconds = Histogram(_PAUSES)
        self.compaction_milliseconds = Histogram(_COMPACTIONS)
        self.compaction_ended_unix_seconds = 0.0
        self._compaction_began: float | None = None
        self._index_seconds = 0.0
        self.image_seconds = Histogram(_IMAGES)
        """How long images took from ready to the end of their last transfer."""
        self.leases_expired = 0
        self.promotions = 0
        self.promotions_refused: dict[str, int] = {}
        """Promotions that this member as the leader refused or failed, by reason."""

    def count_applied(self, kind: int, is_success: bool, seconds: float, count: int = 1) -> None:
        """Count applied entries and the duration of each."""
        found = self.applied_by_kind.get(kind)
        if found is None:
            found = self.applied_by_kind[kind] = Outcomes(_SHORT)
        found.observe(is_success, seconds, count)

    def count_request(self, kind: int, is_success: bool, seconds: float, count: int = 1) -> None:
        """Count completed requests and the duration of each since its arrival."""
        found = self.requested_by_kind.get(kind)
        if found is None:
            found = self.requested_by_kind[kind] = Outcomes(_LONG)
        found.observe(is_success, seconds, count)

    def count_failed_proposal(self, kind: int, started: object) -> None:
        """Count a proposal that raft dropped or that timed out."""
        self.count_request(kind, False, self.stopwatch() - cast("float", started))

    def count_promotion(self, refusal: Status | None) -> None:
        """Count a promotion, or the reason for its refusal."""
        if refusal is None:
            self.promotions += 1
        else:
            # The table of errors bounds the number of reasons.
            self.promotions_refused[refusal.text] = self.promotions_refused.get(refusal.text, 0) + 1

    # Compactions.

    def count_compaction_step(self, began: float, *, is_index: bool) -> None:
        """Count a step of a compaction, on its index or on its rows."""
        if self._compaction_began is None:
            self._compaction_began = began
        if is_index:
            self._index_seconds += self.stopwatch() - began

    def count_compaction_pause(self, began: float) -> None:
        """Record the end of consecutive steps."""
        self.compaction_batch_milliseconds.observe((self.stopwatch() - began) * 1000)

    def count_compaction_end(self, unix_seconds: float) -> None:
        """Record the end of a compaction."""
        now = self.stopwatch()
        began = now if self._compaction_began is None else self._compaction_began
        self.compaction_milliseconds.observe((now - began) * 1000)
        self.index_compaction_milliseconds.observe(self._index_seconds * 1000)
        self.compaction_ended_unix_seconds = unix_seconds
        self._compaction_began, self._index_seconds = None, 0.0

    # Entries.

    def begin_run(self, kind: int, started: object) -> None:
        """Begin a run with an expected kind and start."""
        self.run_kind, self._started = kind, started
        self.last_reading = self.stopwatch()

    def count_success(self, kind: int, started: object) -> None:
        """Count a successful entry; `started` is None for one that was not proposed here."""
        if kind != self.run_kind:
            self.end_run()
            self.run_kind = kind
        self._succeeded += 1
        if started is self._started:
            self._answered += 1
        elif started is not None:
            self._groups.append((self._started, self._answered))
            self._started, self._answered = started, 1

    def end_run(self) -> None:
        """Count the entries of the current run, and begin another."""
        count = self._succeeded
        if not count:
            return
        now = self.stopwatch()
        kind = self.run_kind
        self.count_applied(kind, True, (now - self.last_reading) / count, count)
        if self._groups:
            for started, number in self._groups:
                if number:
                    self.count_request(kind, True, now - cast("float", started), number)
            self._groups = []
        if self._answered:
            self.count_request(kind, True, now - cast("float", self._started), self._answered)
        self._answered = self._succeeded = 0
        self.last_reading = now

    def skip_time(self) -> None:
        """Read the stopwatch, so that the time until now counts for no entry."""
        self.last_reading = self.stopwatch()

    def count_entry(self, kind: int, result: object, began: float, started: object) -> None:
        """Count an applied entry, and its request if this member received it."""
        now = self.stopwatch()
        is_success = not isinstance(result, Status) or result == COMPACTED
        self.count_applied(kind, is_success, now - began)
        if started is not None:
            self.count_request(kind, True, now - cast("float", started))
        self.last_reading = now

    # Reads.

    def count_reads(
        self, groups: list[tuple[object, int]], others: list[tuple[Read, object]], began: float
    ) -> float:
        """Count the reads answered since `began`; return the stopwatch's current reading.

        `groups` counts successful ranges, by their start.
        """
        now = self.stopwatch()
        count = len(others)
        for _, number in groups:
            count += number
        if count:
            mean = (now - began) / count
            for started, number in groups:
                self.ranges.observe(True, mean, number)
                self.count_request(RANGE, True, now - cast("float", started), number)
            for read, result in others:
                self.count_read(read, result, mean)
        return now

    def count_read(self, read: Read, result: object, seconds: float) -> None:
        """Count an answered read; `seconds` is its duration since it could start."""
        kind = self.kinds.get(read[2])
        if kind is None:
            return
        is_success = not isinstance(result, Status)
        if kind != READ_TXN and (is_success or result in _NOT_FOUND):
            self.ranges.observe(is_success, seconds)
        if kind != PIECE:
            self.count_request(kind, is_success, self.stopwatch() - cast("float", read[4]))

    def count_failed_read(self, read: Read) -> None:
        """Count a read that timed out before it could start."""
        kind = self.kinds.get(read[2])
        if kind is not None:
            self.count_failed_proposal(kind, read[4])
