"""Counters of watch streams, and histograms of the time it took to send their messages.

The server sends messages in batches, so each message is credited with an equal share of its batch.
"""

from typing import Final

from kvorum.api.histograms import Histogram, exponential

_BOUNDS: Final = exponential(0.001, 14)


class WatchCounters:
    """Totals since the start; the hub increments them as it creates messages."""

    __slots__ = (
        "_seen",
        "creation_seconds",
        "creations",
        "event_seconds",
        "events",
        "progress_seconds",
        "progresses",
        "response_seconds",
        "responses",
    )

    def __init__(self) -> None:
        self.responses = 0
        """Responses with events, and answers to progress requests."""
        self.events = 0
        self.creations = 0
        """Answers to create requests."""
        self.progresses = 0
        """Rounds of periodic progress over a stream, including rounds that sent nothing."""
        self.response_seconds = Histogram(_BOUNDS)
        self.event_seconds = Histogram(_BOUNDS)
        self.creation_seconds = Histogram(_BOUNDS)
        self.progress_seconds = Histogram(_BOUNDS)
        # The totals at the last call of `sent`.
        self._seen = (0, 0, 0, 0)

    def sent(self, seconds: float, messages: int) -> None:
        """Record that sending a batch, which may include watch responses, took this long."""
        now = (self.responses, self.events, self.creations, self.progresses)
        responses, events, creations, progresses = self._seen
        if now == self._seen:
            return
        self._seen = now
        mean = seconds / messages
        responses = self.responses - responses
        if responses:
            self.response_seconds.observe(mean, responses)
            per_response = (self.events - events) / responses
            self.event_seconds.observe(mean / per_response if per_response else mean, responses)
        if self.creations != creations:
            self.creation_seconds.observe(mean, self.creations - creations)
        if self.progresses != progresses:
            self.progress_seconds.observe(mean, self.progresses - progresses)
