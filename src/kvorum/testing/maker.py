"""Makes stores for tests, and ends them: a process that the keeper forks, with members embedded.

It does one task after the other, as it is told by lines of JSON, and ends with the keeper, however
that ends. Nothing is used twice: each store has a member, a directory and a port of its own.
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
from kvorum.telemetry.logs import Line
from kvorum.testing.access import AUTH_SECONDS_MAX, enable_auth
from kvorum.testing.companion import Answer
from kvorum.testing.ports import HOST, Ports

LOG_LINES_MAX = 500
COLLECT_STORES = 20
"""After the end of so many stores, what they left in cycles is collected; Python itself would look
for it while one is made, and again and again."""
_SWITCH_SECONDS = 0.001
"""Threads of members take turns quickly: most of them wait for another."""


class Lines:
    """What a member logged last; as it is, because most tests pass, and nobody reads that."""

    def __init__(self) -> None:
        self._lines: deque[Line] = deque(maxlen=LOG_LINES_MAX)

    def write(self, line: Line) -> None:
        """Keep a line."""
        self._lines.append(line)

    @property
    def text(self) -> str:
        """All of them."""
        return "\n".join(
            f"{line.moment.astimezone():%F %T.%f} {line.level.upper()} "
            f"{'.'.join(filter(None, ('kvorum', line.logger)))}: {text_of(line)}"
            for line in list(self._lines)
        )


class StoreServer(Server):
    """A member that keeps its log."""

    def _log_output(self) -> Lines:
        self.lines = Lines()
        return self.lines


class Kept(NamedTuple):
    """A store that is ready."""

    port: int
    server: StoreServer


class Maker:
    """Has the stores that it made, by their numbers."""

    def __init__(self) -> None:
        self._ports = Ports()
        self._kept: dict[int, Kept] = {}
        self._ended = 0

    def make(self, number: int, flags: Mapping[str, str], auth: bool) -> Answer:
        """Make a store; the answer says where it is, or why there is none."""
        try:
            return {"url": self._make(number, flags, auth)}
        except (ConfigError, StartError) as error:
            return {"error": str(error)}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _make(self, number: int, flags: Mapping[str, str], auth: bool) -> str:
        port = self._ports.hold()
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
            if not self._kept and not self._ended:
                # All that is imported is in use from now on, and never looked at again.
                gc.freeze()
            if auth:
                _enable_auth(server, options)
        except BaseException as error:
            self._ports.give_back(port)
            if isinstance(error, StartError) and server is not None:
                raise StartError(f"{error}\n{server.lines.text}") from error
            raise
        self._kept[number] = Kept(port, server)
        return server.client_url

    def log(self, number: int) -> Answer:
        """Answer with what the member of a store logged."""
        return {"text": self._kept[number].server.lines.text}

    def end(self, number: int) -> Answer:
        """End a store."""
        kept = self._kept.pop(number)
        try:
            kept.server.close()
        except Exception as error:
            # Whatever stopped it was in the log of the test that had it.
            sys.stderr.write(f"a member stopped: {error}\n")
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


def _enable_auth(server: Server, options: Mapping[str, str]) -> None:
    # Imported late: most stores have no users, and the first one is waited for.
    from kvorum.client import Client

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
        gc.disable()
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
