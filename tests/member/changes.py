"""Changes of the membership, and the call that makes one."""

from kvorum.member.waits import ProposeChange, Steps
from kvorum.raft.changes import ChangeType, ConfChange
from kvorum.state.membership.documents import MemberDocument as Listed
from kvorum.state.membership.documents import encode_member
from tests.member.harness import Machine


def change(machine: Machine, made: ConfChange) -> int:
    def steps() -> Steps:
        refusal = yield ProposeChange(made)
        return b"done" if refusal is None else refusal

    return machine.start_steps(steps())


def added(identity: int, url: str, *, is_learner: bool = False) -> ConfChange:
    kind = ChangeType.ADD_LEARNER_NODE if is_learner else ChangeType.ADD_NODE
    return ConfChange(kind, identity, encode_member(Listed(identity, (url,), is_learner)))


def removed(machine: Machine) -> ConfChange:
    return ConfChange(ChangeType.REMOVE_NODE, machine.running.id)
