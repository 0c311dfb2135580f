"""The errors of recipes, in addition to those of calls."""

from kvorum.api import errors
from kvorum.client.errors import ElectionNoLeaderError, ElectionNotLeaderError, KvorumError
from kvorum.client.errors import SessionExpiredError as SessionExpiredError


class NotHeldError(KvorumError):
    """The lock is not held: it was never acquired, or has been released."""

    def __init__(self, name: str) -> None:
        super().__init__(f"mutex: lock has already been released: {name!r} is not held here")


class BarrierExistsError(KvorumError):
    """The barrier is held already."""

    def __init__(self, key: str) -> None:
        super().__init__(f"key already exists: barrier {key!r} is held by somebody")


class TooManyClientsError(KvorumError):
    """The double barrier is full: all of its clients have entered already."""

    def __init__(self, key: str, count: int) -> None:
        super().__init__(f"too many clients: {count} have entered the barrier {key!r} already")


class NotANumberError(KvorumError):
    """The key of a counter holds something other than a whole number."""


def session_expired() -> SessionExpiredError:
    """Return the error for a key that disappeared while its owner waited for its turn."""
    status = errors.SESSION_EXPIRED
    return SessionExpiredError(status.code, status.text)


def not_leader() -> ElectionNotLeaderError:
    """Return the error for a candidate that does not lead."""
    status = errors.ELECTION_NOT_LEADER
    return ElectionNotLeaderError(status.code, status.text)


def no_leader() -> ElectionNoLeaderError:
    """Return the error for an election without a leader."""
    status = errors.ELECTION_NO_LEADER
    return ElectionNoLeaderError(status.code, status.text)
