"""Keep fresh stores ready for tests, in a program whose forked processes make them ahead of time.

The program is separate from the test process, so that a test's changes to its own process, to the
clock or to modules do not affect the store. While a test runs, makers prepare stores for the next
tests. One thread does everything here: it reads requests, and gives tasks to makers
(`kvorum.testing.store_factory`).
"""

import heapq
import json
import os
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from kvorum.testing.store_factory import become_maker
from kvorum.testing.worker_process import Answer, take_output

MAKERS = 2
"""The number of makers: with two, a test that is quicker than making a store waits half as long."""
SPARES, SPARES_WITH_AUTH = 3, 0
"""The number of ready stores of a kind, beside the one requested ahead of its test. With auth there
are none, because a password costs a process."""
DROPPED_MAX = 4
"""The number of dropped stores that may wait for their end while a test waits for a store."""
KINDS_MAX = 4
"""The number of kinds with ready stores: those requested last."""
WANTED, AHEAD = range(2)
"""The priorities of tasks: a test waits for the result, or everything else."""
READ_BYTES = 1 << 16

Kind: TypeAlias = tuple[bool, tuple[tuple[str, str], ...]]
Done: TypeAlias = Callable[[Answer], None]
Task: TypeAlias = tuple[int, int, Answer, Done]
"""Its priority, its order among all tasks, the message to a maker, and the callback."""


class KindPool:
    """The stores of one kind."""

    def __init__(self) -> None:
        self.coming = 0
        """The number of stores that are planned or being made."""
        self.ready: deque[Answer] = deque()
        self.waiting: deque[int] = deque()
        """Requests that wait for the next store."""


class MakerProcess:
    """The keeper's side of a process that makes stores."""

    def __init__(self) -> None:
        self.tasks, theirs = socket.socketpair()
        self.process = os.fork()
        if self.process == 0:
            become_maker(theirs)
        theirs.close()
        self.queue: list[Task] = []
        """Tasks for this maker alone: ends and logs of the stores that it made."""
        self.done: Done | None = None
        """The callback of the current task."""
        self._said = b""

    def begin(self, told: Answer, done: Done) -> None:
        """Send a task."""
        self.done = done
        with suppress(ConnectionError):  # `hear` notices
            self.tasks.sendall(json.dumps(told).encode() + b"\n")

    def hear(self) -> None:
        """Read from the maker; raise EOFError if it has ended."""
        said = b""
        with suppress(ConnectionError):
            said = self.tasks.recv(READ_BYTES)
        if not said:
            raise EOFError(f"a process that makes stores has ended: {self.process}")
        self._said += said
        if self._said.endswith(b"\n"):
            answer, self._said = json.loads(self._said), b""
            done, self.done = self.done, None
            assert done is not None, "it answers what it was told"
            done(answer)

    def stop(self) -> None:
        """End the maker, and wait until its stores are gone."""
        self.tasks.close()
        os.waitpid(self.process, 0)


