"""Moments of the wall clock, to the millisecond: as archives write them, in names and in text.

All of an archive's moments are those at which the program that makes the backup heard of something,
by the clock of its machine.
"""

from datetime import UTC, datetime

AHEAD_SECONDS_MAX = 1.0
"""How far in the future a snapshot may be dated: clocks of machines differ a little. One that is
further ahead says nothing about when the next snapshot is due."""
_STAMP = "%Y%m%dT%H%M%S"


def rounded(seconds: float) -> float:
    """Return a moment as archives keep it."""
    return round(seconds, 3)


def text_of(seconds: float) -> str:
    """Return a moment as `2026-11-17T20:15:00.250Z`."""
    moment = datetime.fromtimestamp(rounded(seconds), UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{round(moment.microsecond / 1000):03}Z"


def parse_text(text: str) -> float:
    """Read a moment, in UTC if it does not say otherwise; raises ValueError."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return rounded(moment.timestamp())


def stamp_of(seconds: float) -> str:
    """Return a moment as names have it: `20261117T201500.250Z`. Stamps sort by time."""
    moment = datetime.fromtimestamp(rounded(seconds), UTC)
    return f"{moment:{_STAMP}}.{round(moment.microsecond / 1000):03}Z"


def parse_stamp(stamp: str) -> float:
    """Return the moment of a stamp."""
    whole, _, rest = stamp.partition(".")
    moment = datetime.strptime(whole, _STAMP).replace(tzinfo=UTC)
    return rounded(moment.timestamp() + int(rest.removesuffix("Z")) / 1000)
