"""The loop of the interface driven by the test itself, one turn at a time."""

import select
import threading
from collections.abc import Callable

from kvorum.edge import Edge, Event, Request
from tests.edge.service import WAIT_SECONDS
from tests.edge.wire import Wire


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
    tick = threading.Event()
    for _ in range(int(WAIT_SECONDS * 500)):
        assert edge.poll(100, 100) == ([], [])
        if condition():
            return
        tick.wait(0.002)
    raise AssertionError(f"did not come to hold within {WAIT_SECONDS} s")


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
    tick = threading.Event()
    for _ in range(2000):
        assert edge.poll(0, 0) == ([], [])
        if edge.counters()[counter] >= received:
            return
        tick.wait(0.005)
    raise AssertionError(f"{edge.counters()} after 10 s")
