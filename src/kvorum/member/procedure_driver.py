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

    from kvorum.member.member import Member
    from kvorum.member.procedures import Procedure

_NO_PUT: Final = (0,)


def run_procedures(member: Member, deadline: float) -> None:
    """Resume woken procedures, until the deadline."""
    runnable = member.procedures.runnable
    clock = member.clock
    while runnable:
        procedure, answer = runnable.popleft()
        _step(member, procedure, answer)
        if clock() >= deadline:
            return


def _step(member: Member, procedure: Procedure, answer: object) -> None:
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
        member.boundary.take(error, "call", f"a call of {who}, which was under way")
        result = INTERNAL
    else:
        if wait is None:
            member.procedures.runnable.append((procedure, None))
        else:
            _WAITS[type(wait)](member, procedure, wait)
        return
    member.procedures.end(procedure)
    if procedure.call is not None and result is not None:
        member.out.replies.append((procedure.call, result))


def _propose(member: Member, procedure: Procedure, wait: Propose) -> None:
    member.propose(procedure, procedure.caller, wait.kind, wait.body, wait.decoded)


def _propose_change(member: Member, procedure: Procedure, wait: ProposeChange) -> None:
    member.propose_change(procedure, wait.change)


def _read_index(member: Member, procedure: Procedure, _wait: ReadIndex) -> None:
    member.reads.waiting.append((procedure, procedure.caller, None, None, member.started))


def _lead_confirmed(member: Member, procedure: Procedure, _wait: LeadConfirmed) -> None:
    member.reads.confirming.append(procedure)


def _read(member: Member, procedure: Procedure, wait: Read) -> None:
    caller, linearizable = procedure.caller, wait.linearizable
    member.read(procedure, caller, wait.execute, wait.request, linearizable=linearizable)


def _applied_to(member: Member, procedure: Procedure, wait: AppliedTo) -> None:
    if wait.index <= member.state.applied:
        member.procedures.resume(procedure, None)
    else:
        member.procedures.wait_applied(procedure, wait.index, wait.moment)


def _flushed_to(member: Member, procedure: Procedure, wait: FlushedTo) -> None:
    # The index alone is not enough: a compaction deletes rows without an entry of its own.
    if wait.index <= member.state.backend.durable_index and member.state.backend.is_flushed:
        member.procedures.resume(procedure, None)
    else:
        member.procedures.wait_flushed(procedure, wait.index)


def _signalled(member: Member, procedure: Procedure, wait: Signalled) -> None:
    member.procedures.wait_signalled(procedure, wait.signal, wait.moment)


def _until(member: Member, procedure: Procedure, wait: Until) -> None:
    member.procedures.wait_until(procedure, wait.moment)


def _woken(member: Member, procedure: Procedure, wait: Woken) -> None:
    procedures, ticket = member.procedures, procedure.ticket
    wait.by(lambda: procedures.resume_at(procedure, ticket, None))
    procedures.wait_until(procedure, wait.moment)


def _leader_known(member: Member, procedure: Procedure, wait: LeaderKnown) -> None:
    if member.leader != NONE:
        member.procedures.resume(procedure, member.leader)
    else:
        member.procedures.wait_for_leader(procedure, wait.moment)


def _send(member: Member, procedure: Procedure, wait: Send) -> None:
    assert procedure.call is not None, "a procedure without a call has nowhere to send to"
    member.out.sends.append((procedure.call, wait.data))
    if procedure.is_held:
        member.procedures.wait_writable(procedure)
    else:
        member.procedures.resume(procedure, None)


def _run_job(member: Member, procedure: Procedure, wait: RunJob) -> None:
    def end(result: object) -> None:
        if wait.ended is not None:
            wait.ended()
        member.procedures.resume(procedure, result)

    member.out.jobs.append(Job(wait.place, wait.work, end, end))


def _ask(member: Member, procedure: Procedure, wait: Ask) -> None:
    number = member.procedures.wait_answer(procedure)
    member.out.questions.append(Question(number, *wait))


def _ask_leader(member: Member, procedure: Procedure, wait: AskLeader) -> None:
    if member.leader == NONE:
        member.procedures.resume(procedure, NO_LEADER)
        return
    _ask(member, procedure, Ask(member.leader, "POST", *wait))


def _key_deleted(member: Member, procedure: Procedure, wait: KeyDeleted) -> None:
    _watch(member, procedure, wait.key, b"", wait.revision, _NO_PUT)


def _keys_changed(member: Member, procedure: Procedure, wait: KeysChanged) -> None:
    _watch(member, procedure, wait.key, wait.range_end, wait.revision, ())


def _watch(
    member: Member,
    procedure: Procedure,
    key: bytes,
    range_end: bytes,
    revision: int,
    filters: tuple[int, ...],
) -> None:
    call = member.procedures.next_watch()
    stream = member.hub.open_stream(call)
    member.procedures.wait_watched(procedure, call, stream)
    stream.create(key, range_end, revision + 1, filters=filters)


_WAITS: Final[dict[type, Callable[[Member, Procedure, Any], None]]] = {
    Propose: _propose,
    ProposeChange: _propose_change,
    ReadIndex: _read_index,
    LeadConfirmed: _lead_confirmed,
    Read: _read,
    AppliedTo: _applied_to,
    FlushedTo: _flushed_to,
    Signalled: _signalled,
    KeyDeleted: _key_deleted,
    KeysChanged: _keys_changed,
    RunJob: _run_job,
    Until: _until,
    Woken: _woken,
    Send: _send,
    LeaderKnown: _leader_known,
    Ask: _ask,
    AskLeader: _ask_leader,
}
