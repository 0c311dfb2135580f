"""Times of the wall clock, to the millisecond, as archives write them in names and in text.

All times in an archive are times of receipt, by the clock of the machine that runs the backup.
"""

from datetime import UTC, datetime

AHEAD_SECONDS_MAX = 1.0
"""How far in the future a snapshot may be dated, as clocks of machines differ a little. A snapshot
further ahead does not count towards the time of the next one."""
_STAMP = "%Y%m%dT%H%M%S"


def round_moment(seconds: float) -> float:
    """Round a time to the precision of archives."""
    return round(seconds, 3)


def text_of(seconds: float) -> str:
    """Return a time as `2026-11-17T20:15:00.250Z`."""
    moment = datetime.fromtimestamp(round_moment(seconds), UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{round(moment.microsecond / 1000):03}Z"


def parse_text(text: str) -> float:
    """Parse a time, in UTC if it names no zone; raise ValueError if it is invalid."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round_moment(moment.timestamp())


def stamp_of(seconds: float) -> str:
    """Return a time in the form of names: `20261117T201500.250Z`. Stamps sort by time."""
    moment = datetime.fromtimestamp(round_moment(seconds), UTC)
    return f"{moment:{_STAMP}}.{round(moment.microsecond / 1000):03}Z"


def parse_stamp(stamp: str) -> float:
    """Parse a stamp."""
    whole, _, rest = stamp.partition(".")
    moment = datetime.strptime(whole, _STAMP).replace(tzinfo=UTC)
    return round_moment(moment.timestamp() + int(rest.removesuffix("Z")) / 1000)
