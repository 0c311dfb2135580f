"""Compute HashKV over rows, in memory that does not grow with the number of keys."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from operator import itemgetter

from google_crc32c import extend

from kvorum.storage.backend.buckets import KEY
from kvorum.storage.backend.encoding import revision_of, row_key
from kvorum.storage.backend.native import NativeRows, Row
from kvorum.tools.offline.newest import Newest

Walk = Callable[[], AbstractContextManager[Iterator[list[Row]]]]
"""Starts a walk over all rows with their checksums; each call starts a new walk."""
Blame = Callable[[list[Row]], object]
"""Raises the error for the damaged row among these rows."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Hashing:
    """Hashes rows as HashKV does, without a table of all keys."""

    walk: Walk
    blame: Blame
    native: NativeRows | None
    keys_max: int | None = None

    def run(self, revision: int, compacted: int) -> int:
        """Return the hash at a main revision; `compacted` is the compact revision, or -1."""
        kept = Newest(self.native, deleted_at=revision, keys_max=self.keys_max)
        if compacted > 0 and not self._survey(kept, revision):
            # Without a live key, etcd leaves out only the rows that the compaction deletes.
            kept = Newest(self.native, keys_max=self.keys_max)
            self._survey(kept, compacted)
        value: int = extend(0, KEY)
        place = 0
        with self.walk() as pieces:
            for rows in _up_to(pieces, revision):
                found = kept.checksum(value, rows, place, compacted)
                if found is None:
                    raise self._damage(rows)
                value, place = found, place + len(rows)
        return value

    def _survey(self, newest: Newest, main: int) -> int:
        """Note the rows up to a main revision; return the number of live keys."""
        with closing(newest), self.walk() as pieces:
            for rows in _up_to(pieces, main):
                if not newest.note(rows):
                    raise self._damage(rows)
            return newest.finish()

    def _damage(self, rows: list[Row]) -> AssertionError:
        self.blame(rows)
        return AssertionError("compiled code refused rows that are whole")


def _up_to(pieces: Iterator[list[Row]], main: int) -> Iterator[list[Row]]:
    """Yield the rows up to and including a main revision."""
    behind = row_key(revision_of(max(0, main + 1)))
    for rows in pieces:
        if rows and rows[-1][0] >= behind:
            yield rows[: bisect_left(rows, behind, key=itemgetter(0))]
            return
        yield rows
