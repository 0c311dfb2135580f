"""Keeps fresh stores for tests: a program with an embedded member for each of them.

It is a process of its own, so that whatever a test does to its process, to the clock or to modules,
the store serves as it always does. While a test runs, the store for the next one is made. Nothing
is used twice: each store has a member, a directory and a port of its own.
"""

import gc
import json
import logging
import queue
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from kvorum.client import Client
from kvorum.embed import Config, ConfigError, Server, StartError
from kvorum.testing.access import AUTH_SECONDS_MAX, enable_auth
from kvorum.testing.companion import Answer, take_output
from kvorum.testing.ports import HOST, Ports

SPARES, SPARES_WITH_AUTH = 3, 0
"""So many stores of a kind are kept ready, beside the one that is asked for ahead of its test; a
password costs a process."""
DROPPED_MAX = 4
"""So many stores may wait for their end while a test waits for a store."""
WORKERS = 2
"""So many stores are made or ended at once: each of them waits for threads of its own, now and
then."""
KINDS_MAX = 4
"""So many kinds have stores ready, those that were asked for last."""
LOG_LINES_MAX = 500
AT_ONCE, WANTED, AHEAD = range(3)
"""The order of work: the end; what is waited for; all else."""
COLLECT_STORES = 20
"""After the end of so many stores, what they left in cycles is collected; Python itself would look
for it while one is made, and again and again."""
_SWITCH_SECONDS = 0.001
"""Threads of members take turns quickly: most of them wait for another."""

Kind: TypeAlias = tuple[bool, tuple[tuple[str, str], ...]]


@dataclass(slots=True)
class Kept:
    """A store that is ready."""

    number: int
    port: int
    server: Server


