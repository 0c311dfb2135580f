# Written by `make client` from kvorum/client/aio; change that.
"""A mirror: all keys below a prefix at one revision, then every change of them, without a gap."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvorum.client.keys import Text, as_bytes
from kvorum.client.transactions import Step, delete, put
from kvorum.client.values import Changes, KeyValue

if TYPE_CHECKING:
    from kvorum.client.sync.client import Client

STEPS_MAX = 128
"""The operations of one transaction, up to the servers' default limit."""


class Mirror:
    """Copies the keys below a prefix of one store into a program or another store."""

    def __init__(self, client: "Client", prefix: Text) -> None:
        self._client = client
        self._prefix = as_bytes(prefix)
        self.revision: int = 0
        """The mirror has returned everything up to this revision; 0 before `base`."""

    def base(self) -> Iterator[KeyValue]:
        """Iterate over all keys as they are at one revision, which `revision` then holds."""
        self.revision = (self._client.read(prefix=self._prefix, count_only=True)).revision
        yield from self._client.range(prefix=self._prefix, revision=self.revision)

    def updates(self) -> Iterator[Changes]:
        """Iterate over the changes since then, whole revisions at once, and wait for more.

        Raises WatchCompactedError if some changes are compacted, and RevisionWentBackError if the
        store was restored from a backup; then start with `base` again.
        """
        if not self.revision:
            raise ValueError("a mirror has no updates before its base was read")
        watch = self._client.watch(prefix=self._prefix, revision=self.revision + 1)
        watch.knows(self.revision)
        with watch:
            while True:
                changes = watch.changes()
                yield changes
                self.revision = changes.revision

    def copy_to(self, target: "Client", prefix: Text | None = None) -> None:
        """Copy all keys to another store, then each revision in a transaction, until a call fails.

        `prefix`, if given, replaces the mirrored prefix. Other keys of the target stay. A revision
        of more than STEPS_MAX changes takes several transactions.
        """
        new = self._prefix if prefix is None else as_bytes(prefix)
        cut = len(self._prefix)
        steps: list[Step] = []
        for kv in self.base():
            steps.append(put(new + kv.key[cut:], kv.value))
            if len(steps) == STEPS_MAX:
                _commit(target, steps)
                steps = []
        _commit(target, steps)
        for changes in self.updates():
            steps, revision = [], 0
            for event in changes.events:
                if event.revision != revision or len(steps) == STEPS_MAX:
                    _commit(target, steps)
                    steps, revision = [], event.revision
                key = new + event.key[cut:]
                steps.append(put(key, event.value) if event.is_put else delete(key))
            _commit(target, steps)


def _commit(target: "Client", steps: list[Step]) -> None:
    if steps:
        target.txn().then(*steps).commit()
