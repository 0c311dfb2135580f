"""Narrows the interval in which each operation took effect, before the search tries orders.

An operation that saw a value came after the one that wrote it, and no other write of that key lies
between them: the writer of a value and those that saw it form a block. So if any operation of one
block returned before any of another was invoked, all of the first block come before all of the
second. That moves invocations up and returns down, until nothing moves any more, or an operation
would have to return before it was invoked.
"""

from bisect import bisect_left, bisect_right

from kvorum.sim.operations import Prepared

ROUNDS_MAX = 20


class _Value:
    """A value, its writer, and the operations that saw it."""

    __slots__ = ("earliest_return", "latest_invocation", "members", "writer")

    def __init__(self, writer: int) -> None:
        self.writer = writer
        self.members = [writer]
        self.earliest_return = 0
        self.latest_invocation = 0


def narrow(prepared: Prepared) -> int | None:
    """Narrow intervals and record precedence; return an operation without an interval."""
    by_key = _values_by_key(prepared)
    for _ in range(ROUNDS_MAX):
        before = (list(prepared.invoked), list(prepared.returned))
        for values in by_key:
            _tie(prepared, values)
            _order(prepared, values)
        for place, invoked in enumerate(prepared.invoked):
            if invoked > prepared.returned[place]:
                return place
        if before == (prepared.invoked, prepared.returned):
            break
    for values in by_key:
        _note(prepared, values)
    return None


def _values_by_key(prepared: Prepared) -> list[list[_Value]]:
    """Return for every key the values that one certain operation wrote."""
    found: dict[int, _Value] = {}
    by_key: dict[int, list[_Value]] = {}
    for place, written in enumerate(prepared.written):
        for key, value in written:
            if prepared.sole_writer.get(value) == place and prepared.certain[place]:
                found[value] = _Value(place)
                by_key.setdefault(key, []).append(found[value])
    for place, observed in enumerate(prepared.observed):
        for _, value in observed:
            if value in found and prepared.certain[place] and place != found[value].writer:
                found[value].members.append(place)
    return list(by_key.values())


def _tie(prepared: Prepared, values: list[_Value]) -> None:
    """Order writers before the operations that saw their values."""
    invoked, returned = prepared.invoked, prepared.returned
    for value in values:
        writer = value.writer
        for place in value.members:
            if invoked[place] < invoked[writer]:
                invoked[place] = invoked[writer]
            if returned[place] < returned[writer]:
                returned[writer] = returned[place]
        value.earliest_return = min(returned[place] for place in value.members)
        value.latest_invocation = max(invoked[place] for place in value.members)


def _order(prepared: Prepared, values: list[_Value]) -> None:
    """Order the whole block of an earlier value before the writer of a later one."""
    invoked, returned = prepared.invoked, prepared.returned
    by_return = sorted(values, key=lambda value: value.earliest_return)
    returns = [value.earliest_return for value in by_return]
    # The two latest invocations of the values up to each place: a value skips its own.
    latest: list[tuple[int, int, _Value]] = []
    first = second = -1
    holder = values[0]
    for value in by_return:
        if value.latest_invocation > first:
            first, second, holder = value.latest_invocation, first, value
        else:
            second = max(second, value.latest_invocation)
        latest.append((first, second, holder))
    by_invocation = sorted(values, key=lambda value: value.latest_invocation)
    invocations = [value.latest_invocation for value in by_invocation]
    # The two earliest returns of writers from each place on.
    earliest: list[tuple[int, int, _Value]] = []
    low = other = 1 << 63
    for value in reversed(by_invocation):
        writer_returned = returned[value.writer]
        if writer_returned < low:
            low, other, holder = writer_returned, low, value
        else:
            other = min(other, writer_returned)
        earliest.append((low, other, holder))
    earliest.reverse()
    for value in values:
        earlier = bisect_left(returns, value.latest_invocation)
        if earlier:
            first, second, holder = latest[earlier - 1]
            bound = second if holder is value else first
            if bound > invoked[value.writer]:
                invoked[value.writer] = bound
        later = bisect_right(invocations, value.earliest_return)
        if later < len(values):
            low, other, holder = earliest[later]
            bound = other if holder is value else low
            for place in value.members:
                if bound < returned[place]:
                    returned[place] = bound


def _note(prepared: Prepared, values: list[_Value]) -> None:
    """Record for each writer the operations that must precede it."""
    by_return = sorted(values, key=lambda value: value.earliest_return)
    returns = [value.earliest_return for value in by_return]
    masks = [0]
    for value in by_return:
        masks.append(masks[-1] | _mask(value.members))
    for value in values:
        earlier = masks[bisect_left(returns, value.latest_invocation)]
        # Operations of the writer's own block may be among them.
        prepared.precede[value.writer] |= earlier & ~_mask(value.members)


def _mask(places: list[int]) -> int:
    mask = 0
    for place in places:
        mask |= 1 << place
    return mask
