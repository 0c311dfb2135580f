"""Decide which password is hashed next, and in which process.

A hash takes tens of milliseconds of a processor, and any client may ask for one. So there are two
processes. The prompt process runs at the server's own priority, so that a login succeeds soon even
if all processors of the host are busy; a budget limits its processor time. A flood of logins uses
up the budget; then the idle process, which yields to everything else, hashes instead.

Clients take turns: first the addresses, then the connections of an address. If the queue is full,
a client that has fewer passwords in it takes the place of one that has more, so a flood on one
connection neither delays nor displaces the logins of others.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from kvorum.member.jobs import ExecutorKind

PASSWORDS_WAITING_MAX: Final = 128
"""How many passwords may wait for their job; further calls are refused. A job takes some 50 ms, so
that this many end within the request timeout."""
PROMPT_SHARE = 0.05
"""The share of a processor by which the budget grows: one login a second, at the usual cost."""


class QueuedPassword:
    """A password in the queue."""

    __slots__ = ("_wake", "address", "connection", "executor", "is_refused", "number", "seconds")

    def __init__(self, connection: str, seconds: float, number: int) -> None:
        self.connection = connection
        self.address = connection.rpartition(":")[0]
        self.seconds = seconds
        """The approximate processor time of the hash."""
        self.number = number
        self.executor: ExecutorKind | None = None
        """The process that hashes the password; None while it waits."""
        self.is_refused = False
        """Whether another client took its place in the queue."""
        self._wake: Callable[[], None] | None = None

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Set the function to call once the turn has come, or was refused."""
        self._wake = wake

    def ended_waiting(self) -> None:
        """Wake the call, unless the turn came before the call began to wait."""
        if self._wake is not None:
            self._wake()


class PasswordQueue:
    """The waiting passwords of one member's clients, and the processes that hash."""

    def __init__(self, prompt_seconds_max: float) -> None:
        """Make a queue; `prompt_seconds_max` is the largest budget of the prompt process."""
        self._prompt_seconds_max = prompt_seconds_max
        self._waiting: list[QueuedPassword] = []
        self._busy: set[ExecutorKind] = set()
        self._joined = 0
        # For each address and each connection: how many of its passwords wait, and how many turns
        # it has had since its first waiting password joined.
        self._counts: Counter[str] = Counter()
        self._turns: dict[str, int] = {}
        self._budget = prompt_seconds_max
        self._budget_at = 0.0

    def join(self, connection: str, seconds: float, now: float) -> QueuedPassword | None:
        """Queue a password of a client; return its turn, which may have come, or None if refused.

        The caller ends each turn with `leave` or, after it started the job, with `release`.
        """
        self._joined += 1
        turn = QueuedPassword(connection, seconds, self._joined)
        if len(self._waiting) >= PASSWORDS_WAITING_MAX and not self._displace(turn):
            return None
        for key, present in (
            (turn.address, {each.address for each in self._waiting}),
            (connection, {each.connection for each in self._of(turn.address)}),
        ):
            if not self._counts[key]:
                # A newcomer stands neither ahead of the others nor behind them.
                self._turns[key] = min((self._turns[each] for each in present), default=0)
            self._counts[key] += 1
        self._waiting.append(turn)
        self.advance(now)
        return turn

    def leave(self, turn: QueuedPassword, now: float) -> None:
        """End a turn whose job was not started, whether it had come or not."""
        if turn.executor is not None:
            self._budget += turn.seconds if turn.executor is ExecutorKind.PASSWORDS else 0.0
            self.release(turn.executor, now)
        elif not turn.is_refused:
            self._remove(turn)
            self.advance(now)

    def release(self, executor: ExecutorKind, now: float) -> None:
        """Mark a process as free again."""
        self._busy.remove(executor)
        self.advance(now)

    def advance(self, now: float) -> None:
        """Assign free processes to the clients whose turn it is."""
        self._budget += PROMPT_SHARE * (now - self._budget_at)
        self._budget = min(self._budget, self._prompt_seconds_max)
        self._budget_at = now
        while self._waiting:
            # Without a flood the idle process is not even started.
            executor = ExecutorKind.PASSWORDS if self._budget > 0 else ExecutorKind.PASSWORDS_IDLE
            if executor in self._busy:
                return
            turn = min(self._waiting, key=self._order)
            self._turns[turn.address] += 1
            self._turns[turn.connection] += 1
            self._remove(turn)
            if executor is ExecutorKind.PASSWORDS:
                self._budget -= turn.seconds
            self._busy.add(executor)
            turn.executor = executor
            turn.ended_waiting()

    def _order(self, turn: QueuedPassword) -> tuple[int, int, int]:
        return self._turns[turn.address], self._turns[turn.connection], turn.number

    def _of(self, address: str) -> list[QueuedPassword]:
        return [each for each in self._waiting if each.address == address]

    def _displace(self, newcomer: QueuedPassword) -> bool:
        """Refuse the newest password of the client with the most, unless that is the newcomer."""
        counts = self._counts
        address = max({each.address for each in self._waiting}, key=counts.__getitem__)
        if counts[newcomer.address] + 1 >= counts[address]:
            address = newcomer.address
        rivals = {each.connection for each in self._of(address)}
        most = max(rivals, key=counts.__getitem__, default="")
        if address == newcomer.address and counts[newcomer.connection] + 1 >= counts[most]:
            return False
        refused = next(each for each in reversed(self._waiting) if each.connection == most)
        self._remove(refused)
        refused.is_refused = True
        refused.ended_waiting()
        return True

    def _remove(self, turn: QueuedPassword) -> None:
        self._waiting.remove(turn)
        for key in (turn.address, turn.connection):
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key], self._turns[key]
