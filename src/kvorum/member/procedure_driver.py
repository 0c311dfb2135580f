"""Drive procedures: resume each with its answer, and set up its next wait.

A procedure waits for keys with a watch of the hub, under a negative call number that no edge uses.
The watch's first response says that it was created; any later one means that a key changed or the
watch ended, and the procedure checks the state itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvorum.api.errors import INTERNAL, NO_LEADER, StatusError
from kvorum.member.jobs import Job
from kvorum.member.outbox import Question
from kvorum.member.waits import (
    AppliedTo,
    Ask,
    AskLeader,
    FlushedTo,
    KeyDeleted,
    KeysChanged,
    LeadConfirmed,
    LeaderKnown,
    Propose,
    ProposeChange,
    Read,
    ReadIndex,
    RunJob,
    Send,
    Signalled,
    Until,
    Woken,
)
from kvorum.raft.messages import NONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvorum.member.procedures import Procedure
    from kvorum.member.replica import Replica

_NO_PUT: Final = (0,)


def run_procedures(replica: Replica, deadline: float) -> None:
    """Resume woken procedures, until the deadline."""
    runnable = replica.procedures.runnable
    clock = replica.clock
    while runnable:
        procedure, answer = runnable.popleft()
        _step(replica, procedure, answer)
        if clock() >= deadline:
            return


def _step(replica: Replica, procedure: Procedure, answer: object) -> None:
    steps = procedure.steps
    if steps is None:
        return  # cancelled meanwhile
    result: Any
    try:
        wait = steps.throw(answer) if isinstance(answer, Exception) else steps.send(answer)
    except StopIteration as end:
        result = end.value
    except StatusError as error:
        result = error.status
    except Exception as error:
        # Errors of the member's own procedures and of failed jobs stop the member.
        if procedure.call is None or isinstance(answer, Exception):
            raise
        who = procedure.caller.describe(procedure.call)
        replica.boundary.take(error, "call", f"a call of {who}, which was under way")
        result = INTERNAL
    else:
        if wait is None:
            replica.procedures.runnable.append((procedure, None))
        else:
            _WAITS[type(wait)](replica, procedure, wait)
        return
    replica.procedures.end(procedure)
    if procedure.call is not None and result is not None:
        replica.out.replies.append((procedure.call, result))


def _propose(replica: Replica, procedure: Procedure, wait: Propose) -> None:
    replica.propose(procedure, procedure.caller, wait.kind, wait.body, wait.decoded)


def _propose_change(replica: Replica, procedure: Procedure, wait: ProposeChange) -> None:
    replica.propose_change(procedure, wait.change)


def _read_index(replica: Replica, procedure: Procedure, _wait: ReadIndex) -> None:
    replica.reads.waiting.append((procedure, procedure.caller, None, None, replica.started))


def _confirm_lead(replica: Replica, procedure: Procedure, _wait: LeadConfirmed) -> None:
    replica.reads.confirming.append(procedure)


def _read(replica: Replica, procedure: Procedure, wait: Read) -> None:
    caller, linearizable = procedure.caller, wait.linearizable
    replica.read(procedure, caller, wait.execute, wait.request, linearizable=linearizable)


def _wait_applied(replica: Replica, procedure: Procedure, wait: AppliedTo) -> None:
    if wait.index <= replica.state.applied:
        replica.procedures.resume(procedure, None)
    else:
        replica.procedures.wait_applied(procedure, wait.index, wait.moment)


def _wait_flushed(replica: Replica, procedure: Procedure, wait: FlushedTo) -> None:
    # The index alone is not enough: a compaction deletes rows without an entry of its own.
    if wait.index <= replica.state.backend.durable_index and replica.state.backend.is_flushed:
        replica.procedures.resume(procedure, None)
    else:
        replica.procedures.wait_flushed(procedure, wait.index)


def _wait_signalled(replica: Replica, procedure: Procedure, wait: Signalled) -> None:
    replica.procedures.wait_signalled(procedure, wait.signal, wait.moment)


def _wait_until(replica: Replica, procedure: Procedure, wait: Until) -> None:
    replica.procedures.wait_until(procedure, wait.moment)


def _wait_woken(replica: Replica, procedure: Procedure, wait: Woken) -> None:
    procedures, ticket = replica.procedures, procedure.ticket
    wait.by(lambda: procedures.resume_at(procedure, ticket, None))
    procedures.wait_until(procedure, wait.moment)


def _wait_for_leader(replica: Replica, procedure: Procedure, wait: LeaderKnown) -> None:
    if replica.leader != NONE:
        replica.procedures.resume(procedure, replica.leader)
    else:
        replica.procedures.wait_for_leader(procedure, wait.moment)


def _send(replica: Replica, procedure: Procedure, wait: Send) -> None:
    assert procedure.call is not None, "a procedure without a call has nowhere to send to"
    replica.out.sends.append((procedure.call, wait.data))
    if procedure.is_held:
        replica.procedures.wait_writable(procedure)
    else:
        replica.procedures.resume(procedure, None)


def _run_job(replica: Replica, procedure: Procedure, wait: RunJob) -> None:
    def end(result: object) -> None:
        if wait.on_end is not None:
            wait.on_end()
        replica.procedures.resume(procedure, result)

    replica.out.jobs.append(Job(wait.executor, wait.work, end, end))


def _ask(replica: Replica, procedure: Procedure, wait: Ask) -> None:
    number = replica.procedures.wait_answer(procedure)
    replica.out.questions.append(Question(number, *wait))


def _ask_leader(replica: Replica, procedure: Procedure, wait: AskLeader) -> None:
    if replica.leader == NONE:
        replica.procedures.resume(procedure, NO_LEADER)
        return
    _ask(replica, procedure, Ask(replica.leader, "POST", *wait))


def _wait_key_deleted(replica: Replica, procedure: Procedure, wait: KeyDeleted) -> None:
    _watch(replica, procedure, wait.key, b"", wait.revision, _NO_PUT)


def _wait_keys_changed(replica: Replica, procedure: Procedure, wait: KeysChanged) -> None:
    _watch(replica, procedure, wait.key, wait.range_end, wait.revision, ())


def _watch(
    replica: Replica,
    procedure: Procedure,
    key: bytes,
    range_end: bytes,
    revision: int,
    filters: tuple[int, ...],
) -> None:
    call = replica.procedures.next_watch()
    stream = replica.hub.open_stream(call)
    replica.procedures.wait_watched(procedure, call, stream)
    stream.create(key, range_end, revision + 1, filters=filters)


_WAITS: Final[dict[type, Callable[[Replica, Procedure, Any], None]]] = {
    Propose: _propose,
    ProposeChange: _propose_change,
    ReadIndex: _read_index,
    LeadConfirmed: _confirm_lead,
    Read: _read,
    AppliedTo: _wait_applied,
    FlushedTo: _wait_flushed,
    Signalled: _wait_signalled,
    KeyDeleted: _wait_key_deleted,
    KeysChanged: _wait_keys_changed,
    RunJob: _run_job,
    Until: _wait_until,
    Woken: _wait_woken,
    Send: _send,
    LeaderKnown: _wait_for_leader,
    Ask: _ask,
    AskLeader: _ask_leader,
}
