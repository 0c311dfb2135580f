"""The network between the members of a test cluster, which can be partitioned and healed.

This network listens once for each pair of a dialing and a dialed member, so the port shows who
dials, with TLS or without. A member dials these ports instead of those that the others advertise.
Bytes between partitioned members wait, as they do where routers drop packets.
"""

import asyncio
from collections.abc import Collection, Sequence

from kvorum.testing.ports import HOST

PIECE_BYTES = 1 << 16


class Network:
    """Carries the bytes between members, which are named by numbers."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._cut: set[tuple[int, int]] = set()
        self._changed = asyncio.Condition()

    async def listen(self, source: int, target: int, port: int) -> int:
        """Return a port at which one member reaches another, which listens at `port`."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._accept(source, target, port, reader, writer)

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
        source: int,
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
