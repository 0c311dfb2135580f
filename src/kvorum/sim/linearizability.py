"""Decides whether the operations of clients could have happened one after the other.

A history is linearizable if there is an order of its operations that a single store explains and
that agrees with real time: if one returned before another was invoked, it comes first. An operation
is reduced to the values that it saw and the values that it wrote. An operation that was never
answered is uncertain: it may take effect at any time after its invocation, or never.

Groups of keys that no operation connects are decided one by one. The rest is a search after Wing
and Gong, with Lowe's cache: depth first over the operations that may come next, never twice from
the same set of done operations and the same state. Three rules keep the search short:

- A value that only one operation writes ties the operations that saw it to that one
  (`kvorum.sim.bounds`): moments are narrowed before the search begins, which settles nearly
  every wrong history.
- A value that no operation will see any more is as good as any other, so orders that differ only in
  such values are equal. An operation that changes nothing else is taken at once.
- A value may not be overwritten while an operation has yet to see it and none will write it again.
"""

from collections.abc import Sequence

from kvorum.sim.bounds import narrow
from kvorum.sim.operations import NEVER, Operation, Prepared, components, prepare

STATES_MAX = 1_000_000
"""States that are visited before the search is abandoned."""
_UNOBSERVED = -1


class Undecided(Exception):  # noqa: N818 (neither the history nor the checker is wrong)
    """The search was abandoned."""


def find_contradiction(operations: Sequence[Operation]) -> Operation | None:
    """Return an operation that no order explains together with the others; None if all fit.

    Raise Undecided if the search would take too long.
    """
    for part in components(operations):
        prepared = prepare(part)
        if isinstance(prepared, Operation):
            return prepared
        impossible = narrow(prepared)
        if impossible is None:
            impossible = _Search(prepared).run()
        if impossible is not None:
            return prepared.operations[impossible]
    return None


def is_linearizable(operations: Sequence[Operation]) -> bool:
    """Return whether some order explains all certain operations, and any of the others."""
    return find_contradiction(operations) is None


