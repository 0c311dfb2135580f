"""A real etcd to ask and to compare with: started on a directory, stopped; and its tools.

The newest available: if that is 3.5.1, it answers some calls differently from our target.
"""

import base64
import http.client
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ports import held_port
from tests.waiting import WAIT_SECONDS_MAX
from tools import etcds

# A member is there when it serves and knows its cluster's version: 3.7.3 ends when it is asked
# for a downgrade before that.
SIGNS = (
    ("serving client traffic ",),
    ("set initial cluster version", "set cluster version from store"),
)


def chosen() -> etcds.Etcd:
    """Return the etcd that is asked; skips the test where there is none."""
    etcd = etcds.chosen()
    if etcd is None:
        pytest.skip("no etcd to ask: 'make setup-dev' installs 3.5.1, 'make oracle' builds 3.7.3")
    return etcd


def binary(name: str) -> Path:
    """Return the path of one of etcd's programs."""
    return chosen().programs / name


def is_target() -> bool:
    """Return whether the etcd that is asked answers as we should: 3.5.1 does not everywhere."""
    return chosen().version >= (3, 7)


class Etcd:
    """A running member that is a cluster by itself."""

    def __init__(self, port: int, process: subprocess.Popen[str]) -> None:
        self._port = port
        self.process = process
        self.address = f"127.0.0.1:{port}"

    def ask(self, method: str, **request: Any) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=WAIT_SECONDS_MAX)
        try:
            connection.request("POST", f"/v3/{method}", json.dumps(request))
            response = connection.getresponse()
            body = response.read()
            assert response.status == 200, body
            answer: dict[str, Any] = json.loads(body)
            return answer
        finally:
            connection.close()

    def put(self, key: bytes, value: bytes) -> None:
        self.ask("kv/put", key=_base64(key), value=_base64(value))

    def get(self, key: bytes) -> bytes | None:
        found = self.ask("kv/range", key=_base64(key)).get("kvs", [])
        return base64.b64decode(found[0]["value"]) if found else None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@contextmanager
def running_etcd(directory: Path, *flags: str, scheme: str = "http") -> Iterator[Etcd]:
    """Run a member on a data directory for as long as the block takes."""
    with held_port() as port, _running(directory, port, *flags, scheme=scheme) as etcd:
        yield etcd


@contextmanager
def _running(directory: Path, port: int, *flags: str, scheme: str) -> Iterator[Etcd]:
    command = [
        str(binary("etcd")),
        f"--data-dir={directory}",
        f"--listen-client-urls={scheme}://127.0.0.1:{port}",
        f"--advertise-client-urls={scheme}://127.0.0.1:{port}",
        "--listen-peer-urls=http://127.0.0.1:0",
        "--initial-advertise-peer-urls=http://127.0.0.1:2",
        "--initial-cluster=default=http://127.0.0.1:2",
        "--unsafe-no-fsync",
        "--heartbeat-interval=10",
        "--election-timeout=50",
        *flags,
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    reader = threading.Thread(target=process.stderr.read)
    try:
        lines: list[str] = []
        awaited = set(SIGNS)
        for line in process.stderr:
            lines.append(line)
            awaited -= {signs for signs in awaited if any(sign in line for sign in signs)}
            if not awaited:
                break
        else:
            raise AssertionError(f"etcd ended with {process.wait()}:\n{''.join(lines)}")
        # Its log is read all the time, so that it never waits for a full pipe.
        reader.start()
        yield Etcd(port, process)
        process.terminate()
        reader.join()
    finally:
        process.kill()
        process.wait()
        if reader.is_alive():
            reader.join()
        process.stderr.close()
