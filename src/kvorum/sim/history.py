"""The history: the rows that members applied, and the answers that clients got.

After every turn the cluster reads the rows that a member added. The first member to apply a
revision defines its effects, and all others, and all after a restart, must have the same. So there
is one history of effects, and at the end of a run it explains every answer and every event.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

from kvorum.api.errors import Status
from kvorum.sim.operations import Pairs
from kvorum.sim.violation import Violation
from kvorum.state.mvcc.keyvalue import key_of

Row = tuple[int, bytes]
"""A revision as one number, and the stored key-value."""


class Record:
    """One request of a client, and its outcome."""

    __slots__ = (
        "client",
        "expected",
        "finished",
        "invoked",
        "kind",
        "linearizable",
        "member",
        "request",
        "response",
        "returned",
        "started",
        "wrote",
    )

    def __init__(
        self, client: int, kind: str, member: int, request: Any, invoked: int, started: float
    ) -> None:
        self.client = client
        self.kind = kind
        self.member = member
        self.request = request
        self.invoked = invoked
        self.started = started
        self.linearizable = True
        # The values that a transaction finds if all of its compares hold.
        self.expected: Pairs = ()
        # None: whether the request took effect is unknown. A Status: it did not take effect.
        self.response: Any = None
        self.returned: int | None = None
        # Whether the request made the revision in its answer; known once the answer was checked.
        self.wrote = False
        # When the answer came, in virtual seconds.
        self.finished = 0.0

    @property
    def is_answered(self) -> bool:
        """Whether the client got an answer that is not a refusal."""
        return self.response is not None and not isinstance(self.response, Status)


class History:
    """The effects of every revision, and the records of every request."""

    __slots__ = (
        "_moment",
        "_versions",
        "compacted",
        "effects",
        "first_seen",
        "records",
        "revision",
        "seen_moments",
    )

    def __init__(self) -> None:
        self.effects: dict[int, tuple[Row, ...]] = {}
        # When each revision was first applied anywhere: in virtual seconds, and by the moments
        # of invocations and returns.
        self.first_seen: dict[int, float] = {}
        self.seen_moments: dict[int, int] = {}
        self.revision = 1
        # The highest revision at which any member was compacted.
        self.compacted = -1
        self.records: list[Record] = []
        self._moment = 0
        self._versions: dict[bytes, tuple[list[int], list[Row]]] = {}

    def moment(self) -> int:
        """Return the next moment in the one order of all invocations and returns."""
        self._moment += 1
        return self._moment

    def observe(
        self, now: float, who: str, first: int, last: int, compacted: int, rows: Sequence[Row]
    ) -> None:
        """Take a member's new rows, with main revisions from first to last, and compare them."""
        self.compacted = max(self.compacted, compacted)
        by_main: dict[int, list[Row]] = {}
        for row in rows:
            by_main.setdefault(row[0] >> 32, []).append(row)
        for main in range(first, last + 1):
            found = tuple(by_main.get(main, ()))
            known = self.effects.get(main)
            if known is None and main > compacted:
                if not found:
                    raise Violation("effects", f"{who} is at revision {last}, {main} has no rows")
                self.effects[main] = found
                self.first_seen[main] = now
                self.seen_moments[main] = self._moment
                if main > self.revision:
                    self.revision = main
            elif known is None or found == known:
                continue
            elif main > compacted or not set(found) <= set(known):
                raise Violation(
                    "one history",
                    f"{who} has revision {main} as {_shown(found)}, known is {_shown(known)}",
                )

    def needed(self, compacted: int) -> list[Row]:
        """Return the rows that a compaction must leave: the newest of every key up to it.

        A compaction also removes tombstones below its revision. Return nothing if the history
        lacks a revision.
        """
        newest: dict[bytes, Row] = {}
        for main in range(2, compacted + 1):
            if main not in self.effects:
                return []
            for row in self.effects[main]:
                newest[key_of(row[1])] = row
        return [row for row in newest.values() if not row[0] & 1 or row[0] >> 32 == compacted]

    def fork(self, revision: int) -> "History":
        """Continue from a revision, as if no later one had been; return the history so far.

        A new cluster that is forced from a member without later revisions needs this.
        """
        before = History()
        before.effects, before.revision = dict(self.effects), self.revision
        for main in [each for each in self.effects if each > revision]:
            for kept in (self.effects, self.first_seen, self.seen_moments):
                kept.pop(main, None)
        self.revision = revision
        self._versions = {}
        return before

    # Queries of keys and ranges, after `replay`.

    def replay(self) -> None:
        """Sort the effects by key; call it again after `observe` added more."""
        versions: dict[bytes, tuple[list[int], list[Row]]] = {}
        for main in sorted(self.effects):
            for revision, kv in self.effects[main]:
                mains, rows = versions.setdefault(key_of(kv), ([], []))
                if mains and mains[-1] == main:
                    rows[-1] = (revision, kv)
                else:
                    mains.append(main)
                    rows.append((revision, kv))
        self._versions = {key: versions[key] for key in sorted(versions)}

    def all_keys(self) -> Iterable[bytes]:
        """Return every key that ever was, in order."""
        return self._versions

    def at(self, key: bytes, main: int) -> bytes | None:
        """Return the encoded key-value of a key at a revision, None if it does not exist."""
        mains, rows = self._versions.get(key, ((), ()))
        place = bisect_right(mains, main) - 1
        if place < 0 or rows[place][0] & 1:
            return None
        return rows[place][1]

    def range_at(self, key: bytes, end: bytes, main: int) -> list[bytes]:
        """Return the encoded key-values of a range at a revision, in the order of keys."""
        found = []
        for each in self._versions:
            if is_in_range(each, key, end):
                kv = self.at(each, main)
                if kv is not None:
                    found.append(kv)
        return found

    def changes(self, first: int, last: int, key: bytes, end: bytes) -> list[Row]:
        """Return the rows of a range with main revisions from first to last, in order."""
        return [
            row
            for main in range(first, last + 1)
            for row in self.effects.get(main, ())
            if is_in_range(key_of(row[1]), key, end)
        ]


def is_in_range(key: bytes, first: bytes, end: bytes) -> bool:
    """Return whether a key is in a range as requests give it."""
    if not end:
        return key == first
    return key >= first and (end == b"\0" or key < end)


def _shown(rows: Sequence[Row]) -> str:
    return ", ".join(f"{row[0] >> 32}.{row[0] >> 1 & 0x7FFFFFFF} {row[1]!r}" for row in rows)
