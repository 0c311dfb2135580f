"""Compares members with the ledger after every turn: each applied what was permitted, no more.

A member that has applied an entry is at the ledger's revision for that entry, so it has made every
permitted write and no refused one. It has the ledger's users and roles at that entry, also after a
restart and after a snapshot, and no token that has ended by then.
"""

from typing import NamedTuple

from kvorum.member.member import Member
from kvorum.raft.entries import NO_LIMIT, EntryType
from kvorum.raft.log import RaftLog
from kvorum.sim.history import History
from kvorum.sim.ledger import Ledger
from kvorum.sim.machine import Machine
from kvorum.sim.permissions import Grant, State, User
from kvorum.sim.violation import Violation
from kvorum.state.auth.store import AuthStore
from kvorum.state.auth.tokens import SimpleTokens

DECIDED = "what is permitted is applied, and nothing else"
SAME = "members have the same users and roles"
TOKENS = "tokens end with what they stand for"

RUN_SECONDS_MAX = 200.0
"""A token with a longer lifetime does not expire within a run."""

Process = tuple[int, int]
"""A machine's number, and the incarnation of its process."""


class Seen(NamedTuple):
    """A member's state at its last check."""

    process: Process
    auth: AuthStore
    applied: int
    state: State | None


class Auditor:
    """Compares members with the ledger."""

    __slots__ = ("_checked", "_history", "_keeps_tokens", "_seen", "_skipped", "ledger")

    def __init__(self, history: History, token_seconds: float) -> None:
        self.ledger = Ledger()
        self._history = history
        # Whether tokens outlive the run.
        self._keeps_tokens = token_seconds > RUN_SECONDS_MAX
        self._seen: dict[int, Seen] = {}
        # Ranges of entries, first to last, whose effects a process did not apply one by one: it
        # read them from disk or from a snapshot.
        self._skipped: dict[Process, list[tuple[int, int]]] = {}
        self._checked = 1

    def note_committed(self, log: RaftLog, last: int) -> None:
        """Give the ledger the entries that a member knows to be committed."""
        first = self.ledger.last + 1
        if first <= last:
            for entry in log.slice(first, last + 1, NO_LIMIT):
                is_request = entry.type == EntryType.NORMAL
                self.ledger.take(entry.index, entry.data if is_request else b"")

    def has_applied(self, process: Process, index: int) -> bool:
        """Return whether a process that is past an entry has applied it, and not skipped it."""
        skipped = self._skipped.get(process, [(0, index)])
        return not any(first <= index <= last for first, last in skipped)

    def note_turn(self, machine: Machine, member: Member) -> None:
        """Compare a member with the ledger."""
        process, applied = (machine.number, machine.incarnation), member.state.applied
        seen = self._seen.get(machine.number)
        if seen is not None and seen.process == process:
            if seen.applied == applied and seen.auth is member.state.auth:
                return
            if seen.auth is not member.state.auth:
                # The snapshot that replaced the users may have ended tokens known before.
                self._skipped[process].append((0, applied))
        else:
            self._skipped[process] = [(0, applied)]
            seen = None
        state = self.ledger.state_at(applied)
        self._check_effects(machine.name, member)
        is_known = seen is not None and seen.auth is member.state.auth and seen.state is state
        if not is_known or member.state.auth.revision != state.revision:
            _check_users(machine.name, applied, member.state.auth, state)
        self._check_tokens(machine.name, process, member, state)
        self._seen[machine.number] = Seen(process, member.state.auth, applied, state)

    def _check_effects(self, name: str, member: Member) -> None:
        ledger, history = self.ledger, self._history
        state = member.state
        expected, found = ledger.main_at(state.applied), state.store.revision
        # An entry that takes several turns has effects before it counts as applied.
        is_amid = member.replica.apply_queue.slices is not None
        if found != expected and not (is_amid and found == expected + 1):
            raise Violation(
                DECIDED,
                f"{name} is at revision {found} after entry {state.applied}, and should be at "
                f"{expected}",
            )
        for main in range(self._checked + 1, history.revision + 1):
            effects = history.effects.get(main)
            if effects is not None and effects != ledger.expected.get(main):
                raise Violation(
                    DECIDED,
                    f"{name} has revision {main} as {effects!r}, and it should be "
                    f"{ledger.expected.get(main)!r}",
                )
        self._checked = max(self._checked, history.revision)

    def _check_tokens(self, name: str, process: Process, member: Member, state: State) -> None:
        assert isinstance(member.state.tokens, SimpleTokens)
        known = member.state.tokens._users
        for token, user in known.items():
            if state.tokens.get(token) != user:
                raise Violation(
                    TOKENS, f"{name} takes {token} for {user} after entry {member.state.applied}"
                )
        if self._keeps_tokens:
            for token, user in state.tokens.items():
                if token not in known and self.has_applied(process, index_of(token)):
                    raise Violation(TOKENS, f"{name} has forgotten {token} of {user}")


def index_of(token: str) -> int:
    """Return the entry that made a token."""
    return int(token.rpartition(".")[2]) + 1


def _check_users(name: str, applied: int, auth: AuthStore, state: State) -> None:
    """Require that a member's users and roles are those of the ledger."""
    users, roles = {}, {}
    for each in auth.users:
        user = auth.user(each)
        assert user is not None
        users[each] = User(user.password, not user.options.no_password, tuple(user.roles))
    for each in auth.roles:
        role = auth.role(each)
        assert role is not None
        roles[each] = tuple(
            Grant(grant.permType, grant.key, grant.range_end) for grant in role.keyPermission
        )
    for what, found, expected in (
        ("authentication", auth.is_enabled, state.is_enabled),
        ("revision", auth.revision, state.revision),
        ("users", users, state.users),
        ("roles", roles, state.roles),
    ):
        if found != expected:
            raise Violation(
                SAME, f"{name}, after entry {applied}: {what} {found!r} in place of {expected!r}"
            )
