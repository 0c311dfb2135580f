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
from typing import TypeAlias

from kvorum.client import Client
from kvorum.embed import Config, ConfigError, Server, StartError
from kvorum.testing.access import AUTH_SECONDS_MAX, enable_auth
from kvorum.testing.companion import Answer, take_output
from kvorum.testing.ports import HOST, Ports

SPARES = 2
"""So many stores of a kind are kept ready."""
KINDS_MAX = 4
"""So many kinds have stores ready, those that were asked for last."""
LOG_LINES_MAX = 500
WANTED, AHEAD, LAST = range(3)
"""The order of work: what a test waits for; what nobody waits for; the end."""
_SWITCH_SECONDS = 0.0005
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
        self._lines: dict[str, deque[str]] = {}
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def begin(self, member: str) -> None:
        """Keep what a member logs from now on."""
        self._lines[member] = deque(maxlen=LOG_LINES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        lines = self._lines.get(getattr(record, "member", ""))
        if lines is not None:
            lines.append(self.format(record))

    def text(self, member: str) -> str:
        """Return the lines of a member."""
        return "\n".join(self._lines.get(member, ()))

    def end(self, member: str) -> None:
        """Forget a member."""
        self._lines.pop(member, None)


class Shelf:
    """Stores of one kind that are ready, or will be."""

    def __init__(self) -> None:
        self.coming = 0
        """How many are on it or being made."""
        self.ready: queue.SimpleQueue[Kept | Exception] = queue.SimpleQueue()


class Keeper:
    """Makes stores ahead of time, and ends those that are given up, in a thread of its own."""

    def __init__(self) -> None:
        self._logs = Logs()
        logger = logging.getLogger("kvorum")
        logger.addHandler(self._logs)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        self._ports = Ports()
        self._count = 0
        self._shelves: dict[Kind, Shelf] = {}
        self._taken: dict[int, Kept] = {}
        self._planned = 0
        self._work: queue.PriorityQueue[tuple[int, int, Callable[[], None] | None]]
        self._work = queue.PriorityQueue()
        self._worker = threading.Thread(target=self._do_work, name="keeper")
        self._worker.start()

    def _do_work(self) -> None:
        while (task := self._work.get()[2]) is not None:
            task()

    def take(self, flags: dict[str, str], auth: bool) -> Answer:
        """Return a store that nobody has used."""
        kind = (auth, tuple(sorted(flags.items())))
        shelf = self._shelves.pop(kind) if kind in self._shelves else Shelf()
        self._shelves[kind] = shelf
        if shelf.ready.empty():
            self._order(kind, shelf, WANTED)
        made = shelf.ready.get()
        shelf.coming -= 1
        if isinstance(made, Exception):
            raise made
        while shelf.coming < SPARES:
            self._order(kind, shelf, AHEAD)
        if len(self._shelves) > KINDS_MAX:
            oldest = self._shelves.pop(next(iter(self._shelves)))
            # What was ordered for it is made by then, because such work is done in order.
            self._plan(AHEAD, lambda: self._clear(oldest))
        self._taken[made.number] = made
        return {"number": made.number, "url": made.server.client_url}

    def _order(self, kind: Kind, shelf: Shelf, urgency: int) -> None:
        shelf.coming += 1
        self._plan(urgency, lambda: self._make(kind, shelf))

    def _plan(self, urgency: int, task: Callable[[], None] | None) -> None:
        self._planned += 1
        self._work.put((urgency, self._planned, task))

    def _make(self, kind: Kind, shelf: Shelf) -> None:
        try:
            shelf.ready.put(self._made(kind))
        except Exception as error:
            shelf.ready.put(error)

    def _made(self, kind: Kind) -> Kept:
        auth, flags = kind
        self._count += 1
        name, port = f"store-{self._count}", self._ports.hold()
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
            kept = Kept(self._count, port, Server(config))
            kept.server.start()
            if auth:
                _enable_auth(kept.server, options)
            return kept
        except BaseException as error:
            told = self._logs.text(name)
            self._logs.end(name)
            self._ports.give_back(port)
            if isinstance(error, StartError) and told:
                raise StartError(f"{error}\n{told}") from error
            raise

    def log(self, number: int) -> Answer:
        """Return what the member of a store logged."""
        return {"text": self._logs.text(f"store-{number}")}

    def drop(self, number: int) -> Answer:
        """End a store; that it has ended is not waited for."""
        kept = self._taken.pop(number)
        self._plan(AHEAD, lambda: self._end(kept))
        return {}

    def _end(self, kept: Kept) -> None:
        try:
            kept.server.close()
        except Exception as error:
            # Whatever stopped it was in the log of the test that had it.
            sys.stderr.write(f"a member stopped: {error}\n")
        self._logs.end(f"store-{kept.number}")
        self._ports.give_back(kept.port)

    def _clear(self, shelf: Shelf) -> None:
        while shelf.coming:
            shelf.coming -= 1
            made = shelf.ready.get()
            if isinstance(made, Kept):
                self._end(made)

    def close(self) -> None:
        """End everything."""
        self._plan(LAST, None)
        self._worker.join()
        for kept in self._taken.values():
            self._end(kept)
        for shelf in self._shelves.values():
            self._clear(shelf)
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
    answer = take_output()
    keeper = Keeper()
    asked: dict[str, Callable[..., Answer]] = {
        "take": keeper.take,
        "log": keeper.log,
        "drop": keeper.drop,
    }
    gc.freeze()
    try:
        for line in sys.stdin:
            question = json.loads(line)
            number, what = question.pop("question"), question.pop("what")
            try:
                found = asked[what](**question)
            except (ConfigError, StartError) as error:
                found = {"error": str(error)}
            except Exception as error:
                found = {"error": f"{type(error).__name__}: {error}"}
            answer({"question": number, **found})
    finally:
        keeper.close()


if __name__ == "__main__":
    main()