class StorePool:
    """Fulfils requests, with the help of makers."""

    def __init__(self, answer: Callable[[Answer], None]) -> None:
        self._answer = answer
        self._count = 0
        self._shelves: dict[Kind, KindPool] = {}
        self._owners: dict[int, MakerProcess] = {}
        """The maker of each store that was not dropped."""
        self._dropping = 0
        """The number of dropped stores that have not ended."""
        self._planned = 0
        self._wanted: list[Task] = []
        """Stores to make, by any idle maker."""
        self._poll = select.poll()
        self._makers: dict[int, MakerProcess] = {}

    def run(self, questions: int) -> None:
        """Answer requests until there are no more."""
        asked: dict[str, Callable[..., None]] = {
            "take": self.take,
            "log": self.log,
            "drop": self.drop,
        }
        self._add_maker()
        self._poll.register(questions, select.POLLIN)
        rest = b""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor != questions:
                    self._makers[descriptor].hear()
                    continue
                read = os.read(questions, READ_BYTES)
                if not read:
                    return
                *lines, rest = (rest + read).split(b"\n")
                for line in lines:
                    question = json.loads(line)
                    asked[question.pop("what")](**question)
            self._give_tasks()

    # Tasks.

    def _add_maker(self) -> None:
        maker = MakerProcess()
        self._makers[maker.tasks.fileno()] = maker
        self._poll.register(maker.tasks, select.POLLIN)

    def _plan(self, queue: list[Task], urgency: int, told: Answer, done: Done) -> None:
        self._planned += 1
        heapq.heappush(queue, (urgency, self._planned, told, done))

    def _give_tasks(self) -> None:
        for maker in self._makers.values():
            if maker.done is not None:
                continue
            queues = [queue for queue in (self._wanted, maker.queue) if queue]
            if queues:
                _, _, told, done = heapq.heappop(min(queues, key=lambda queue: queue[0][:2]))
                if told["what"] == "make":
                    self._owners[told["number"]] = maker
                maker.begin(told, done)

    # Requests.

    def take(self, question: int, flags: dict[str, str], auth: bool) -> None:
        """Answer a request with an unused store, at once if one is ready."""
        kind = (auth, tuple(sorted(flags.items())))
        shelf = self._shelves.pop(kind) if kind in self._shelves else KindPool()
        self._shelves[kind] = shelf
        if shelf.ready:
            self._answer({"question": question, **shelf.ready.popleft()})
        else:
            shelf.waiting.append(question)
            self._order(kind, shelf, WANTED)
        spares = SPARES_WITH_AUTH if auth else SPARES
        while shelf.coming + len(shelf.ready) - len(shelf.waiting) < spares:
            self._order(kind, shelf, AHEAD)
        for other in list(self._shelves)[:-KINDS_MAX]:
            if not self._shelves[other].coming:
                for store in self._shelves.pop(other).ready:
                    self._end(store["number"], AHEAD)

    def _order(self, kind: Kind, shelf: KindPool, urgency: int) -> None:
        shelf.coming += 1
        self._count += 1
        number = self._count
        auth, flags = kind
        told = {"what": "make", "number": number, "flags": dict(flags), "auth": auth}
        self._plan(self._wanted, urgency, told, lambda made: self._made(shelf, number, made))

    def _made(self, shelf: KindPool, number: int, made: Answer) -> None:
        shelf.coming -= 1
        if len(self._makers) < MAKERS:
            # Start more makers only now, because they would have slowed down the first store.
            self._add_maker()
        if "error" in made:
            del self._owners[number]
            # Ignore the failure of a store ahead of time: it will fail again when a test waits for
            # one.
            if shelf.waiting:
                self._answer({"question": shelf.waiting.popleft(), **made})
            return
        store = {"number": number, **made}
        if shelf.waiting:
            self._answer({"question": shelf.waiting.popleft(), **store})
        else:
            shelf.ready.append(store)

    def log(self, question: int, number: int) -> None:
        """Answer with the log of a store's member; empty if the store was dropped."""

        def found(text: Answer) -> None:
            self._answer({"question": question, **text})

        if number in self._owners:
            told = {"what": "log", "number": number}
            self._plan(self._owners[number].queue, WANTED, told, found)
        else:
            found({"text": ""})

    def drop(self, question: int, number: int) -> None:  # noqa: ARG002 (nobody waits for it)
        """End a store."""
        self._dropping += 1
        # Quick tests keep makers busy, so ends become urgent before dropped stores fill the memory.
        self._end(number, WANTED if self._dropping > DROPPED_MAX else AHEAD, is_dropped=True)

    def _end(self, number: int, urgency: int, *, is_dropped: bool = False) -> None:
        def ended(_: Answer) -> None:
            self._dropping -= is_dropped

        told = {"what": "end", "number": number}
        self._plan(self._owners.pop(number).queue, urgency, told, ended)

    def close(self) -> None:
        """End all makers; planned tasks are dropped."""
        for maker in self._makers.values():
            maker.stop()


def main() -> None:
    """Answer requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    pool = StorePool(take_output())
    try:
        pool.run(sys.stdin.fileno())
    finally:
        pool.close()


if __name__ == "__main__":
    main()
