"""The network between members: what a test delays, slows, cuts and mends.

Members advertise addresses at which this network listens, and can be reached only through it. Which
member dialled is read from the kernel's table of sockets, so that members of any make, with TLS or
without, need not cooperate. The two directions of every connection belong to two links, since a
member both asks its peers and streams to those that asked.

Bytes on a link that is cut wait, as they do where routers drop packets and TCP sends them again.
"""

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import uvloop

from tests.waiting import WAIT_SECONDS_MAX

Address = tuple[str, int]
T = TypeVar("T")
PIECE_BYTES = 1 << 16
_SOCK_DIAG = 4
_BY_FAMILY = 20
_ANY = 0xFFFFFFFF
_INODE_OFFSET = 16 + 68


class Node(NamedTuple):
    """A member as the network knows it. Only members of one group reach each other."""

    group: str
    name: str
    advertised: Address
    listening: Address


class Link:
    """The way from one node to another."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.delay_seconds = 0.0
        self.bytes_per_second = 0.0
        self.is_severed = False
        self._moved_at = 0.0
        self.silence_seconds_max = 0.0
        """Longest time without a byte since `listen`; a leader's heartbeats end each."""

    def listen(self) -> None:
        """Begin to measure silence."""
        self._moved_at = time.monotonic()
        self.silence_seconds_max = 0.0

    def _note(self) -> None:
        now = time.monotonic()
        self.silence_seconds_max = max(self.silence_seconds_max, now - self._moved_at)
        self._moved_at = now

    async def carry(self, size: int) -> None:
        """Wait until bytes that are sent now arrive."""
        self._note()
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        if self.bytes_per_second:
            await asyncio.sleep(size / self.bytes_per_second)
        await self.is_open.wait()


class Network:
    """Listens for a cluster's members, in a thread of its own."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network")
        self._thread.start()
        self._servers: dict[Address, asyncio.Server] = {}
        self._nodes: dict[tuple[str, Address], Node] = {}
        self._processes: dict[int, Node] = {}
        self._all_known = asyncio.Event()
        self._all_known.set()
        self._links: dict[tuple[Node, Node], Link] = {}
        self._connections: dict[asyncio.Task[None], tuple[Node, Node]] = {}

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_SECONDS_MAX)

    def _call(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return self._run(call())

    def add(self, node: Node) -> None:
        """Listen for a node."""

        async def listen() -> None:
            self._nodes[node.group, node.advertised] = node
            if node.advertised not in self._servers:
                host, port = node.advertised
                server = await asyncio.start_server(self._accept, host, port)
                self._servers[node.advertised] = server

        self._run(listen())

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Let dials wait while the block starts a process, which may be the one that dials."""
        self._call(self._all_known.clear)
        try:
            yield
        finally:
            self._call(self._all_known.set)

    def started(self, node: Node, process: int) -> None:
        """Attribute what a process dials to a node."""
        self._call(lambda: self._processes.update({process: node}))

    def ended(self, process: int) -> None:
        """Forget a process, whose id may be used again."""
        self._call(lambda: self._processes.pop(process, None))

    # Faults.

    def link(self, source: Node, target: Node) -> Link:
        return self._links.setdefault((source, target), Link())

    def cut(self, source: Node, target: Node) -> None:
        """Let nothing pass from one to the other."""
        self._call(lambda: self.link(source, target).is_open.clear())

    def slow(
        self, source: Node, target: Node, delay_seconds: float, bytes_per_second: float = 0
    ) -> None:
        """Delay everything."""

        def change() -> None:
            link = self.link(source, target)
            link.delay_seconds = delay_seconds
            link.bytes_per_second = bytes_per_second

        self._call(change)

    def reset(self, one: Node, other: Node) -> None:
        """Break off all connections between two nodes; they may dial again."""
        self._call(lambda: self._break_off(one, other))

    def sever(self, one: Node, other: Node) -> None:
        """Break off all connections between two nodes, and refuse new ones."""

        def change() -> None:
            self.link(one, other).is_severed = self.link(other, one).is_severed = True
            self._break_off(one, other)

        self._call(change)

    def isolate(self, node: Node) -> None:
        """Cut a node off from all others, silently."""
        for other in list(self._nodes.values()):
            if other != node:
                self.cut(node, other)
                self.cut(other, node)

    def mend(self) -> None:
        """Undo every fault."""

        def change() -> None:
            for link in self._links.values():
                link.is_open.set()
                link.delay_seconds = link.bytes_per_second = 0.0
                link.is_severed = False

        self._call(change)

    def _break_off(self, one: Node, other: Node) -> None:
        for task, ends in list(self._connections.items()):
            if set(ends) == {one, other}:
                task.cancel()

    # Connections.

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        local: Address = writer.get_extra_info("sockname")
        remote: Address = writer.get_extra_info("peername")
        await self._all_known.wait()
        source = self._who(remote, local)
        target = self._nodes.get((source.group, local)) if source else None
        if source is None or target is None or self.link(source, target).is_severed:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = (source, target)
        onward: asyncio.StreamWriter | None = None
        try:
            # A dial is bytes, too: it does not get through a cut link.
            await self.link(source, target).carry(0)
            back, onward = await asyncio.open_connection(*target.listening)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, onward, self.link(source, target)))
                both.create_task(_pump(back, writer, self.link(target, source)))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            # Broken off by one side, or by a fault: the other side is closed, too.
            pass
        finally:
            del self._connections[task]
            writer.transport.abort()
            if onward is not None:
                onward.transport.abort()

    def _who(self, remote: Address, local: Address) -> Node | None:
        """Return the node whose socket is connected from `remote` to `local`."""
        inode = _inode(remote, local)
        for process, node in self._processes.items():
            if inode and inode in _inodes(process):
                return node
        return None

    def stop(self) -> None:
        async def stop() -> None:
            for server in self._servers.values():
                server.close()
            tasks = list(self._connections)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._run(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class EndError(Exception):
    """One side has closed its connection."""


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: Link) -> None:
    while True:
        data = await reader.read(PIECE_BYTES)
        await link.carry(len(data))
        if not data:
            raise EndError
        writer.write(data)
        await writer.drain()


def _inode(local: Address, remote: Address) -> int:
    """Ask the kernel for the inode of a connected socket, named by its own end; 0: it is gone."""
    body = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, _ANY)
    body += struct.pack(">HH", local[1], remote[1])
    for host in (local[0], remote[0]):
        body += socket.inet_aton(host) + bytes(12)
    body += struct.pack("=III", 0, _ANY, _ANY)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.send(struct.pack("=IHHII", 16 + len(body), _BY_FAMILY, 1, 0, 0) + body)
        answer = kernel.recv(PIECE_BYTES)
    (kind,) = struct.unpack_from("=H", answer, 4)
    return struct.unpack_from("=I", answer, _INODE_OFFSET)[0] if kind == _BY_FAMILY else 0


def _inodes(process: int) -> set[int]:
    """Return the inodes of all sockets that a process has."""
    found: set[int] = set()
    with suppress(OSError):
        for entry in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                target = str(entry.readlink())
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return found
