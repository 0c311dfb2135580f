"""An ordinary client beside an attack: puts, one after the other, on its own connection, timed.

The client is a process of its own, so that no attack slows it through the interpreter's lock. It
puts until its input ends, and then prints a JSON list of [start, seconds, success], with start
times by the clock that all processes share.
"""

import contextlib
import json
import select
import subprocess
import sys
import time
from collections.abc import Callable
from types import TracebackType

from bench.abuse.wire import Wire, head

PUT = head(b"/etcdserverpb.KV/Put")
KEY_AND_VALUE = b"\x0a\x09bystander\x12\x05value"
PUT_SECONDS_MAX = 10.0
PAUSE_SECONDS = 0.005
FAILED = float("inf")
Put = tuple[float, float, bool]


def put(wire: Wire, seconds: float = PUT_SECONDS_MAX) -> bool:
    """Put once; return whether the put succeeded."""
    deadline = time.monotonic() + seconds
    return wire.answered(wire.call(PUT, KEY_AND_VALUE, deadline), deadline) == "0"


def is_served(address: str, seconds: float, is_running: Callable[[], bool]) -> bool:
    """Wait for a successful put; return False if the time or the server ends first."""
    deadline = time.monotonic() + seconds
    while is_running() and time.monotonic() < deadline:
        with contextlib.suppress(OSError), Wire(address) as wire:
            if put(wire):
                return True
        time.sleep(PAUSE_SECONDS)
    return False


def put_all_the_time(address: str) -> list[Put]:
    """Put until the input ends."""
    found: list[Put] = []
    wire: Wire | None = None
    while not select.select([sys.stdin], [], [], PAUSE_SECONDS)[0]:
        began = time.monotonic()
        is_well = False
        try:
            wire = wire or Wire(address)
            is_well = put(wire)
        except OSError:
            pass
        found.append((began, time.monotonic() - began, is_well))
        if not is_well and wire is not None:
            wire.close()
            wire = None
        if len(found) == 1:
            print("puts", flush=True)
    return found


class Bystander:
    """The client's process, which runs within a block."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._found: list[Put] = []

    def __enter__(self) -> "Bystander":
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.abuse.bystander", self._address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise SystemExit("the bystander did not start")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._process.kill()
        output, _ = self._process.communicate()
        if kind is None:
            self._found = json.loads(output)

    def worst(self, begin: float, end: float) -> float:
        """Return the longest put's duration between two moments, once the block has ended."""
        return max(
            [
                seconds if is_well else FAILED
                for when, seconds, is_well in self._found
                if when <= end and when + seconds >= begin
            ],
            default=FAILED,
        )


if __name__ == "__main__":
    json.dump(put_all_the_time(sys.argv[1]), sys.stdout)
