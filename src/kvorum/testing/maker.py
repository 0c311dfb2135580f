"""Makes stores for tests, and ends them: a process that the keeper forks, with members embedded.

It does one task after the other, as it is told by lines of JSON, and ends with the keeper, however
that ends. Nothing is used twice: each store has a member, a directory and a port of its own.
"""

import gc
import json
import logging
import os
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn

from kvorum.client import Client
from kvorum.embed import Config, ConfigError, Server, StartError
from kvorum.testing.access import AUTH_SECONDS_MAX, enable_auth
from kvorum.testing.companion import Answer
from kvorum.testing.ports import HOST, Ports

LOG_LINES_MAX = 500
COLLECT_STORES = 20
"""After the end of so many stores, what they left in cycles is collected; Python itself would look
for it while one is made, and again and again."""
_SWITCH_SECONDS = 0.001
"""Threads of members take turns quickly: most of them wait for another."""


class Kept(NamedTuple):
    """A store that is ready."""

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


class Maker:
    """Has the stores that it made, by their numbers."""

    def __init__(self) -> None:
        self._logs = Logs()
        logger = logging.getLogger("kvorum")
        logger.addHandler(self._logs)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        self._ports = Ports()
        self._kept: dict[int, Kept] = {}
        self._ended = 0

    def make(self, number: int, flags: Mapping[str, str], auth: bool) -> Answer:
        """Make a store; the answer says where it is, or why there is none."""
        try:
            return {"url": self._make(number, flags, auth).server.client_url}
        except (ConfigError, StartError) as error:
            return {"error": str(error)}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _make(self, number: int, flags: Mapping[str, str], auth: bool) -> Kept:
        port, name = self._ports.hold(), _name(number)
        scheme = "https" if "cert-file" in flags else "http"
        options = {flag.replace("-", "_"): value for flag, value in flags.items()}
        self._logs.begin(name)
        try:
            config = Config(
                ephemeral=True,
                name=name,
                listen_client_urls=f"{scheme}://{HOST}:{port}",
                listen_peer_urls=f"http://{HOST}:0",
                **options,
            )
            kept = Kept(port, Server(config))
            kept.server.start()
            if not self._kept and not self._ended:
                # All that is imported is in use from now on, and never looked at again.
                gc.freeze()
            if auth:
                _enable_auth(kept.server, options)
        except BaseException as error:
            told = self._logs.text(name)
            self._logs.end(name)
            self._ports.give_back(port)
            if isinstance(error, StartError) and told:
                raise StartError(f"{error}\n{told}") from error
            raise
        self._kept[number] = kept
        return kept

    def log(self, number: int) -> Answer:
        """Answer with what the member of a store logged."""
        return {"text": self._logs.text(_name(number))}

    def end(self, number: int) -> Answer:
        """End a store."""
        kept = self._kept.pop(number)
        try:
            kept.server.close()
        except Exception as error:
            # Whatever stopped it was in the log of the test that had it.
            sys.stderr.write(f"a member stopped: {error}\n")
        self._logs.end(_name(number))
        self._ports.give_back(kept.port)
        self._ended += 1
        if self._ended % COLLECT_STORES == 0:
            gc.collect()
        return {}

    def close(self) -> None:
        """End everything."""
        for number in list(self._kept):
            self.end(number)
        self._ports.close()


def _name(number: int) -> str:
    return f"store-{number}"


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


def become_maker(tasks: socket.socket) -> NoReturn:
    """Do tasks until there are no more, in a child that was just forked."""
    code = 1
    try:
        # The keeper's ends of other makers' sockets are here, too; they would not end with it.
        first = tasks.fileno()
        os.closerange(3, first)
        os.closerange(first + 1, os.sysconf("SC_OPEN_MAX"))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        sys.setswitchinterval(_SWITCH_SECONDS)
        maker = Maker()
        known: dict[str, Callable[..., Answer]] = {
            "make": maker.make,
            "log": maker.log,
            "end": maker.end,
        }
        try:
            for line in tasks.makefile("rb"):
                task = json.loads(line)
                answer = known[task.pop("what")](**task)
                tasks.sendall(json.dumps(answer).encode() + b"\n")
        finally:
            maker.close()
        code = 0
    except (ConnectionError, SystemExit):
        pass  # the keeper is gone, or somebody wants this one to end
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
