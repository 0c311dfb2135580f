"""A service behind an edge, for tests: the loop of the interface in a thread of its own.

Echo methods and targets answer by themselves. What arrives for the others waits in `requests` and
`events`, and the test answers it through `remote`, in the loop's thread. Every wait has a limit, so
that a missing event fails the test instead of hanging it.
"""

import os
import queue
import select
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar, cast

from kvorum.api.errors import Code, Status
from kvorum.network.edge import (
    Edge,
    EdgeEventKind,
    Event,
    Limits,
    Request,
    Serves,
    TlsSettings,
    open_edge,
)
from tests.waiting import WAIT_SECONDS_MAX, until

T = TypeVar("T")
WAIT_SECONDS = WAIT_SECONDS_MAX
OK = Status(Code.OK, "")

ECHO, ECHO_STREAM = "/test.Echo/Unary", "/test.Echo/Stream"
HELD, HELD_STREAM = "/test.Held/Unary", "/test.Held/Stream"
# Paths that a real etcd has, too, so that both can be sent the same bytes.
RANGE, WATCH = "/etcdserverpb.KV/Range", "/etcdserverpb.Watch/Watch"
METHODS = [
    (ECHO, False),
    (ECHO_STREAM, True),
    (HELD, False),
    (HELD_STREAM, True),
    (RANGE, False),
    (WATCH, True),
]
PATHS = [path for path, _ in METHODS]
METADATA_KEYS = ("token", "authorization", "hasleader")
HTTP_HEADERS = ("host", "upgrade", "x-mixed", "x-many-*")


class Arrived(NamedTuple):
    """An event that the test has to answer."""

    kind: EdgeEventKind
    call: int
    detail: Any


class Remote:
    """An edge whose methods run in the loop's thread."""

    def __init__(self, service: "Service") -> None:
        self._service = service

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            return self._service.do(lambda edge: getattr(edge, name)(*arguments))

        return run


class Service:
    """An edge with a running loop."""

    def __init__(
        self,
        limits: Limits | None = None,
        addresses: Sequence[str] = ("127.0.0.1:0",),
        tls: TlsSettings | None = None,
        *,
        http1_only: bool = False,
        serves: Serves = Serves.BOTH,
    ) -> None:
        self.edge: Edge = open_edge(METHODS, METADATA_KEYS, limits, HTTP_HEADERS)
        self.remote = cast(Edge, Remote(self))
        self.listeners = []
        try:
            for address in addresses:
                self.listeners.append(
                    self.edge.listen(address, tls, http1_only=http1_only, serves=serves)
                )
        except OSError:
            self.edge.stop()
            raise
        self.address = self.listeners[0][1]
        self.requests: queue.Queue[Request] = queue.Queue()
        self.events: queue.Queue[Arrived] = queue.Queue()
        self._bodies: dict[int, list[bytes]] = {}
        self._echoing: set[int] = set()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._bell, self._ring = os.pipe()
        self._running = True
        self._polling = True
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def do(self, function: Callable[[Edge], T]) -> T:
        """Run a function in the loop's thread, and return its result."""
        results: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

        def job() -> None:
            try:
                results.put((function(self.edge), None))
            except BaseException as error:
                results.put((None, error))

        self._jobs.put(job)
        os.write(self._ring, b"\0")
        result, error = results.get(timeout=WAIT_SECONDS)
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep the loop from polling."""
        entered, release = threading.Event(), threading.Event()

        def wait() -> None:
            entered.set()
            release.wait(WAIT_SECONDS)

        self._jobs.put(wait)
        os.write(self._ring, b"\0")
        assert entered.wait(WAIT_SECONDS)
        try:
            yield
        finally:
            release.set()

    def next_request(self) -> Request:
        return self.requests.get(timeout=WAIT_SECONDS)

    def next_event(self, kind: EdgeEventKind, call: int | None = None) -> Arrived:
        """Return the next event, which has to be of this kind."""
        arrived = self.events.get(timeout=WAIT_SECONDS)
        assert arrived.kind == kind, arrived
        assert call in (None, arrived.call), arrived
        return arrived

    def until(self, condition: Callable[[Edge], bool]) -> None:
        """Wait until a condition holds for which there is no event, such as a counter."""
        until("the edge is as the test waits for it", lambda: self.do(condition))

    def stop_edge(self) -> None:
        """Stop the edge now; `do` still works."""

        def stop(edge: Edge) -> None:
            self._polling = False
            edge.stop()

        self.do(stop)

    def stop(self) -> None:
        """End the loop and the edge. Raises the error that ended the loop, if any."""
        self._running = False
        os.write(self._ring, b"\0")
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive(), "the edge did not stop"
        os.close(self._bell)
        os.close(self._ring)
        if self.failure is not None:
            raise self.failure

    def _loop(self) -> None:
        try:
            while self._running:
                self._turn()
        except BaseException as error:
            self.failure = error
        finally:
            self.edge.stop()

    def _turn(self) -> None:
        while not self._jobs.empty():
            self._jobs.get()()
        if not self._polling:
            os.read(self._bell, 4096)
            return
        requests, events = self.edge.poll(1000, 4 << 20)
        self._serve(requests)
        for event in events:
            self._happen(event)
        if not requests and not events and self.edge.announce_sleep():
            poller = select.poll()
            poller.register(self.edge.fileno(), select.POLLIN)
            poller.register(self._bell, select.POLLIN)
            # No timeout: a lost wake-up has to show.
            if self._bell in dict(poller.poll()):
                os.read(self._bell, 4096)
            self.edge.awake()

    def _serve(self, requests: list[Request]) -> None:
        replies: list[tuple[int, bytes | Status]] = []
        for request in requests:
            path = PATHS[request[1]]
            if path == ECHO:
                replies.append((request[0], request[2]))
            elif path == RANGE:
                replies.append((request[0], b""))
            else:
                self.requests.put(request)
        if replies:
            self.edge.reply(replies)

    def _happen(self, event: Event) -> None:
        kind, call, detail = EdgeEventKind(event[0]), event[1], event[2]
        if kind == EdgeEventKind.OPENED and PATHS[detail[0]] == ECHO_STREAM:
            self._echoing.add(call)
        elif kind == EdgeEventKind.HTTP_OPENED and detail[2].startswith("/echo"):
            self._bodies[call] = []
        elif call in self._echoing:
            if kind == EdgeEventKind.MESSAGE:
                self.edge.send([(call, detail)])
                return
            if kind == EdgeEventKind.HALF_CLOSED:
                self.edge.finish(call, OK)
            if kind in (EdgeEventKind.HALF_CLOSED, EdgeEventKind.ENDED):
                self._echoing.discard(call)
        elif call in self._bodies:
            if kind == EdgeEventKind.MESSAGE:
                self._bodies[call].append(detail)
                return
            if kind == EdgeEventKind.HALF_CLOSED:
                body = b"".join(self._bodies[call])
                self.edge.respond(call, 200, [("content-type", "text/plain")], body)
            self._bodies.pop(call)
        else:
            self.events.put(Arrived(kind, call, detail))
