"""Maintenance of a cluster, member by member: status, alarms, space, hashes, snapshots.

Calls with `at` go to that endpoint, which need not be one of the client's; without `at` they go to
the same endpoint as other calls.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kvorum.client import administration
from kvorum.client.aio.streams import AsyncMessages
from kvorum.client.options import FOREVER
from kvorum.client.saving import Saving
from kvorum.client.values import Alarm, AlarmKind, MemberStatus, Snapshot, StoreHash

if TYPE_CHECKING:
    from kvorum.client.aio.client import AsyncClient


class AsyncMaintenance:
    """Maintenance of the members."""

    __slots__ = ("_client",)

    def __init__(self, client: "AsyncClient") -> None:
        self._client = client

    async def status(self, at: str | None = None, *, timeout: float | None = None) -> MemberStatus:
        """Return the status of a member."""
        return await self._client.run(administration.status(), timeout, at=at)

    async def alarms(self, *, timeout: float | None = None) -> list[Alarm]:
        """Return the alarms of all members."""
        return await self._client.run(administration.alarms(), timeout)

    async def raise_alarm(
        self, kind: AlarmKind, member: int, *, timeout: float | None = None
    ) -> None:
        """Raise an alarm: with `nospace` members refuse writes, with `corrupt` nearly all calls."""
        await self._client.run(administration.raise_alarm(Alarm(member, kind)), timeout)

    async def clear_alarms(self, *, timeout: float | None = None) -> list[Alarm]:
        """Clear all alarms, and return them."""
        found = await self.alarms(timeout=timeout)
        for alarm in found:
            await self._client.run(administration.clear_alarm(alarm), timeout)
        return found

    async def defragment(self, at: str | None = None, *, timeout: float = FOREVER) -> None:
        """Defragment a member's database; the member may serve no requests meanwhile."""
        await self._client.run(administration.defragment(), timeout, at=at)

    async def hash(self, at: str | None = None, *, timeout: float | None = None) -> int:
        """Hash a member's whole database; consistent members may have different hashes."""
        return await self._client.run(administration.hash_database(), timeout, at=at)

    async def hash_kv(
        self, at: str | None = None, *, revision: int = 0, timeout: float | None = None
    ) -> StoreHash:
        """Hash a member's keys up to a revision; 0 for its newest."""
        return await self._client.run(administration.hash_keys(revision), timeout, at=at)

    async def snapshot(
        self,
        path: str | Path,
        at: str | None = None,
        *,
        progress: Callable[[int, int], None] | None = None,
        timeout: float = FOREVER,
    ) -> Snapshot:
        """Save a snapshot of a member's database, checked and durable, or raise and save nothing.

        `progress` is called with the number of bytes received, and of those still to come.
        """
        shell, number = self._client.shell, self._client.endpoint_number(at)
        saving = await shell.work(lambda: Saving(path))
        try:
            async with AsyncMessages(shell, administration.snapshot(), timeout, number) as messages:
                async for message in messages:
                    saving.version = message.version
                    if saving.add(message.blob):
                        await shell.work(saving.write)
                    if progress is not None:
                        progress(saving.size, message.remaining_bytes)
            return await shell.work(saving.finish)
        finally:
            saving.close()

    async def move_leader(
        self, member: int, at: str | None = None, *, timeout: float | None = None
    ) -> None:
        """Make another member the leader; without `at`, the client first finds the present one."""
        operation = administration.move_leader(member)
        if at is not None:
            await self._client.run(operation, timeout, at=at)
            return
        for endpoint in self._client.endpoints:
            status = await self.status(endpoint, timeout=timeout)
            if status.is_leader:
                await self._client.run(operation, timeout, at=endpoint)
                return
        raise ValueError(
            "no endpoint of this client is the leader; give its endpoint as at, "
            "or call sync_endpoints before"
        )

    async def validate_downgrade(self, version: str, *, timeout: float | None = None) -> str:
        """Check whether the cluster can be downgraded, for example to 3.6; return its version."""
        return await self._client.run(administration.downgrade("VALIDATE", version), timeout)

    async def downgrade(self, version: str, *, timeout: float | None = None) -> str:
        """Start a downgrade to a version; return the cluster's version."""
        return await self._client.run(administration.downgrade("ENABLE", version), timeout)

    async def cancel_downgrade(self, *, timeout: float | None = None) -> str:
        """Cancel a downgrade; return the cluster's version."""
        return await self._client.run(administration.downgrade("CANCEL", ""), timeout)
