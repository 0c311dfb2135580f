"""Make and end stores for tests, as embedded members in a process that the store pool forks.

The builder carries out one task after another, which it reads as lines of JSON. It ends with the
pool, however the pool ends. Nothing is reused: each store has a member, a directory and a port of
its own.
"""

import gc
import json
import os
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn

from kvorum.embed import Config, ConfigError, Server, StartError
from kvorum.embed.logs import text_of
from kvorum.server.telemetry.logs import Line
from kvorum.testing.access import AUTH_SECONDS_MAX, enable_auth
from kvorum.testing.ports import HOST, Ports
from kvorum.testing.worker_process import Answer

LOG_LINES_MAX = 500
COLLECT_STORES = 20
"""After this many ends of stores, their reference cycles are collected. Python's automatic
collection would run repeatedly while a store is made."""
_SWITCH_SECONDS = 0.001
"""Short thread switches, because most threads of members wait for another thread."""


class LogTail:
    """The newest lines of a member's log, unformatted: most tests pass without a report of them."""

    def __init__(self) -> None:
        self._lines: deque[Line] = deque(maxlen=LOG_LINES_MAX)

    def write(self, line: Line) -> None:
        """Store a line."""
        self._lines.append(line)

    @property
    def text(self) -> str:
        """All lines, formatted."""
        return "\n".join(
            f"{line.moment.astimezone():%F %T.%f} {line.level.upper()} "
            f"{'.'.join(filter(None, ('kvorum', line.logger)))}: {text_of(line)}"
            for line in list(self._lines)
        )


class StoreServer(Server):
    """A member that keeps its log in memory."""

    def _log_output(self) -> LogTail:
        self.lines = LogTail()
        return self.lines


class ReadyStore(NamedTuple):
    """A store that is ready."""

    port: int
    server: StoreServer


class StoreBuilder:
    """Owns the stores that it made, by their numbers."""

    def __init__(self) -> None:
        self._ports = Ports()
        self._stores: dict[int, ReadyStore] = {}
        self._ended_count = 0

    def build(self, number: int, flags: Mapping[str, str], auth: bool) -> Answer:
        """Make a store; the answer has its URL, or an error."""
        try:
            return {"url": self._start_store(number, flags, auth)}
        except (ConfigError, StartError) as error:
            return {"error": str(error)}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _start_store(self, number: int, flags: Mapping[str, str], auth: bool) -> str:
        port = self._ports.reserve()
        scheme = "https" if "cert-file" in flags else "http"
        options = {flag.replace("-", "_"): value for flag, value in flags.items()}
        server: StoreServer | None = None
        try:
            config = Config(
                ephemeral=True,
                name=f"store-{number}",
                listen_client_urls=f"{scheme}://{HOST}:{port}",
                listen_peer_urls=f"http://{HOST}:0",
                **options,
            )
            server = StoreServer(config)
            server.start()
            if not self._stores and not self._ended_count:
                # All imported objects stay in use from now on, so the collector need not scan them
                # again.
                gc.freeze()
            if auth:
                _enable_auth(server, options)
        except BaseException as error:
            self._ports.release(port)
            if isinstance(error, StartError) and server is not None:
                raise StartError(f"{error}\n{server.lines.text}") from error
            raise
        self._stores[number] = ReadyStore(port, server)
        return server.client_url

    def log(self, number: int) -> Answer:
        """Return the log of a store's member."""
        return {"text": self._stores[number].server.lines.text}

    def end(self, number: int) -> Answer:
        """End a store."""
        kept = self._stores.pop(number)
        try:
            kept.server.close()
        except Exception as error:
            # The log of the store's test has the reason why the member stopped.
            sys.stderr.write(f"a member stopped: {error}\n")
        self._ports.release(kept.port)
        self._ended_count += 1
        if self._ended_count % COLLECT_STORES == 0:
            gc.collect()
        return {}

    def close(self) -> None:
        """End all stores."""
        for number in list(self._stores):
            self.end(number)
        self._ports.close()


def _enable_auth(server: Server, options: Mapping[str, str]) -> None:
    # Imported late, because most stores have no users, and a test waits for the first store.
    from kvorum.client import Client

    # The server's own certificate also serves as a client certificate.
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


def run_builder(tasks: socket.socket) -> NoReturn:
    """Carry out tasks until there are no more, in a child that was just forked."""
    code = 1
    try:
        # Close the pool's ends of other builders' sockets, or those builders would not end with it.
        first = tasks.fileno()
        os.closerange(3, first)
        os.closerange(first + 1, os.sysconf("SC_OPEN_MAX"))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        sys.setswitchinterval(_SWITCH_SECONDS)
        gc.disable()
        builder = StoreBuilder()
        known: dict[str, Callable[..., Answer]] = {
            "make": builder.build,
            "log": builder.log,
            "end": builder.end,
        }
        try:
            for line in tasks.makefile("rb"):
                task = json.loads(line)
                answer = known[task.pop("what")](**task)
                tasks.sendall(json.dumps(answer).encode() + b"\n")
        finally:
            builder.close()
        code = 0
    except (ConnectionError, SystemExit):
        pass  # the pool is gone, or SIGTERM arrived
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
