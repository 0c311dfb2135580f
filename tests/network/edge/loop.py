"""The loop of the interface driven by the test itself, one turn at a time."""

import select
import threading
from collections.abc import Callable

from kvorum.network.edge import Edge, Event, Request
from tests.network.edge.service import WAIT_SECONDS
from tests.network.edge.wire import Wire
from tests.waiting import until


def wait(edge: Edge) -> None:
    """Sleep until there is something to poll. A wake-up that gets lost fails the test."""
    if edge.announce_sleep():
        poller = select.poll()
        poller.register(edge.fileno(), select.POLLIN)
        assert poller.poll(WAIT_SECONDS * 1000), "no wake-up came"
        edge.awake()


def shake_hands(edge: Edge, wire: Wire) -> None:
    """Let both sides' settings arrive."""
    thread = threading.Thread(target=wire.ping)
    thread.start()
    while thread.is_alive():
        assert edge.poll(0, 0) == ([], [])
        thread.join(0.002)


def turn_until(edge: Edge, condition: Callable[[], bool]) -> None:
    """Take turns until a condition holds for which there is no wake-up; nothing may arrive."""

    def holds() -> bool:
        assert edge.poll(100, 100) == ([], [])
        return condition()

    until("the edge is as the test waits for it", holds)


def fall_asleep(edge: Edge) -> None:
    """Take turns until the edge lets its loop sleep; nothing may arrive."""

    def falls_asleep() -> bool:
        if edge.announce_sleep():
            return True
        assert edge.poll(10, 1000) == ([], [])
        return False

    until("the edge lets its loop sleep", falls_asleep)


def poll_until(
    edge: Edge,
    enough: Callable[[list[Request], list[Event]], bool],
    calls_max: int = 1000,
    bytes_max: int = 4 << 20,
) -> tuple[list[Request], list[Event]]:
    """Poll until enough was gathered; every batch keeps its limit."""
    requests: list[Request] = []
    events: list[Event] = []
    while not enough(requests, events):
        some_requests, some_events = edge.poll(calls_max, bytes_max)
        assert len(some_requests) + len(some_events) <= calls_max
        requests += some_requests
        events += some_events
        if not some_requests and not some_events:
            wait(edge)
    return requests, events


def queue_up(edge: Edge, received: int, counter: str = "messages_received") -> None:
    """Let the edge read so many messages without taking one.

    The native edge reads by itself; the pure one reads when it is polled, so this polls for
    nothing.
    """

    def are_received() -> bool:
        assert edge.poll(0, 0) == ([], [])
        return edge.counters()[counter] >= received

    until(f"the edge counts {received} {counter}", are_received)
