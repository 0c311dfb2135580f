"""Which password is hashed next, and by which process.

A hash takes tens of milliseconds of a processor, and anybody may ask for one. So there are two
processes. The prompt one runs at the server's own priority: a login succeeds soon on a host whose
processors are all busy. A budget limits the processor time that it takes from others. Under a
flood of logins the budget is used up, and the idle process, which gives way to everything else,
does what the prompt one does not.

Clients take turns: first the addresses, then the connections of an address. If the queue is full,
a client that has fewer passwords in it takes the place of one that has more, so a flood on one
connection neither delays nor displaces the logins of others.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from kvorum.member.jobs import Place

PASSWORDS_WAITING_MAX: Final = 128
"""How many passwords may wait for their job, each some 50 ms: as many as are done within the time
for requests. More calls are refused."""
# Plain variables, which the simulator makes small.
PROMPT_SECONDS_MAX = 0.5
"""The budget: the processor time that hashes at the server's own priority may take in one burst."""
PROMPT_SHARE = 0.05
"""How much of a processor the budget grows by: one login a second, at the usual cost."""


class Turn:
    """A password in the queue."""

    __slots__ = ("_wake", "address", "connection", "is_refused", "number", "place", "seconds")

    def __init__(self, connection: str, seconds: float, number: int) -> None:
        self.connection = connection
        self.address = connection.rpartition(":")[0]
        self.seconds = seconds
        """The processor time that its hash takes, roughly."""
        self.number = number
        self.place: Place | None = None
        """Which process is to hash it; None while it waits."""
        self.is_refused = False
        """Whether another client needed its place in the queue."""
        self._wake: Callable[[], None] | None = None

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Set what is called once the turn has come, or was refused."""
        self._wake = wake

    def ended_waiting(self) -> None:
        """Wake the call, unless the turn came before it began to wait."""
        if self._wake is not None:
            self._wake()


class PasswordQueue:
    """The passwords of one member's clients: those that wait, and those that are being hashed."""

    def __init__(self) -> None:
        self._waiting: list[Turn] = []
        self._busy: set[Place] = set()
        self._joined = 0
        # Keys are addresses, and connections: how many of their passwords wait, and how many turns
        # each has had since one of them began to wait.
        self._counts: Counter[str] = Counter()
        self._turns: dict[str, int] = {}
        self._budget = PROMPT_SECONDS_MAX
        self._budget_at = 0.0

    def join(self, connection: str, seconds: float, now: float) -> Turn | None:
        """Add a password of a client; return its turn, which may have come, or None if it may not.

        Each turn ends by `leave` or, if a job was begun for it, by `release`.
        """
        self._joined += 1
        turn = Turn(connection, seconds, self._joined)
        if len(self._waiting) >= PASSWORDS_WAITING_MAX and not self._displace(turn):
            return None
        for key, present in (
            (turn.address, {each.address for each in self._waiting}),
            (connection, {each.connection for each in self._of(turn.address)}),
        ):
            if not self._counts[key]:
                # Neither ahead of those that wait nor behind them.
                self._turns[key] = min((self._turns[each] for each in present), default=0)
            self._counts[key] += 1
        self._waiting.append(turn)
        self.advance(now)
        return turn

    def leave(self, turn: Turn, now: float) -> None:
        """End a turn for which no job was begun, whether it had come or not."""
        if turn.place is not None:
            self._budget += turn.seconds if turn.place is Place.PASSWORDS else 0.0
            self.release(turn.place, now)
        elif not turn.is_refused:
            self._remove(turn)
            self.advance(now)

    def release(self, place: Place, now: float) -> None:
        """Note that a process is free again."""
        self._busy.remove(place)
        self.advance(now)

    def advance(self, now: float) -> None:
        """Give free processes to the clients whose turn it is."""
        self._budget += PROMPT_SHARE * (now - self._budget_at)
        self._budget, self._budget_at = min(self._budget, PROMPT_SECONDS_MAX), now
        while self._waiting:
            # Without a flood the idle process is not even started.
            place = Place.PASSWORDS if self._budget > 0 else Place.PASSWORDS_IDLE
            if place in self._busy:
                return
            turn = min(self._waiting, key=self._order)
            self._turns[turn.address] += 1
            self._turns[turn.connection] += 1
            self._remove(turn)
            if place is Place.PASSWORDS:
                self._budget -= turn.seconds
            self._busy.add(place)
            turn.place = place
            turn.ended_waiting()

    def _order(self, turn: Turn) -> tuple[int, int, int]:
        return self._turns[turn.address], self._turns[turn.connection], turn.number

    def _of(self, address: str) -> list[Turn]:
        return [each for each in self._waiting if each.address == address]

    def _displace(self, newcomer: Turn) -> bool:
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

    def _remove(self, turn: Turn) -> None:
        self._waiting.remove(turn)
        for key in (turn.address, turn.connection):
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key], self._turns[key]
