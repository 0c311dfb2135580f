"""What a database must hold, the simple way: entries of a log, and their result."""

from dataclasses import dataclass, field

from kvorum.storage.backend import Backend
from kvorum.storage.backend.buckets import BUCKETS, CONF_STATE, KEY, META

NAMES = [b"a", b"b", b"n" * 510, b"n" * 511, b"n" * 512, b"n" * 2000, b"n" * 1999 + b"m"]
ALL = 1 << 96


@dataclass
class Model:
    """The result of the entries so far."""

    rows: dict[int, bytes] = field(default_factory=dict)
    entries: dict[tuple[bytes, bytes], bytes] = field(default_factory=dict)

    def items(self, bucket: bytes) -> list[tuple[bytes, bytes]]:
        return sorted((n, v) for (b, n), v in self.entries.items() if b == bucket)

    def check(self, backend: Backend) -> None:
        """Compare everything."""
        assert backend.scan_rows(0, ALL, len(self.rows) + 1) == sorted(self.rows.items())
        for bucket in BUCKETS:
            if bucket not in (KEY, META):
                assert backend.items(bucket) == self.items(bucket)
        assert backend.get(META, CONF_STATE) == self.entries.get((META, CONF_STATE))


@dataclass(frozen=True)
class Entry:
    """Changes that one entry of the log makes; all of them or none are there after a crash."""

    puts: list[tuple[int, bytes]]
    deletes: list[int]
    changes: list[tuple[bytes, bytes, bytes | None]]
    conf_state: bytes | None

    def apply_to_model(self, model: Model) -> None:
        model.rows.update(self.puts)
        for revision in self.deletes:
            del model.rows[revision]
        for bucket, name, value in self.changes:
            model.entries.pop((bucket, name), None)
            if value is not None:
                model.entries[bucket, name] = value
        if self.conf_state is not None:
            model.entries[META, CONF_STATE] = self.conf_state

    def apply(self, backend: Backend) -> None:
        for revision, row in self.puts:
            # Whether there is such a row or not, all are still found.
            backend.put_row(revision, row, previous=revision - (1 << 32))
        for revision in self.deletes:
            backend.delete_row(revision)
        for bucket, name, value in self.changes:
            if value is None:
                backend.delete(bucket, name)
            else:
                backend.put(bucket, name, value)
        if self.conf_state is not None:
            backend.set_conf_state(self.conf_state)
