"""The network between the members of a test cluster, which can be partitioned and healed.

This network listens at the addresses that members advertise, so members reach each other only
through it. It finds the dialing member in the kernel's table of connections, so members need not
cooperate, with TLS or without. Bytes between partitioned members wait, as they do where routers
drop packets.
"""

import asyncio
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from kvorum.testing.ports import HOST

PIECE_BYTES = 1 << 16
_TABLE = Path("/proc/net/tcp")


class Network:
    """Carries the bytes between members, which are named by numbers."""

    def __init__(self, who: Callable[[int], int | None]) -> None:
        """`who` returns the member that owns a socket, given the socket's inode."""
        self._who = who
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._cut: set[tuple[int, int]] = set()
        self._changed = asyncio.Condition()
        self.all_known = asyncio.Event()
        """Dials wait until this is set, because the process of the dialing member may not be known
        yet."""
        self.all_known.set()

    async def listen(self, member: int, port: int) -> int:
        """Listen on behalf of a member at a port; return the port to advertise."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._accept(member, port, reader, writer)

        server = await asyncio.start_server(accept, HOST, 0)
        self._servers.append(server)
        number: int = server.sockets[0].getsockname()[1]
        return number

    def reaches(self, one: int, other: int) -> bool:
        """Return whether two members reach each other."""
        return (one, other) not in self._cut

    async def partition(self, groups: Sequence[Collection[int]]) -> None:
        """Allow members to reach only their own group."""
        self._cut = {
            (one, other)
            for group in groups
            for one in group
            for another in groups
            for other in another
            if another is not group
        }
        async with self._changed:
            self._changed.notify_all()

    async def _accept(
        self,
        target: int,
        port: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        onward: asyncio.StreamWriter | None = None
        try:
            await self.all_known.wait()
            inode = _inode(writer.get_extra_info("peername"), writer.get_extra_info("sockname"))
            source = self._who(inode) if inode else None
            if source is None:
                return
            # A partition stops a dial as it stops bytes.
            await self._open(source, target)
            back, onward = await asyncio.open_connection(HOST, port)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry(reader, onward, source, target))
                both.create_task(self._carry(back, writer, target, source))
        except* (OSError, _EndError, asyncio.CancelledError):
            pass  # one side has ended, or the network stops: close the other side, too
        finally:
            self._tasks.discard(task)
            writer.transport.abort()
            if onward is not None:
                onward.transport.abort()

    async def _open(self, source: int, target: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: (source, target) not in self._cut)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: int, target: int
    ) -> None:
        while True:
            data = await reader.read(PIECE_BYTES)
            if (source, target) in self._cut:
                await self._open(source, target)
            if not data:
                raise _EndError
            writer.write(data)
            await writer.drain()

    async def stop(self) -> None:
        """Close all connections and listeners."""
        for server in self._servers:
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _EndError(Exception):
    """One side has closed its connection."""


def _inode(local: tuple[str, int], remote: tuple[str, int]) -> int:
    """Return the inode of a connected local socket, given by its own end; 0 if there is none."""
    ends = [_end(local), _end(remote)]
    with suppress(OSError):
        for line in _TABLE.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1:3] == ends:
                return int(fields[9])
    return 0


def _end(address: tuple[str, int]) -> str:
    """Format an end of a connection as the kernel's table does: in hex, in native byte order."""
    host = int.from_bytes(bytes(map(int, address[0].split("."))), sys.byteorder)
    return f"{host:08X}:{address[1]:04X}"
