"""Keeps fresh stores for tests: a program that has them made ahead of time, by processes it forks.

It is a process of its own, so that whatever a test does to its process, to the clock or to modules,
the store serves as it always does. While a test runs, stores for the next ones are made. All here
is one thread: it takes questions, and gives tasks to makers (`kvorum.testing.maker`).
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

from kvorum.testing.companion import Answer, take_output
from kvorum.testing.maker import become_maker

MAKERS = 2
"""So many processes make stores: a test that takes less time than a store waits half as long."""
SPARES, SPARES_WITH_AUTH = 3, 0
"""So many stores of a kind are kept ready, beside the one that is asked for ahead of its test; a
password costs a process."""
DROPPED_MAX = 4
"""So many stores may wait for their end while a test waits for a store."""
KINDS_MAX = 4
"""So many kinds have stores ready, those that were asked for last."""
WANTED, AHEAD = range(2)
"""The order of work: what is waited for; all else."""
READ_BYTES = 1 << 16

Kind: TypeAlias = tuple[bool, tuple[tuple[str, str], ...]]
Done: TypeAlias = Callable[[Answer], None]
Task: TypeAlias = tuple[int, int, Answer, Done]
"""Its urgency, its place among all tasks, what a maker is told, and who takes the answer."""


class Shelf:
    """Stores of one kind."""

    def __init__(self) -> None:
        self.coming = 0
        """How many are being made, or will be."""
        self.ready: deque[Answer] = deque()
        self.waiting: deque[int] = deque()
        """Questions that are answered with a store, as soon as there is one."""


class MakerProcess:
    """A process that makes stores, from outside."""

    def __init__(self) -> None:
        self.tasks, theirs = socket.socketpair()
        self.process = os.fork()
        if self.process == 0:
            become_maker(theirs)
        theirs.close()
        self.queue: list[Task] = []
        """Tasks for this one alone: ends and logs of stores that it made."""
        self.done: Done | None = None
        """Who takes the answer to the task that it does now."""
        self._said = b""

    def begin(self, told: Answer, done: Done) -> None:
        """Give it a task."""
        self.done = done
        with suppress(ConnectionError):  # `hear` notices
            self.tasks.sendall(json.dumps(told).encode() + b"\n")

    def hear(self) -> None:
        """Take what it says; raises EOFError if it has ended."""
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
        """End it, and return when nothing is left of its stores."""
        self.tasks.close()
        os.waitpid(self.process, 0)


class Keeper:
    """Answers questions, and has makers do what that needs."""

    def __init__(self, answer: Callable[[Answer], None]) -> None:
        self._answer = answer
        self._count = 0
        self._shelves: dict[Kind, Shelf] = {}
        self._owners: dict[int, MakerProcess] = {}
        """Who made a store, of all that have not been given up."""
        self._dropping = 0
        """How many were given up and have not ended."""
        self._planned = 0
        self._wanted: list[Task] = []
        """Stores to be made, by whoever has time."""
        self._poll = select.poll()
        self._makers: dict[int, MakerProcess] = {}

    def run(self, questions: int) -> None:
        """Answer questions until there are no more."""
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

    # Questions.

    def take(self, question: int, flags: dict[str, str], auth: bool) -> None:
        """Answer a question with a store that nobody has used, at once if there is one."""
        kind = (auth, tuple(sorted(flags.items())))
        shelf = self._shelves.pop(kind) if kind in self._shelves else Shelf()
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

    def _order(self, kind: Kind, shelf: Shelf, urgency: int) -> None:
        shelf.coming += 1
        self._count += 1
        number = self._count
        auth, flags = kind
        told = {"what": "make", "number": number, "flags": dict(flags), "auth": auth}
        self._plan(self._wanted, urgency, told, lambda made: self._made(shelf, number, made))

    def _made(self, shelf: Shelf, number: int, made: Answer) -> None:
        shelf.coming -= 1
        if len(self._makers) < MAKERS:
            # Not before: it would take time from the first store.
            self._add_maker()
        if "error" in made:
            del self._owners[number]
            # One that nobody waits for may fail: it will again, when somebody does.
            if shelf.waiting:
                self._answer({"question": shelf.waiting.popleft(), **made})
            return
        store = {"number": number, **made}
        if shelf.waiting:
            self._answer({"question": shelf.waiting.popleft(), **store})
        else:
            shelf.ready.append(store)

    def log(self, question: int, number: int) -> None:
        """Answer with what the member of a store logged; nothing, if that was given up."""

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
        # Tests may be quicker than stores are made; then memory must not fill up.
        self._end(number, WANTED if self._dropping > DROPPED_MAX else AHEAD, is_dropped=True)

    def _end(self, number: int, urgency: int, *, is_dropped: bool = False) -> None:
        def ended(_: Answer) -> None:
            self._dropping -= is_dropped

        told = {"what": "end", "number": number}
        self._plan(self._owners.pop(number).queue, urgency, told, ended)

    def close(self) -> None:
        """End everything; what is only planned is not done any more."""
        for maker in self._makers.values():
            maker.stop()


def main() -> None:
    """Answer questions until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    keeper = Keeper(take_output())
    try:
        keeper.run(sys.stdin.fileno())
    finally:
        keeper.close()


if __name__ == "__main__":
    main()
