"""Keep fresh stores ready for tests, in a program whose forked processes make them ahead of time.

The program is separate from the test process, so that a test's changes to its own process, to the
clock or to modules do not affect the store. While a test runs, builders prepare stores for the next
tests. One thread does everything here: it reads requests, and gives tasks to builders
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

from kvorum.testing.store_factory import run_builder
from kvorum.testing.worker_process import Answer, reserve_output

BUILDERS = 2
"""The number of builders: with two, a test that is quicker than building a store waits half as
long."""
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
"""Its priority, its order among all tasks, the message to a builder, and the callback."""


class KindPool:
    """The stores of one kind."""

    def __init__(self) -> None:
        self.in_progress = 0
        """The number of stores that are planned or being made."""
        self.ready: deque[Answer] = deque()
        self.waiting: deque[int] = deque()
        """Requests that wait for the next store."""


class BuilderProcess:
    """The pool's side of a process that builds stores."""

    def __init__(self) -> None:
        self.tasks, theirs = socket.socketpair()
        self.process = os.fork()
        if self.process == 0:
            run_builder(theirs)
        theirs.close()
        self.queue: list[Task] = []
        """Tasks for this builder alone: ends and logs of the stores that it made."""
        self.on_done: Done | None = None
        """The callback of the current task."""
        self._received = b""

    def send_task(self, task: Answer, done: Done) -> None:
        """Send a task."""
        self.on_done = done
        with suppress(ConnectionError):  # `read_answer` notices
            self.tasks.sendall(json.dumps(task).encode() + b"\n")

    def read_answer(self) -> None:
        """Read from the builder; raise EOFError if it has ended."""
        data = b""
        with suppress(ConnectionError):
            data = self.tasks.recv(READ_BYTES)
        if not data:
            raise EOFError(f"a process that builds stores has ended: {self.process}")
        self._received += data
        if self._received.endswith(b"\n"):
            answer, self._received = json.loads(self._received), b""
            done, self.on_done = self.on_done, None
            assert done is not None, "a builder answers only tasks"
            done(answer)

    def stop(self) -> None:
        """End the builder, and wait until its stores are gone."""
        self.tasks.close()
        os.waitpid(self.process, 0)


class StorePool:
    """Fulfils requests, with the help of builders."""

    def __init__(self, answer: Callable[[Answer], None]) -> None:
        self._answer = answer
        self._count = 0
        self._kind_pools: dict[Kind, KindPool] = {}
        self._owners: dict[int, BuilderProcess] = {}
        """The builder of each store that was not dropped."""
        self._dropping = 0
        """The number of dropped stores that have not ended."""
        self._task_count = 0
        self._build_tasks: list[Task] = []
        """Stores to make, by any idle builder."""
        self._poll = select.poll()
        self._builders: dict[int, BuilderProcess] = {}

    def run(self, questions: int) -> None:
        """Answer requests until there are no more."""
        asked: dict[str, Callable[..., None]] = {
            "take": self.take,
            "log": self.log,
            "drop": self.drop,
        }
        self._add_builder()
        self._poll.register(questions, select.POLLIN)
        rest = b""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor != questions:
                    self._builders[descriptor].read_answer()
                    continue
                read = os.read(questions, READ_BYTES)
                if not read:
                    return
                *lines, rest = (rest + read).split(b"\n")
                for line in lines:
                    question = json.loads(line)
                    asked[question.pop("what")](**question)
            self._assign_tasks()

    # Tasks.

    def _add_builder(self) -> None:
        builder = BuilderProcess()
        self._builders[builder.tasks.fileno()] = builder
        self._poll.register(builder.tasks, select.POLLIN)

    def _queue_task(self, queue: list[Task], urgency: int, task: Answer, done: Done) -> None:
        self._task_count += 1
        heapq.heappush(queue, (urgency, self._task_count, task, done))

    def _assign_tasks(self) -> None:
        for builder in self._builders.values():
            if builder.on_done is not None:
                continue
            queues = [queue for queue in (self._build_tasks, builder.queue) if queue]
            if queues:
                _, _, task, done = heapq.heappop(min(queues, key=lambda queue: queue[0][:2]))
                if task["what"] == "make":
                    self._owners[task["number"]] = builder
                builder.send_task(task, done)

    # Requests.

    def take(self, question: int, flags: dict[str, str], auth: bool) -> None:
        """Answer a request with an unused store, at once if one is ready."""
        kind = (auth, tuple(sorted(flags.items())))
        pool = self._kind_pools.pop(kind) if kind in self._kind_pools else KindPool()
        self._kind_pools[kind] = pool
        if pool.ready:
            self._answer({"question": question, **pool.ready.popleft()})
        else:
            pool.waiting.append(question)
            self._request_store(kind, pool, WANTED)
        spares = SPARES_WITH_AUTH if auth else SPARES
        while pool.in_progress + len(pool.ready) - len(pool.waiting) < spares:
            self._request_store(kind, pool, AHEAD)
        for other in list(self._kind_pools)[:-KINDS_MAX]:
            if not self._kind_pools[other].in_progress:
                for store in self._kind_pools.pop(other).ready:
                    self._end_store(store["number"], AHEAD)

    def _request_store(self, kind: Kind, pool: KindPool, urgency: int) -> None:
        pool.in_progress += 1
        self._count += 1
        number = self._count
        auth, flags = kind
        task = {"what": "make", "number": number, "flags": dict(flags), "auth": auth}
        self._queue_task(
            self._build_tasks, urgency, task, lambda made: self._take_store(pool, number, made)
        )

    def _take_store(self, pool: KindPool, number: int, made: Answer) -> None:
        pool.in_progress -= 1
        if len(self._builders) < BUILDERS:
            # Start more builders only now, because they would have slowed down the first store.
            self._add_builder()
        if "error" in made:
            del self._owners[number]
            # Ignore the failure of a store ahead of time: it will fail again when a test waits for
            # one.
            if pool.waiting:
                self._answer({"question": pool.waiting.popleft(), **made})
            return
        store = {"number": number, **made}
        if pool.waiting:
            self._answer({"question": pool.waiting.popleft(), **store})
        else:
            pool.ready.append(store)

    def log(self, question: int, number: int) -> None:
        """Answer with the log of a store's member; empty if the store was dropped."""

        def send_text(text: Answer) -> None:
            self._answer({"question": question, **text})

        if number in self._owners:
            task = {"what": "log", "number": number}
            self._queue_task(self._owners[number].queue, WANTED, task, send_text)
        else:
            send_text({"text": ""})

    def drop(self, question: int, number: int) -> None:  # noqa: ARG002 (no response)
        """End a store."""
        self._dropping += 1
        # Quick tests keep builders busy, so ends become urgent before dropped stores fill memory.
        self._end_store(number, WANTED if self._dropping > DROPPED_MAX else AHEAD, is_dropped=True)

    def _end_store(self, number: int, urgency: int, *, is_dropped: bool = False) -> None:
        def note_ended(_: Answer) -> None:
            self._dropping -= is_dropped

        task = {"what": "end", "number": number}
        self._queue_task(self._owners.pop(number).queue, urgency, task, note_ended)

    def close(self) -> None:
        """End all builders; planned tasks are dropped."""
        for builder in self._builders.values():
            builder.stop()


def main() -> None:
    """Answer requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    pool = StorePool(reserve_output())
    try:
        pool.run(sys.stdin.fileno())
    finally:
        pool.close()


if __name__ == "__main__":
    main()
