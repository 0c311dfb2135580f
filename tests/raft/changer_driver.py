"""Runs the scenarios about the membership change engine."""

from kvorum.raft.changer import Changer
from kvorum.raft.changes import Change, ChangeType
from kvorum.raft.errors import ConfChangeError
from kvorum.raft.tracker import Tracker
from tests.raft.datadriven import Case

LETTERS = {
    "v": ChangeType.ADD_NODE,
    "l": ChangeType.ADD_LEARNER_NODE,
    "r": ChangeType.REMOVE_NODE,
    "u": ChangeType.UPDATE_NODE,
}


class TokenError(Exception):
    """A change that cannot be read."""


def parse_changes(text: str) -> tuple[Change, ...]:
    changes = []
    for token in text.split():
        if len(token) < 2:
            raise TokenError(f"unknown token {token}")
        if token[0] not in LETTERS:
            raise TokenError(f"unknown input: {token}")
        changes.append(Change(LETTERS[token[0]], int(token[1:])))
    return tuple(changes)


class ChangerDriver:
    """One tracker for a whole file; its last index grows by one with every command."""

    def __init__(self) -> None:
        self.tracker = Tracker(10)
        self.last_index = 0

    def handle(self, case: Case) -> str:
        try:
            return self._run(case)
        except (ConfChangeError, TokenError) as error:
            return str(error)
        finally:
            self.last_index += 1

    def _run(self, case: Case) -> str:
        changes = parse_changes(case.input)
        changer = Changer(self.tracker, self.last_index)
        if case.command == "simple":
            result = changer.simple(changes)
        elif case.command == "enter-joint":
            result = changer.enter_joint(case.flag("autoleave"), changes)
        elif case.command == "leave-joint":
            if changes:
                return "this command takes no input"
            result = changer.leave_joint()
        else:
            return "unknown command"
        self.tracker.install(*result)
        lines = [f"{node}: {peer}" for node, peer in self.tracker.progress.items()]
        return "\n".join([str(self.tracker.config), *lines])
