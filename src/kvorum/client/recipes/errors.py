"""What can go wrong with a recipe, beside what can go wrong with a call."""

from kvorum.api import errors
from kvorum.client.errors import ElectionNoLeaderError, ElectionNotLeaderError, KvorumError
from kvorum.client.errors import SessionExpiredError as SessionExpiredError


class NotHeldError(KvorumError):
    """The lock is not held: it was never acquired, or has been released."""

    def __init__(self, name: str) -> None:
        super().__init__(f"mutex: lock has already been released: {name!r} is not held here")


class BarrierExistsError(KvorumError):
    """Somebody holds the barrier already."""

    def __init__(self, key: str) -> None:
        super().__init__(f"key already exists: barrier {key!r} is held by somebody")


class TooManyClientsError(KvorumError):
    """As many as the double barrier is for have entered."""

    def __init__(self, key: str, count: int) -> None:
        super().__init__(f"too many clients: {count} have entered the barrier {key!r} already")


class NotANumberError(KvorumError):
    """The key of a counter holds something else."""


def session_expired() -> SessionExpiredError:
    """Return the error of a key that is gone although it was waited for its turn."""
    status = errors.SESSION_EXPIRED
    return SessionExpiredError(status.code, status.text)


def not_leader() -> ElectionNotLeaderError:
    """Return the error of a candidate that does not lead."""
    status = errors.ELECTION_NOT_LEADER
    return ElectionNotLeaderError(status.code, status.text)


def no_leader() -> ElectionNoLeaderError:
    """Return the error of an election that nobody has won."""
    status = errors.ELECTION_NO_LEADER
    return ElectionNoLeaderError(status.code, status.text)
