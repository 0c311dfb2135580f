"""Decide whether an unexpected error ends only its request or stops the member.

Requests make a member parse, check and look things up. An unexpected error there ends only the
request: the member answers it, counts the error, logs it with the request's data, and continues. An
error that passed through a module that holds data may have left that data half changed, so the
boundary raises it again, which stops the member. The traceback tells the two cases apart, so that
no code path into those modules can be overlooked.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Protocol

KINDS: Final = ("http", "call", "peer", "dial", "trace")
"""What an error may end: a plain HTTP request, a gRPC call, a request from another member, this
member's own request to another member, or the trace of a call."""
LOG_SECONDS: Final = 10.0
"""The minimum time between log lines about errors from the same code line."""
LINES_MAX: Final = 256
"""How many code lines are remembered before all are forgotten; errors come from few."""
SENT_MAX: Final = 256
TEXT_MAX: Final = 300
FRAMES_MAX: Final = 4

_DATA: Final = frozenset({"member", "state", "storage", "raft"})
_WITHOUT_DATA: Final = frozenset(
    {
        "kvorum.state.auth.jwt_keys",
        "kvorum.state.auth.jwt_tokens",
        "kvorum.state.auth.options",
        "kvorum.state.auth.passwords",
        "kvorum.state.auth.tokens",
        "kvorum.member.identities",
        "kvorum.member.peer_requests",
        "kvorum.member.procedure_driver",
        "kvorum.state.membership.documents",
        "kvorum.state.membership.identity",
        "kvorum.state.membership.urls",
        "kvorum.state.membership.versions",
        "kvorum.raft.wire",
    }
)
"""Modules of those packages that hold no data: they parse, or resume calls that fronts started."""


class StoppingError(Exception):
    """An error that stops the member or its start, wherever it occurs."""


class ErrorLogger(Protocol):
    """Takes lines about errors."""

    def error(self, msg: str, /) -> None:
        """Take a line about a mistake of a caller or a peer."""


def concerns_data(error: BaseException) -> bool:
    """Return whether an error, or a cause of it, passed through a module that holds data."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if isinstance(found, StoppingError):
            return True
        if any(_holds_data(name) for name, _ in _code_lines(found.__traceback__)):
            return True
        found = found.__cause__ or found.__context__
    return False


def _holds_data(module: str) -> bool:
    package, _, rest = module.partition(".")
    return package == "kvorum" and rest.partition(".")[0] in _DATA and module not in _WITHOUT_DATA


def _code_lines(traceback: TracebackType | None) -> Iterator[tuple[str, int]]:
    """Yield the modules and lines of a traceback, outermost first."""
    while traceback is not None:
        # Compiled code has its module's globals in its frames, too.
        yield str(traceback.tb_frame.f_globals.get("__name__", "")), traceback.tb_lineno
        traceback = traceback.tb_next


class Boundary:
    """Handles the errors that end one request, and counts them."""

    __slots__ = ("_clock", "_logged_at", "_logger", "_unlogged", "counts")

    def __init__(self, logger: ErrorLogger, clock: Callable[[], float]) -> None:
        self._logger = logger
        self._clock = clock
        self.counts: Counter[str] = Counter()
        """The number of errors by kind."""
        self._logged_at: dict[str, float] = {}
        self._unlogged: Counter[str] = Counter()

    def take(self, error: Exception, kind: str, what: str, sent: bytes | str = b"") -> None:
        """Count and log a request's error; raise it again if it concerns data.

        `what` names the request and `sent` is its content, of which the line shows the beginning.
        """
        if concerns_data(error):
            raise error
        self.counts[kind] += 1
        places = [f"{name}:{line}" for name, line in _code_lines(error.__traceback__)]
        unlogged = self._count_unlogged(
            f"{type(error).__name__} at {places[-1] if places else '?'}"
        )
        if unlogged is None:
            return
        came_with = f"; sent was {_beginning(sent, SENT_MAX)}" if sent else ""
        self._logger.error(
            f"an unforeseen error ended {what}, and nothing else: "
            f"{type(error).__name__}: {_beginning(str(error), TEXT_MAX)} "
            f"(at {', '.join(places[: -FRAMES_MAX - 1 : -1])}){came_with}{unlogged}. "
            "Please report it"
        )

    def log_refusal(self, what: str) -> None:
        """Log the refusal of harmful input, at a limited rate."""
        unlogged = self._count_unlogged("refused")
        if unlogged is not None:
            self._logger.error(f"refused {what}{unlogged}")

    def _count_unlogged(self, place: str) -> str | None:
        """Return None if a place was logged recently; else text that counts the unlogged errors."""
        now = self._clock()
        if now - self._logged_at.get(place, -LOG_SECONDS) < LOG_SECONDS:
            self._unlogged[place] += 1
            return None
        if len(self._logged_at) >= LINES_MAX:
            self._logged_at.clear()
            self._unlogged.clear()
        self._logged_at[place] = now
        unlogged = self._unlogged.pop(place, 0)
        return f"; {unlogged} more since the last line about it" if unlogged else ""


def _beginning(content: bytes | str, length: int) -> str:
    """Return the beginning of outside content, escaped for a log."""
    rest = len(content) - length
    return ascii(content[:length]) + (f" and {rest} more" if rest > 0 else "")