class _Search:
    """The order so far, and the operations that may come next.

    Operations that are not done form a linked list in the order of invocation, so that taking one
    out and putting it back is cheap.
    """

    __slots__ = (
        "_after",
        "_before",
        "_certain",
        "_done",
        "_interest",
        "_invoked",
        "_observed",
        "_precede",
        "_readers",
        "_remaining",
        "_returned",
        "_seen",
        "_state",
        "_writers",
        "_written",
    )

    def __init__(self, prepared: Prepared) -> None:
        count = len(prepared.invoked)
        self._invoked = prepared.invoked
        self._returned = prepared.returned
        self._observed = prepared.observed
        self._written = prepared.written
        self._certain = prepared.certain
        self._precede = prepared.precede
        self._state = list(prepared.initial)
        # For every value: certain operations that have yet to see it, all that may, and writers.
        values = prepared.values
        self._readers = [0] * values
        self._interest = [0] * values
        self._writers = [0] * values
        for place in range(count):
            for _, value in self._observed[place]:
                self._readers[value] += self._certain[place]
                self._interest[value] += 1
            for _, value in self._written[place]:
                self._writers[value] += 1
        self._remaining = sum(self._certain)
        self._done = 0
        self._seen: set[tuple[int, tuple[int, ...]]] = set()
        # Place 0 of the list is its head; operation n is at place n + 1.
        order = sorted(range(count), key=self._invoked.__getitem__)
        self._after = [0] * (count + 1)
        self._before = [0] * (count + 1)
        last = 0
        for place in order:
            self._after[last] = place + 1
            self._before[place + 1] = last
            last = place + 1
        self._after[last] = 0
        self._before[0] = last

    def run(self) -> int | None:
        """Return None if an order is found, else an operation that the longest one cannot place."""
        path: list[tuple[int, list[int], list[int]]] = []
        fewest, stuck = self._remaining + 1, 0
        candidates, urgent = self._candidates()
        while self._remaining:
            if self._remaining < fewest:
                fewest, stuck = self._remaining, urgent
            if candidates:
                place = candidates.pop()
                overwritten = self._do(place)
                if overwritten is not None:
                    path.append((place, overwritten, candidates))
                    candidates, urgent = self._candidates()
            elif path:
                place, overwritten, candidates = path.pop()
                self._undo(place, overwritten)
            else:
                return stuck
        return None

    def _do(self, place: int) -> list[int] | None:
        """Do an operation; return the values it overwrote, or None if the search must go back."""
        readers, interest, writers, state = (
            self._readers,
            self._interest,
            self._writers,
            self._state,
        )
        certain = self._certain[place]
        for _, value in self._observed[place]:
            readers[value] -= certain
            interest[value] -= 1
        overwritten = []
        is_wrong = False
        for key, value in self._written[place]:
            writers[value] -= 1
            old = state[key]
            overwritten.append(old)
            state[key] = value
            if old != value and readers[old] and not writers[old]:
                is_wrong = True
        self._done |= 1 << place
        self._remaining -= certain
        after, before = self._after, self._before
        entry = place + 1
        after[before[entry]] = after[entry]
        before[after[entry]] = before[entry]
        if not is_wrong:
            known = (
                self._done,
                tuple([value if interest[value] else _UNOBSERVED for value in state]),
            )
            if known not in self._seen:
                if len(self._seen) >= STATES_MAX:
                    raise Undecided(f"{len(self._seen)} states visited")
                self._seen.add(known)
                return overwritten
        self._undo(place, overwritten)
        return None

    def _undo(self, place: int, overwritten: list[int]) -> None:
        certain = self._certain[place]
        for _, value in self._observed[place]:
            self._readers[value] += certain
            self._interest[value] += 1
        for (key, value), old in zip(self._written[place], overwritten, strict=True):
            self._writers[value] += 1
            self._state[key] = old
        self._done &= ~(1 << place)
        self._remaining += certain
        entry = place + 1
        self._after[self._before[entry]] = entry
        self._before[self._after[entry]] = entry

    def _candidates(self) -> tuple[list[int], int]:
        """Return the places worth trying next, the best one last; and the first to return."""
        invoked, returned, state = self._invoked, self._returned, self._state
        deadline, urgent = NEVER + 1, 0
        possible: list[int] = []
        entry = self._after[0]
        # An operation may come now unless one that is not done returned before its invocation.
        while entry:
            place = entry - 1
            if invoked[place] > deadline:
                break
            possible.append(place)
            if returned[place] < deadline and self._certain[place]:
                deadline, urgent = returned[place], place
            entry = self._after[entry]
        missing = ~self._done
        certain: list[int] = []
        uncertain: dict[tuple[object, object], int] = {}
        wanted: set[int] | None = None
        for place in possible:
            if any(state[key] != value for key, value in self._observed[place]):
                continue
            if self._precede[place] & missing:
                continue
            if self._certain[place]:
                if self._changes_nothing(place):
                    return [place], urgent
                certain.append(place)
                continue
            if wanted is None:
                wanted = {pair[1] for each in possible for pair in self._observed[each]}
            if self._is_worth(place, wanted):
                # Of equal operations, any will do.
                uncertain.setdefault((self._observed[place], self._written[place]), place)
        certain.sort(key=returned.__getitem__, reverse=True)
        return [*uncertain.values(), *certain], urgent

    def _is_worth(self, place: int, wanted: set[int]) -> bool:
        """Return whether an uncertain operation can help: another sees a value that it writes.

        If it touches one key only, it can wait until right before the other.
        """
        observed, written = self._observed[place], self._written[place]
        is_simple = len({key for key, _ in (*observed, *written)}) == 1
        return any(
            self._state[key] != value and (value in wanted if is_simple else self._interest[value])
            for key, value in written
        )

    def _changes_nothing(self, place: int) -> bool:
        """Return whether no other operation can tell that this one, which fits, comes now."""
        observed = self._observed[place]
        interest = self._interest
        for key, value in self._written[place]:
            old = self._state[key]
            own_old = sum(pair == (key, old) for pair in observed)
            own_new = sum(pair == (key, value) for pair in observed)
            if interest[old] > own_old or interest[value] > own_new:
                return False
        return True
