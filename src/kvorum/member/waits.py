"""The waits of procedures: a procedure yields one of these and resumes with the answer.

A procedure, a call of several steps, is a generator. It yields a wait, or None to let the turn
end, and returns the encoded response or a Status. An answer that is a Status means that the step
failed; most procedures return that Status themselves.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from kvorum.member.jobs import ExecutorKind, Work
from kvorum.member.outbox import Headers
from kvorum.raft.changes import ConfChange
from kvorum.state.apply.results import Result
from kvorum.state.mvcc.ranges import RangeResult

if TYPE_CHECKING:
    from kvorum.member.reads import Execute


class Propose(NamedTuple):
    """Propose a request as `Replica.propose` does; resumes with its response, or a Status."""

    kind: int
    body: bytes
    decoded: object = None


class ProposeChange(NamedTuple):
    """Propose a membership change; resumes with None once it is applied, or with a Status.

    The member fills in the change's id. The wait lasts as long as the client waits.
    """

    change: ConfChange


class ReadIndex(NamedTuple):
    """Wait until a local read is linearizable; resumes with None or a Status."""


class LeadConfirmed(NamedTuple):
    """Confirm that a quorum still follows this leader; resumes with None or a Status.

    Works as `ReadIndex` does, without waiting for entries to be applied.
    """


class Read(NamedTuple):
    """Read local state as `Replica.read` does; resumes with the result, or a Status.

    A snapshot may replace the state at any wait, so a procedure keeps no part of the state, least
    of all work in slices: the member drives the slices, and restarts them on the next state.
    """

    execute: "Execute"
    request: object
    linearizable: bool = False


@dataclass(slots=True, frozen=True)
class AppliedTo:
    """Wait until this member has applied an entry, or for a moment; resumes with None."""

    index: int
    moment: float = inf


@dataclass(slots=True, frozen=True)
class FlushedTo:
    """Wait until the effects of an entry and all before it are durable; resumes with None.

    The wait triggers a flush as soon as the entry is applied.
    """

    index: int


class Signal(Enum):
    """Events of the member as a whole that procedures wait for."""

    LEADER = "the leader changed, or there is none"
    COMPACTED = "a compaction is done"
    DEFRAGMENTED = "a defragmentation has started or ended"
    HASHED = "a hash of all keys was computed"
    SENT = "a client's snapshot was sent or abandoned"
    READ = "a piece of a client's snapshot was read"


@dataclass(slots=True, frozen=True)
class Signalled:
    """Wait for a signal or a moment; resumes with None.

    The procedure then checks the state: the same signal resumes other procedures too, and an
    installed snapshot, which may change everything, gives all signals.
    """

    signal: Signal
    moment: float = inf


@dataclass(slots=True, frozen=True)
class Woken:
    """Pass a function to `by` and wait for its call, or for a moment; resumes with None."""

    by: Callable[[Callable[[], None]], None]
    moment: float = inf


class KeyDeleted(NamedTuple):
    """Wait until a key is deleted after a revision; resumes with None."""

    key: bytes
    revision: int


class KeysChanged(NamedTuple):
    """Wait until a key of a range is put or deleted after a revision; resumes with None.

    The range's end is as in requests: empty for one key, a zero byte for all from the key on.
    """

    key: bytes
    range_end: bytes
    revision: int


class RunJob(NamedTuple):
    """Run a job; resumes with its result, or raises its error.

    The member calls `on_end` when the job ends, even if the procedure was cancelled meanwhile.
    """

    executor: ExecutorKind
    work: Work
    on_end: Callable[[], None] | None = None


class Until(NamedTuple):
    """Wait until a moment of the monotonic clock; resumes with None."""

    moment: float


class Send(NamedTuple):
    """Send a message on the call's stream; resumes with None, later if the stream is held."""

    data: bytes


class LeaderKnown(NamedTuple):
    """Wait for a known leader or a moment; resumes with the leader's id, or None."""

    moment: float


class Ask(NamedTuple):
    """Ask a peer outside of raft, for example for its hash of the keys.

    Resumes with the body of the answer, with a Status if the peer refused for a known reason, or
    with None without a valid answer (`kvorum.member.peer_requests.interpret_answer`).
    """

    peer: int
    method: str
    path: str
    body: bytes
    headers: Headers = ()


class AskLeader(NamedTuple):
    """Ask the leader, for example to renew a lease; works as `Ask` with POST."""

    path: str
    body: bytes
    headers: Headers = ()


Wait = (
    Propose
    | ProposeChange
    | ReadIndex
    | LeadConfirmed
    | Read
    | AppliedTo
    | FlushedTo
    | Signalled
    | KeyDeleted
    | KeysChanged
    | RunJob
    | Until
    | Woken
    | Send
    | LeaderKnown
    | Ask
    | AskLeader
)
Steps = Generator[Wait | None, Any, Result | None]
"""The generator of a procedure. It returns the final result of its call; for a stream a Status."""

Answer = Result | RangeResult | int | None
"""The value with which a procedure resumes."""