class Logs(logging.Handler):
    """What each member logged last."""

    def __init__(self) -> None:
        super().__init__()
        # As records: most tests pass, and nobody reads what their members logged.
        self._lines: dict[str, deque[logging.LogRecord]] = {}
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def begin(self, member: str) -> None:
        """Keep what a member logs from now on."""
        self._lines[member] = deque(maxlen=LOG_LINES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        lines = self._lines.get(getattr(record, "member", ""))
        if lines is not None:
            lines.append(record)

    def text(self, member: str) -> str:
        """Return the lines of a member."""
        return "\n".join(map(self.format, list(self._lines.get(member, ()))))

    def end(self, member: str) -> None:
        """Forget a member."""
        self._lines.pop(member, None)


class Shelf:
    """Stores of one kind."""

    def __init__(self) -> None:
        self.coming = 0
        """How many are being made, or will be."""
        self.ready: deque[Kept] = deque()
        self.waiting: deque[int] = deque()
        """Questions that are answered with a store, as soon as there is one."""


class Keeper:
    """Makes stores ahead of time, and ends those that are given up, in threads of its own."""

    def __init__(self, answer: Callable[[Answer], None]) -> None:
        self._answer = answer
        self._logs = Logs()
        logger = logging.getLogger("kvorum")
        logger.addHandler(self._logs)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        self._ports = Ports()
        self._count = 0
        self._lock = threading.Lock()
        """Guards shelves and numbers; all threads change them."""
        self._shelves: dict[Kind, Shelf] = {}
        self._kept: dict[int, Kept] = {}
        """All that have not ended."""
        self._dropped = self._ended = 0
        """How many were given up, and of those, how many have ended."""
        self._planned = 0
        self._work: queue.PriorityQueue[tuple[int, int, Callable[[], None] | None]]
        self._work = queue.PriorityQueue()
        self._workers = [
            threading.Thread(target=self._do_work, name=f"keeper {number}")
            for number in range(WORKERS)
        ]
        for worker in self._workers:
            worker.start()

    def _do_work(self) -> None:
        while (task := self._work.get()[2]) is not None:
            task()

    def _plan(self, urgency: int, task: Callable[[], None] | None) -> None:
        """Have something done by a worker; None ends it. Called in one thread alone."""
        self._planned += 1
        self._work.put((urgency, self._planned, task))

    def take(self, question: int, flags: dict[str, str], auth: bool) -> None:
        """Answer a question with a store that nobody has used, at once if there is one."""
        kind = (auth, tuple(sorted(flags.items())))
        with self._lock:
            shelf = self._shelves.pop(kind) if kind in self._shelves else Shelf()
            self._shelves[kind] = shelf
            if shelf.ready:
                self._give(question, shelf.ready.popleft())
            else:
                shelf.waiting.append(question)
                self._order(kind, shelf, WANTED)
            spares = SPARES_WITH_AUTH if auth else SPARES
            while shelf.coming + len(shelf.ready) - len(shelf.waiting) < spares:
                self._order(kind, shelf, AHEAD)
            for other in list(self._shelves)[:-KINDS_MAX]:
                if not self._shelves[other].coming:
                    for kept in self._shelves.pop(other).ready:
                        self._plan(AHEAD, partial(self._end, kept))

    def _give(self, question: int, kept: Kept) -> None:
        self._answer({"question": question, "number": kept.number, "url": kept.server.client_url})

    def _order(self, kind: Kind, shelf: Shelf, urgency: int) -> None:
        shelf.coming += 1
        self._plan(urgency, partial(self._make, kind, shelf))

    def _make(self, kind: Kind, shelf: Shelf) -> None:
        refusal = ""
        try:
            made = self._made(kind)
        except (ConfigError, StartError) as error:
            refusal = str(error)
        except Exception as error:
            refusal = f"{type(error).__name__}: {error}"
        with self._lock:
            shelf.coming -= 1
            # One that nobody waits for may fail: it will again, when somebody does.
            question = shelf.waiting.popleft() if shelf.waiting else 0
            if refusal and question:
                self._answer({"question": question, "error": refusal})
            elif not refusal and question:
                self._give(question, made)
            elif not refusal:
                shelf.ready.append(made)

    def _made(self, kind: Kind) -> Kept:
        auth, flags = kind
        with self._lock:
            self._count += 1
            number, port = self._count, self._ports.hold()
        name = f"store-{number}"
        scheme = "https" if any(flag == "cert-file" for flag, _ in flags) else "http"
        options = {flag.replace("-", "_"): value for flag, value in flags}
        self._logs.begin(name)
        try:
            config = Config(
                ephemeral=True,
                name=name,
                listen_client_urls=f"{scheme}://{HOST}:{port}",
                listen_peer_urls=f"http://{HOST}:0",
                **options,
            )
            kept = Kept(number, port, Server(config))
            kept.server.start()
            if number == 1:
                # All that is imported is in use from now on, and never looked at again.
                gc.freeze()
            if auth:
                _enable_auth(kept.server, options)
            self._kept[kept.number] = kept
            return kept
        except BaseException as error:
            told = self._logs.text(name)
            self._logs.end(name)
            with self._lock:
                self._ports.give_back(port)
            if isinstance(error, StartError) and told:
                raise StartError(f"{error}\n{told}") from error
            raise

    def log(self, question: int, number: int) -> None:
        """Answer with what the member of a store logged."""
        self._answer({"question": question, "text": self._logs.text(f"store-{number}")})

    def drop(self, question: int, number: int) -> None:  # noqa: ARG002 (nobody waits for it)
        """End a store."""
        with self._lock:
            kept = self._kept[number]
            self._dropped += 1
            # Tests may be quicker than stores are made; then memory must not fill up.
            is_late = self._dropped - self._ended > DROPPED_MAX
            self._plan(WANTED if is_late else AHEAD, partial(self._end_dropped, kept))

    def _end_dropped(self, kept: Kept) -> None:
        self._end(kept)
        with self._lock:
            self._ended += 1
            is_due = self._ended % COLLECT_STORES == 0
        if is_due:
            gc.collect()

    def _end(self, kept: Kept) -> None:
        try:
            kept.server.close()
        except Exception as error:
            # Whatever stopped it was in the log of the test that had it.
            sys.stderr.write(f"a member stopped: {error}\n")
        self._logs.end(f"store-{kept.number}")
        with self._lock:
            del self._kept[kept.number]
            self._ports.give_back(kept.port)

    def close(self) -> None:
        """End everything; what is only planned is not done any more."""
        for _ in self._workers:
            self._plan(AT_ONCE, None)
        for worker in self._workers:
            worker.join()
        for kept in list(self._kept.values()):
            self._end(kept)
        self._ports.close()


def _enable_auth(server: Server, options: Mapping[str, str]) -> None:
    # The server's own certificate is good for clients, too.
    client = Client(
        server.client_url,
        insecure="cert_file" in options,
        cert=options.get("cert_file", ""),
        key=options.get("key_file", ""),
        timeout=AUTH_SECONDS_MAX,
    )
    try:
        with client:
            enable_auth(client)
    except BaseException:
        server.close()
        raise


def main() -> None:
    """Answer questions until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.disable()
    keeper = Keeper(take_output())
    asked: dict[str, Callable[..., None]] = {
        "take": keeper.take,
        "log": keeper.log,
        "drop": keeper.drop,
    }
    try:
        for line in sys.stdin:
            question = json.loads(line)
            asked[question.pop("what")](**question)
    finally:
        keeper.close()


if __name__ == "__main__":
    main()
