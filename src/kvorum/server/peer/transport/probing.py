"""Probes: they measure whether a peer answers, how fast, and how far its clock differs from ours.

The transport counts the round trips for metrics, and logs each change of the results.
"""

import json
from datetime import UTC, datetime
from typing import Any, Final

from kvorum.network.dialer.interface import FAILURES, DialEventKind
from kvorum.server.peer.transport.addresses import Addresses
from kvorum.server.peer.transport.counters import PeerCounters
from kvorum.server.peer.transport.headers import PROBING
from kvorum.server.peer.transport.settings import CLOCK_DIFFERENCE_SECONDS_MAX, PROBE_SECONDS
from kvorum.server.peer.transport.shared import TransportState

_ANSWER_BYTES_MAX: Final = 4096
_NEVER: Final = float("inf")


def answer_probe(unix_seconds: float) -> bytes:
    """Return the answer to a probe."""
    moment = datetime.fromtimestamp(unix_seconds, UTC).isoformat().removesuffix("+00:00")
    return b'{"OK":true,"Now":"%bZ"}\n' % moment.encode()


def read_probe(answer: bytes) -> float:
    """Return the time of day in the answer to a probe; raise ValueError if it is invalid."""
    try:
        document = json.loads(answer)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(document, dict) or document.get("OK") is not True:
        raise ValueError("the peer does not say that it is well")
    moment = datetime.fromisoformat(str(document.get("Now")))
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone")
    return moment.timestamp()


class Probe:
    """Probes one peer, one request at a time."""

    __slots__ = (
        "_addresses",
        "_answer",
        "_counters",
        "_is_drifting",
        "_is_failing",
        "_number",
        "_peer",
        "_sent_at",
        "_sent_unix",
        "_shared",
        "_status",
        "wake_at",
    )

    def __init__(
        self,
        shared: TransportState,
        peer: int,
        counters: PeerCounters,
        addresses: Addresses,
        now: float,
    ) -> None:
        self._shared = shared
        self._peer = peer
        self._counters = counters
        self._addresses = addresses
        self._number: int | None = None
        self._sent_at = 0.0
        self._sent_unix = 0.0
        self._status = 0
        self._answer = b""
        self._is_failing = False
        self._is_drifting = False
        self.wake_at = now + PROBE_SECONDS

    def pass_time(self, now: float) -> float:
        """Send a probe if it is due; return when to call this next."""
        if now >= self.wake_at:
            if self._number is not None:
                self._shared.cancel(self._number)
                self._failed("no answer")
            self.wake_at = now + PROBE_SECONDS
            self._sent_at = now
            self._sent_unix = self._shared.settings.unix_seconds()
            self._status, self._answer = 0, b""
            url = self._addresses.current
            self._number = self._shared.request(self, url, "GET", PROBING, (), b"")
        return self.wake_at

    def handle_answer(self, kind: int, detail: Any, now: float) -> None:
        """Take an event of the request."""
        if kind == DialEventKind.RESPONDED:
            self._status = detail[0]
        elif kind == DialEventKind.PIECE:
            self._answer += detail[: _ANSWER_BYTES_MAX - len(self._answer)]
        elif kind in FAILURES:
            self._forget()
            self._failed(str(detail))
        elif kind == DialEventKind.COMPLETED:
            self._forget()
            try:
                if self._status != 200:
                    raise ValueError(f"status {self._status}")
                moment = read_probe(self._answer)
            except (ValueError, OverflowError) as error:
                self._failed(f"not the answer to a probe: {error}")
            else:
                self._answered(moment, now)

    def _forget(self) -> None:
        assert self._number is not None, "an event of no request"
        del self._shared.requests[self._number]
        self._number = None

    def _failed(self, problem: str) -> None:
        self._number = None
        if not self._is_failing:
            self._is_failing = True
            self._shared.logger.warning(f"{self._peer:x} does not answer probes: {problem}")

    def _answered(self, moment: float, now: float) -> None:
        if self._is_failing:
            self._is_failing = False
            self._shared.logger.info(f"{self._peer:x} answers probes again")
        round_trip = now - self._sent_at
        self._counters.round_trips += 1
        self._counters.round_trip_seconds = round_trip
        difference = moment - (self._sent_unix + round_trip / 2)
        is_drifting = abs(difference) > CLOCK_DIFFERENCE_SECONDS_MAX
        if is_drifting != self._is_drifting:
            self._is_drifting = is_drifting
            if is_drifting:
                self._shared.logger.warning(
                    f"the clock of {self._peer:x} differs by {difference:.3f} s; "
                    f"keep the clocks within {CLOCK_DIFFERENCE_SECONDS_MAX:.0f} s"
                )
            else:
                self._shared.logger.info(f"the clock of {self._peer:x} agrees again")

    def stop(self) -> None:
        """Stop probing."""
        if self._number is not None:
            self._shared.cancel(self._number)
            self._number = None
        self.wake_at = _NEVER
