"""What is counted about watch streams, and how long their messages took to be sent.

Messages are sent by the batch, so that each of a batch is taken to have had an equal part of it.
"""

from typing import Final

from kvorum.api.histograms import Histogram, exponential

_BOUNDS: Final = exponential(0.001, 14)


class WatchFigures:
    """Totals since the start; the hub adds to them as it makes messages."""

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
        """Those with events, and the answers to requests for progress."""
        self.events = 0
        self.creations = 0
        """Answers to requests for a watcher."""
        self.progresses = 0
        """How often a stream was told its progress, or would have been."""
        self.response_seconds = Histogram(_BOUNDS)
        self.event_seconds = Histogram(_BOUNDS)
        self.creation_seconds = Histogram(_BOUNDS)
        self.progress_seconds = Histogram(_BOUNDS)
        # The totals when messages were last sent.
        self._seen = (0, 0, 0, 0)

    def sent(self, seconds: float, messages: int) -> None:
        """Note that messages left, those of watch streams among them, in that time."""
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
