"""A mirror: all keys below a prefix at one revision, then every change of them, without a gap."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from kvorum.client.keys import Text, as_bytes
from kvorum.client.transactions import Step, delete, put
from kvorum.client.values import Changes, KeyValue

if TYPE_CHECKING:
    from kvorum.client.aio.client import AsyncClient

STEPS_MAX = 128
"""The operations of one transaction, up to the servers' default limit."""


class AsyncMirror:
    """Copies the keys below a prefix of one store into a program or another store."""

    def __init__(self, client: "AsyncClient", prefix: Text) -> None:
        self._client = client
        self._prefix = as_bytes(prefix)
        self.revision: int = 0
        """The mirror has returned everything up to this revision; 0 before `base`."""

    async def base(self) -> AsyncIterator[KeyValue]:
        """Iterate over all keys as they are at one revision, which `revision` then holds."""
        self.revision = (await self._client.read(prefix=self._prefix, count_only=True)).revision
        async for kv in self._client.range(prefix=self._prefix, revision=self.revision):
            yield kv

    async def updates(self) -> AsyncIterator[Changes]:
        """Iterate over the changes since then, whole revisions at once, and wait for more.

        Raises WatchCompactedError if some changes are compacted, and RevisionWentBackError if the
        store was restored from a backup; then start with `base` again.
        """
        if not self.revision:
            raise ValueError("a mirror has no updates before its base was read")
        watch = self._client.watch(prefix=self._prefix, revision=self.revision + 1)
        watch.knows(self.revision)
        async with watch:
            while True:
                changes = await watch.changes()
                yield changes
                self.revision = changes.revision

    async def copy_to(self, target: "AsyncClient", prefix: Text | None = None) -> None:
        """Copy all keys to another store, then each revision in a transaction, until a call fails.

        `prefix`, if given, replaces the mirrored prefix. Other keys of the target stay. A revision
        of more than STEPS_MAX changes takes several transactions.
        """
        new = self._prefix if prefix is None else as_bytes(prefix)
        cut = len(self._prefix)
        steps: list[Step] = []
        async for kv in self.base():
            steps.append(put(new + kv.key[cut:], kv.value))
            if len(steps) == STEPS_MAX:
                await _commit(target, steps)
                steps = []
        await _commit(target, steps)
        async for changes in self.updates():
            steps, revision = [], 0
            for event in changes.events:
                if event.revision != revision or len(steps) == STEPS_MAX:
                    await _commit(target, steps)
                    steps, revision = [], event.revision
                key = new + event.key[cut:]
                steps.append(put(key, event.value) if event.is_put else delete(key))
            await _commit(target, steps)


async def _commit(target: "AsyncClient", steps: list[Step]) -> None:
    if steps:
        await target.txn().then(*steps).commit()
