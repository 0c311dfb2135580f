"""Each of the nine promises of a watch can be broken, and is named when it is."""

from collections.abc import Callable, Sequence
from random import Random
from typing import cast

import pytest

from kvorum.api.pb.mvccpb import Event, KeyValue
from kvorum.sim.calls import Calls
from kvorum.sim.history import History
from kvorum.sim.model import Transaction
from kvorum.sim.violation import Violation
from kvorum.sim.watch_checks import check_watcher
from kvorum.sim.watchers import Got, Watcher
from kvorum.sim.workloads import KEY_PREFIX, KEY_PREFIX_END, draw_workload
from kvorum.sim.world import World


class Nowhere:
    """Reaches a member, but nobody asks."""

    members: Sequence[int] = (1,)


def written() -> History:
    """Return a history: two keys in one revision, a change, a deletion, a key anew."""
    history = History()
    changes: list[list[tuple[bytes, bytes | None]]] = [
        [(b"k/0", b"a"), (b"k/1", b"b")],
        [(b"k/0", b"c")],
        [(b"k/0", None)],
        [(b"k/0", b"d")],
        [(b"other", b"e")],
    ]
    for main, keys in enumerate(changes, 2):
        history.replay()
        transaction = Transaction(history, main - 1, main)
        for key, value in keys:
            if value is None:
                transaction.delete(key)
            else:
                transaction.put(key, value, 0)
        history.observe(0.0, "m1", main, main, -1, transaction.rows)
    history.replay()
    return history


def event_of(history: History, main: int, place: int = 0) -> Event:
    revision, kv = history.effects[main][place]
    parsed = KeyValue.FromString(kv)
    event = Event(kv=parsed)
    if revision & 1:
        event = Event(type=Event.DELETE, kv=KeyValue(key=parsed.key, mod_revision=main))
    before = history.at(parsed.key, main - 1)
    if before is not None:
        event.prev_kv.ParseFromString(before)
    return event


def got(revision: int, *events: Event, connection: int = 1, wanted: int = 2) -> Got:
    return Got(revision, events, wanted, connection)


def watcher_of(history: History, responses: list[Got]) -> Watcher:
    watcher = Watcher(World(0), cast("Calls", Nowhere()), history, draw_workload(Random(0), 1.0), 1)
    watcher.key, watcher.end, watcher.filters = KEY_PREFIX, KEY_PREFIX_END, []
    watcher.first, watcher.has_prev_kv = 2, True
    watcher.next = 6
    watcher.got = responses
    watcher.connections = max(each.connection for each in responses)
    return watcher


def proper(history: History) -> list[Got]:
    return [
        got(2, event_of(history, 2), event_of(history, 2, 1)),
        got(3, event_of(history, 3)),
        got(3),
        got(5, event_of(history, 4), event_of(history, 5), connection=2, wanted=4),
    ]


def test_what_came_as_it_should_breaks_no_promise() -> None:
    history = written()
    check_watcher(watcher_of(history, proper(history)), history)


Spoil = Callable[[History, list[Got]], None]


def foreign(history: History, responses: list[Got]) -> None:
    responses.append(got(6, event_of(history, 6), connection=2))


def disordered(history: History, responses: list[Got]) -> None:
    responses[3] = got(5, event_of(history, 5), event_of(history, 4))


def ahead_of_its_header(history: History, responses: list[Got]) -> None:
    responses[3] = got(4, event_of(history, 4), event_of(history, 5))


def repeated(_: History, responses: list[Got]) -> None:
    responses.insert(2, responses[1])


def torn(history: History, responses: list[Got]) -> None:
    responses[0:1] = [got(2, event_of(history, 2)), got(2, event_of(history, 2, 1))]


def after_a_bookmark(_: History, responses: list[Got]) -> None:
    responses[2] = got(4)


def lost(_: History, responses: list[Got]) -> None:
    del responses[1]


def lost_between_connections(history: History, responses: list[Got]) -> None:
    responses[3] = got(5, event_of(history, 5), connection=2, wanted=4)


def wrong_previous(history: History, responses: list[Got]) -> None:
    event = event_of(history, 3)
    event.prev_kv.value = b"never"
    responses[1] = got(3, event)


def no_previous(history: History, responses: list[Got]) -> None:
    event = event_of(history, 3)
    event.ClearField("prev_kv")
    responses[1] = got(3, event)


def wrongly_created(history: History, responses: list[Got]) -> None:
    event = event_of(history, 3)
    event.kv.create_revision, event.kv.version = 3, 1
    responses[1] = got(3, event)


@pytest.mark.parametrize(
    ("spoil", "promise"),
    [
        (foreign, "filter"),
        (disordered, "ordered"),
        (ahead_of_its_header, "ordered"),
        (repeated, "unique"),
        (torn, "atomic"),
        (after_a_bookmark, "bookmarkable"),
        (lost, "reliable"),
        (lost_between_connections, "resumable"),
        (wrong_previous, "prev_kv"),
        (no_previous, "prev_kv"),
        (wrongly_created, "is-create"),
    ],
)
def test_a_broken_promise_is_named(spoil: Spoil, promise: str) -> None:
    history = written()
    responses = proper(history)
    spoil(history, responses)
    with pytest.raises(Violation) as caught:
        check_watcher(watcher_of(history, responses), history)
    assert caught.value.guarantee == f"watch: {promise}"
