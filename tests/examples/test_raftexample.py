"""Three nodes of the example as real processes: writes, a node more, a node less, catching up."""

import asyncio
import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from examples.raftexample.node import CATCH_UP_ENTRIES, SNAPSHOT_ENTRIES
from tests.ports import held_ports
from tests.waiting import WAIT_SECONDS_MAX, until

REPOSITORY = Path(__file__).parents[2]


async def put(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> int:
    """Write a key on an open connection; return the status."""
    body = b"%d" % number
    head = b"PUT /many/%d HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
    writer.write(head % (number, len(body), body))
    answer = await reader.readuntil(b"\r\n\r\n")
    status = int(answer.split()[1])
    if status != 204:
        await reader.readline()
    return status


class Group:
    """Processes of the example, and clients of theirs. Nodes are numbered from 1 on."""

    def __init__(self, directory: Path, ports: list[int]) -> None:
        self.directory = directory
        count = len(ports) // 2
        self.urls = [f"http://127.0.0.1:{port}" for port in ports[:count]]
        self.ports = ports[count:]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, node: int, count: int, *flags: str) -> None:
        command = [sys.executable, "-m", "examples.raftexample", f"--id={node}"]
        command += [f"--cluster={','.join(self.urls[:count])}", f"--port={self.ports[node - 1]}"]
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        with (self.directory / f"log-{node}").open("ab") as log:
            self.processes[node] = subprocess.Popen(
                [*command, *flags], cwd=self.directory, env=environment, stderr=log
            )

    def kill(self, node: int) -> None:
        process = self.processes.pop(node)
        process.kill()
        process.wait()

    def log(self, node: int) -> str:
        return (self.directory / f"log-{node}").read_text()

    def ask(self, node: int, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
        """Return status and body; status 0 if the node does not answer."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.ports[node - 1], timeout=WAIT_SECONDS_MAX
        )
        try:
            connection.request(method, target, body)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def put(self, node: int, key: str, value: bytes) -> None:
        """Write, again and again until it is acknowledged."""
        until(f"{key} is put", lambda: self.ask(node, "PUT", key, value)[0] == 204)

    def has(self, node: int, key: str, value: bytes) -> bool:
        return self.ask(node, "GET", key) == (200, value)

    def wait_for(self, node: int, key: str, value: bytes) -> None:
        until(f"node {node} has {key}", lambda: self.has(node, key, value))

    def change(self, method: str, target: str, body: bytes = b"") -> None:
        """Add or remove a node, again and again until it is acknowledged."""
        until(f"{method} {target}", lambda: self.ask(1, method, target, body)[0] == 204)

    def put_many(self, node: int, count: int) -> None:
        """Write keys through many connections at once."""
        asyncio.run(self._put_many(node, count))

    async def _put_many(self, node: int, count: int) -> None:
        numbers = iter(range(count))

        async def work() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[node - 1])
            try:
                for number in numbers:
                    async with asyncio.timeout(WAIT_SECONDS_MAX):
                        # On a busy machine the leader may have been another meanwhile.
                        while await put(reader, writer, number) != 204:
                            pass
            finally:
                writer.close()
                await writer.wait_closed()

        await asyncio.gather(*[work() for _ in range(100)])

    def snapshots(self, node: int) -> list[str]:
        directory = self.directory / f"raftexample-{node}-snap"
        return sorted(path.name for path in directory.glob("*.snap"))


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with held_ports(8) as ports:
        made = Group(tmp_path, ports)
        for node in (1, 2, 3):
            made.start(node, 3)
        yield made
        for process in made.processes.values():
            process.kill()
            process.wait()


@pytest.mark.long
def test_a_group_of_three_grows_shrinks_and_survives(group: Group) -> None:
    for node in (1, 2, 3):
        group.put(node, f"/key-{node}", b"value %d \xff\x00" % node)
    for node, other in product((1, 2, 3), (1, 2, 3)):
        group.wait_for(node, f"/key-{other}", b"value %d \xff\x00" % other)
    assert group.ask(1, "GET", "/nothing") == (404, b"Failed to GET\n")
    assert group.ask(1, "PATCH", "/nothing")[0] == 405
    assert group.ask(1, "POST", "/four", group.urls[3].encode())[0] == 400
    assert group.ask(1, "POST", "/4", b"not an address")[0] == 400

    group.change("POST", "/4", group.urls[3].encode())
    group.start(4, 4, "--join")
    group.wait_for(4, "/key-3", b"value 3 \xff\x00")
    group.put(4, "/key-4", b"from the new one")
    group.wait_for(2, "/key-4", b"from the new one")

    group.kill(2)
    group.put(1, "/without-2", b"x")
    assert group.ask(2, "GET", "/without-2") == (0, b"")
    group.start(2, 3)
    group.wait_for(2, "/without-2", b"x")
    # It knows of the fourth from its log, not from its flags.
    assert group.has(2, "/key-4", b"from the new one")

    group.change("DELETE", "/3")
    assert group.processes.pop(3).wait(WAIT_SECONDS_MAX) == 0
    assert "was removed from the group" in group.log(3)
    group.put(4, "/without-3", b"y")
    group.wait_for(2, "/without-3", b"y")
    # It may come back, but not in.
    group.start(3, 4)
    assert group.processes.pop(3).wait(WAIT_SECONDS_MAX) == 0

    for node in (1, 2, 4):
        process = group.processes.pop(node)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS_MAX) == 0, group.log(node)


@pytest.mark.long
def test_a_node_far_behind_gets_a_snapshot(group: Group) -> None:
    group.put(3, "/first", b"1")
    group.kill(3)
    group.put(1, "/leader-known", b"1")
    group.put_many(1, SNAPSHOT_ENTRIES + CATCH_UP_ENTRIES // 2)
    until("two nodes have a snapshot", lambda: group.snapshots(1) and group.snapshots(2))
    last = SNAPSHOT_ENTRIES + CATCH_UP_ENTRIES // 2 - 1
    group.start(3, 3)
    group.wait_for(3, f"/many/{last}", b"%d" % last)
    assert "took a snapshot" in group.log(3)
    assert group.has(3, "/first", b"1")
    assert group.has(3, "/many/0", b"0")
    # From its snapshot and the log behind it, a node starts again.
    group.put(3, "/after", b"2")
    for node in (1, 2, 3):
        group.kill(node)
        group.start(node, 3)
    group.wait_for(2, "/after", b"2")
    assert group.has(2, "/many/17", b"17")
    # A node that is added now gets a snapshot that names it.
    group.change("POST", "/4", group.urls[3].encode())
    group.start(4, 4, "--join")
    group.wait_for(4, "/after", b"2")
    assert group.has(4, "/many/17", b"17")
    assert "took a snapshot" in group.log(4)
