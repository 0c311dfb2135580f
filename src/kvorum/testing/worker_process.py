"""A process that works for the tests of another process, and ends with that process.

Requests and responses are lines of JSON on its standard input and output; each response has the
number of its request. The worker ends when its input ends, so it never outlives the process that
started it. It has a session of its own, so an interrupt at the terminal reaches the tests alone.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

Answer = dict[str, Any]
END_SECONDS_MAX = 30.0
"""The time after which a worker that has not ended is killed."""
_STDERR_BYTES_MAX = 8192
# Other variables with our prefixes are flags of servers, and not meant for servers of tests.
_KEPT_VARIABLES = ("KVORUM_COMPILED", "KVORUM_EDGE")
_PACKAGES = Path(__file__).parents[2]
# The worker imports nothing from the directories of tests, which may hold modules of any name.
# Garbage collection would scan the imported modules repeatedly, so a module's `main` enables it if
# needed.
_START = """
import gc
import sys
gc.disable()
sys.path.append(sys.argv[1])
from importlib import import_module
import_module(sys.argv[2]).main()
"""


class WorkerError(Exception):
    """The worker process cannot fulfil a request; the text says why."""


def wait_for_response(answer: "Future[Answer]") -> Answer:
    """Wait for a response; raise WorkerError with the text of a refusal."""
    found = answer.result()
    if "error" in found:
        raise WorkerError(found["error"])
    return found


class WorkerProcess:
    """The requesting side; any thread may use it."""

    def __init__(self, module: str) -> None:
        """Run a module of this package as a program."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if name in _KEPT_VARIABLES or not name.startswith(("ETCD_", "KVORUM_"))
        }
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `stop`)
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-c", _START, str(_PACKAGES), module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
            start_new_session=True,
        )
        self._module = module
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._pending: dict[int, Future[Answer]] = {}
        self._count = 0
        self._has_ended = False
        self._reader = threading.Thread(target=self._read, name=f"{module} answers", daemon=True)
        self._reader.start()

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._has_ended

    @property
    def process_id(self) -> int:
        """The id of the process."""
        return self._process.pid

    def request(self, what: str, /, **fields: object) -> Answer:
        """Send a request and return the response; raise WorkerError if it is refused."""
        return wait_for_response(self.start_request(what, **fields))

    def start_request(self, what: str, /, **fields: object) -> "Future[Answer]":
        """Send a request whose response is needed later; `wait_for_response` returns it."""
        answer: Future[Answer] = Future()
        with self._lock:
            self._count += 1
            number = self._count
            self._pending[number] = answer
        self._send({"question": number, "what": what, **fields})
        return answer

    def send(self, what: str, /, **fields: object) -> None:
        """Send a request without a response."""
        self._send({"question": 0, "what": what, **fields})

    def _send(self, question: Answer) -> None:
        assert self._process.stdin is not None
        if os.getpid() != self._owner:
            raise WorkerError(
                "this is a child that a test has forked; in it, use clients of its own, at the "
                "URLs of the store or the cluster"
            )
        with self._lock:
            if not self._has_ended:
                with suppress(OSError):  # the reader thread notices the end
                    self._process.stdin.write(json.dumps(question).encode() + b"\n")
                    self._process.stdin.flush()
                return
            asked = self._pending.pop(question["question"], None)
        if asked is not None:
            asked.set_result({"error": self._describe_end()})

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer: Answer = json.loads(line)
            with self._lock:
                asked = self._pending.pop(answer["question"])
            asked.set_result(answer)
        with self._lock:
            self._has_ended = True
            left = list(self._pending.values())
            self._pending.clear()
        for asked in left:
            asked.set_result({"error": self._describe_end()})

    def _describe_end(self) -> str:
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _STDERR_BYTES_MAX))
        output = self._stderr.read().decode(errors="replace").strip()
        return f"the process that runs {self._module} has ended; it wrote:\n{output or 'nothing'}"

    def stop(self) -> None:
        """End the process, and release everything."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock, suppress(OSError):  # a request that it did not read is not missed
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()
        self._stderr.close()


def reserve_output() -> Callable[[Answer], None]:
    """Reserve standard output for responses, on the worker's side; return their writer."""
    output = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    lock = threading.Lock()

    def write_response(content: Answer) -> None:
        with lock:
            output.write(json.dumps(content).encode() + b"\n")

    return write_response
