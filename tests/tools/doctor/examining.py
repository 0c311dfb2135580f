"""kvorumctl doctor at something that is sick, and servers that are made so."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvorum.client.sync.client import Client
from kvorum.tools.doctor.findings import SEVERITIES
from tests.kvorum import READY, command
from tests.ports import held_port
from tests.tools.ctl.duel import run_here
from tests.waiting import WAIT_SECONDS_MAX, until

Found = dict[str, list[dict[str, Any]]]


def client_of(address: str) -> Client:
    """Return a client that waits for a busy server."""
    return Client(address, timeout=WAIT_SECONDS_MAX, connect_timeout=WAIT_SECONDS_MAX)


def of_endpoints(
    endpoints: str, *flags: str, interval: str = "0s", judges_disks: bool = False
) -> Found:
    """Examine a cluster. The disk of a busy machine is no finding, unless a test is about it.

    Flags may allow less time to answer: then a busy server may be found to be unreachable.
    """
    seconds = f"{WAIT_SECONDS_MAX:.0f}s"
    words = [f"--endpoints={endpoints}", f"--dial-timeout={seconds}"]
    if not any(each.startswith("--command-timeout=") for each in flags):
        words.append(f"--command-timeout={seconds}")
    words += ["doctor", f"--interval={interval}", "-w", "json", *flags]
    outcome = run_here(words)
    found = _checked(outcome.code, outcome.out, outcome.err)
    for name in () if judges_disks else ("log-disk-slow", "database-disk-slow"):
        found.pop(name, None)
    return found


def until_found(names: set[str], examine: Callable[[], Found]) -> Found:
    """Examine until there are these findings and no others, and return them.

    For clusters of a busy machine: among them a leader may be lost for a moment, or be slow.
    """

    looks: list[Found] = []

    def is_found() -> bool:
        looks.append(examine())
        return looks[-1].keys() == names

    try:
        until(f"found: {sorted(names)}", is_found)
    except AssertionError as error:
        raise AssertionError(f"expected {sorted(names)}, found at last: {looks[-1]}") from error
    return looks[-1]


def of_directories(*directories: Path, flags: tuple[str, ...] = ()) -> Found:
    """Examine data directories."""
    named = [f"--data-dir={each}" for each in directories]
    outcome = run_here(["doctor", "-w", "json", *named, *flags])
    return _checked(outcome.code, outcome.out, outcome.err)


def _checked(code: int, out: bytes, err: bytes) -> Found:
    assert not err, err
    told = json.loads(out)
    by_name: Found = {}
    for each in told["findings"]:
        assert each["severity"] == SEVERITIES[each["name"]].value
        assert each["certainty"] in ("certain", "likely", "possible")
        assert each["what"] and not each["what"].endswith(".")
        assert each["evidence"] or each["name"].startswith("configuration-")
        by_name.setdefault(each["name"], []).append(each)
    needs_action = any(each["severity"] != "notice" for each in told["findings"])
    assert told["healthy"] is not needs_action
    assert code == int(needs_action)
    return by_name


@contextmanager
def changed_kvorum(directory: Path, change: str, *flags: str) -> Iterator[str]:
    """Run a member whose process was changed by some lines of Python; give its address."""
    program = f"{change}\nfrom kvorum.process.main import main\nmain()\n"
    with held_port() as port:
        address = f"127.0.0.1:{port}"
        process = subprocess.Popen(
            [sys.executable, "-c", program, *command(directory, address, *flags)[1:]],
            stderr=subprocess.PIPE,
            text=True,
            # In this edge, all the process asks of the system is asked in Python.
            env={**os.environ, "KVORUM_EDGE": "python"},
        )
        assert process.stderr is not None
        try:
            lines = []
            for line in process.stderr:
                lines.append(line)
                if READY in line:
                    break
            else:
                raise AssertionError(f"kvorum ended with {process.wait()}:\n{''.join(lines)}")
            # Its log is read all the time, so that it never waits for a full pipe.
            reader = threading.Thread(target=process.stderr.read)
            reader.start()
            yield address
            process.terminate()
            reader.join()
        finally:
            process.kill()
            process.wait()
            process.stderr.close()
