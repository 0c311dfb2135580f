"""The moments of a run, combined to spans: processes, roles in terms, pauses, partitions."""

from collections.abc import Iterator
from itertools import pairwise
from string import ascii_lowercase
from typing import NamedTuple

from kvorum.sim.moments import Kind, Moment, Moments, State

_DEATHS = (Kind.KILLED, Kind.POWER_CUT, Kind.GIVEN_UP)
_CLIENT_ORDER = "csroiwl"
"""Clients, sessions, caches, observers, inspectors, watchers, by the first letters of names."""


class Span(NamedTuple):
    """A period of time, and its label."""

    begin: float
    end: float
    what: str


class Office(NamedTuple):
    """A member in one role and one term, within the life of one process."""

    begin: float
    end: float
    role: int
    term: int
    is_learner: bool


class Process(NamedTuple):
    """A process from its start to its end."""

    begin: float
    end: float
    states: list[State]

    def offices(self) -> Iterator[Office]:
        """Yield the roles and terms of its member, in order."""
        held: list[Office] = []
        for state in self.states:
            office = Office(state.at, self.end, state.role, state.term, state.is_learner)
            if held and held[-1][2:] == office[2:]:
                continue
            if held:
                yield held.pop()._replace(end=state.at)
            held.append(office)
        yield from held

    def snapshots(self) -> Iterator[tuple[State, bool]]:
        """Yield states with a new snapshot, and whether the member installed it or made it."""
        for before, state in pairwise(self.states):
            if state.snapshot > before.snapshot:
                yield state, before.is_installing


class Member:
    """The lane of one member."""

    __slots__ = ("events", "name", "processes")

    def __init__(self, moments: Moments, name: str) -> None:
        self.name = name
        self.events = moments.of(name)
        self.processes: list[Process] = []
        begin: float | None = None
        for event in (*self.events, Moment(moments.end, name, Kind.GIVEN_UP, "", 0.0, ())):
            if event.kind is Kind.START:
                begin = event.at
            elif event.kind in _DEATHS and begin is not None:
                number = len(self.processes) + 1
                states = [each for each in moments.states.get(name, []) if each.process == number]
                self.processes.append(Process(begin, event.at, states))
                begin = None

    def spans(self, kind: Kind) -> list[Span]:
        """Return the spans of one kind; the process's end cuts them, and overlapping ones join."""
        found: list[Span] = []
        for event in self.events:
            if event.kind is kind:
                ends = [each.end for each in self.processes if each.begin <= event.at < each.end]
                span = Span(event.at, min([event.until, *ends]), event.what)
                if found and span.begin < found[-1].end:
                    last = found.pop()
                    span = Span(last.begin, max(last.end, span.end), f"{last.what}, {span.what}")
                found.append(span)
        return found


def members_of(moments: Moments) -> list[Member]:
    """Return the lanes of all members that ever ran, by their numbers."""
    names = {each.who for each in moments.events if each.kind is Kind.START}
    return [Member(moments, name) for name in sorted(names, key=lambda name: int(name[1:]))]


def partitions_of(moments: Moments) -> list[tuple[Span, tuple[str, ...]]]:
    """Return when some members could not reach others, and which side was cut off."""
    found: list[tuple[Span, tuple[str, ...]]] = []
    cut: Moment | None = None
    for event in (*moments.of("net"), Moment(moments.end, "net", Kind.HEALED, "", 0.0, ())):
        if cut is not None:
            found.append((Span(cut.at, event.at, cut.what), cut.about))
        cut = event if event.kind is Kind.PARTITIONED else None
    return found


def watches_of(events: list[Moment], end: float) -> Iterator[Span]:
    """Yield the connections of one watcher."""
    start: Moment | None = None
    for event in events:
        if start is not None and event.kind in (Kind.WATCH_BEGUN, Kind.WATCH_ENDED):
            yield Span(start.at, event.at, start.what)
            start = None
        if event.kind is Kind.WATCH_BEGUN:
            start = event
    if start is not None:
        yield Span(start.at, end, start.what)


def clients_of(moments: Moments) -> list[str]:
    """Return the names of all clients that did anything, each kind by their numbers."""
    names = {
        *moments.asked,
        *(each.who for each in moments.events if each.kind is Kind.WATCH_BEGUN),
    }
    return sorted(names, key=_client_order)


def _client_order(name: str) -> tuple[int, int, str]:
    # A letter behind the number stands for what else a client does at the same time.
    kind_and_number = name.rstrip(ascii_lowercase)
    digits = kind_and_number.lstrip(ascii_lowercase)
    if name[0] not in _CLIENT_ORDER or not digits.isdecimal():
        # A user's program, which may have any name.
        return len(_CLIENT_ORDER), 0, name
    return _CLIENT_ORDER.index(name[0]), int(digits), name
