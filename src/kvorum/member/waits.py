"""What a procedure may wait for: it yields one of these and is resumed with the answer.

A call of several steps is a generator. It yields a wait, or None to let the turn end, and
returns the encoded response or a Status. An answer that is a Status means that the step failed;
most procedures return it as their own.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from kvorum.member.jobs import Place, Work
from kvorum.member.outbox import Headers, Result
from kvorum.mvcc.ranges import RangeResult
from kvorum.raft.changes import ConfChange

if TYPE_CHECKING:
    from kvorum.member.reads import Execute


class Propose(NamedTuple):
    """An entry; resumed with its encoded response, or a Status. As `Member.propose`."""

    kind: int
    body: bytes
    decoded: object = None


class ProposeChange(NamedTuple):
    """A change of the membership; resumed with None once it is applied, or with a Status.

    Its id is filled in. It waits as long as the client does.
    """

    change: ConfChange


class ReadIndex(NamedTuple):
    """That a read now is linearizable; resumed with None or a Status."""


class LeadConfirmed(NamedTuple):
    """That a quorum still follows this member, if it leads; resumed with None or a Status.

    As `ReadIndex`, but nothing need be applied for it.
    """


class Read(NamedTuple):
    """What local state holds; resumed with the result, or a Status. As `Member.read`.

    A snapshot may replace the state at any wait, so a procedure keeps nothing of it, least of all
    work in slices: the member drives that, and begins it anew on the next state.
    """

    execute: "Execute"
    request: object
    linearizable: bool = False


@dataclass(slots=True, frozen=True)
class AppliedTo:
    """That this member has applied an entry, or a moment has come; resumed with None."""

    index: int
    moment: float = inf


@dataclass(slots=True, frozen=True)
class FlushedTo:
    """That the effects of an entry, and of all before it, are on the disk; resumed with None.

    Has them flushed as soon as they are applied.
    """

    index: int


class Signal(Enum):
    """Events of the member as a whole that procedures wait for."""

    LEADER = "another leads, or nobody"
    COMPACTED = "a compaction is done"
    DEFRAGMENTED = "a defragmentation has begun or ended"
    HASHED = "a hash of all keys was computed"
    SENT = "a client's snapshot was sent, or given up"
    READ = "a piece of a client's snapshot was read"


@dataclass(slots=True, frozen=True)
class Signalled:
    """That something happens, or a moment has come; resumed with None.

    The procedure then checks how things are: others are resumed by the same signal, and an
    installed snapshot, after which everything may be different, gives all signals.
    """

    signal: Signal
    moment: float = inf


@dataclass(slots=True, frozen=True)
class Woken:
    """That the function which `by` is given is called, or a moment has come; resumed with None."""

    by: Callable[[Callable[[], None]], None]
    moment: float = inf


class KeyDeleted(NamedTuple):
    """That a key which was there at a revision was deleted since; resumed with None."""

    key: bytes
    revision: int


class KeysChanged(NamedTuple):
    """That a key of a range was put or deleted after a revision; resumed with None.

    The range's end is as in requests: empty for one key, a zero byte for all from the key on.
    """

    key: bytes
    range_end: bytes
    revision: int


class RunJob(NamedTuple):
    """A job; resumed with its result, or its error is raised.

    `ended` is called when it has ended, whether or not the procedure is still there to be resumed.
    """

    place: Place
    work: Work
    ended: Callable[[], None] | None = None


class Until(NamedTuple):
    """A moment of the monotonic clock; resumed with None."""

    moment: float


class Send(NamedTuple):
    """A message on the call's stream; resumed with None, later if the stream is held."""

    data: bytes


class LeaderKnown(NamedTuple):
    """That a leader is known, or a moment has come; resumed with its id, or None."""

    moment: float


class Ask(NamedTuple):
    """A question to a peer outside of raft, such as for its hash of the keys.

    Resumed with the body of the answer, with a Status if the peer refused for a reason that is
    understood, or with None if there was no such answer (`kvorum.member.questions.meaning`).
    """

    peer: int
    method: str
    path: str
    body: bytes
    headers: Headers = ()


class AskLeader(NamedTuple):
    """A question to the leader, such as the renewal of a lease; as `Ask`, with POST."""

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
"""What a procedure is. It returns the end of its call; for a stream that is a Status."""

Answer = Result | RangeResult | int | None
"""What a procedure is resumed with."""
