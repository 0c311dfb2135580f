"""A watcher: which changes one client wants, and up to where it was sent them.

Rules: a watcher is in exactly one place. Its events below `next_revision` have been sent, and
nothing else is kept for it, however long its client does not read.
"""

from enum import Enum
from typing import TYPE_CHECKING, Final

from kvorum.api.responses import watch_id_field
from kvorum.mvcc.watch.matching import KeyRange

if TYPE_CHECKING:
    from kvorum.mvcc.watch.stream import WatchStream

# What a watcher selects of its range's events, as bits.
PREV_KV: Final = 1
NO_PUT: Final = 2
NO_DELETE: Final = 4


class Standing(Enum):
    """Where a watcher is."""

    SYNCED = "synced"
    """In the hub's tables: sent each transaction as it commits. It was sent everything up to the
    revision the hub has served, even if `next_revision` is lower."""
    BEHIND = "behind"
    """In the hub's queue, or part of the catch-up in progress."""
    HELD = "held"
    """Behind, and left alone until its stream's client reads."""
    COMPACTED = "compacted"
    """Ended by a compaction; keeps its id until the client cancels it."""
    CLOSED = "closed"
    """Cancelled. The queue may still hold it, and skips it."""


class Watcher:
    """One watcher of one stream."""

    __slots__ = (
        "had_events",
        "id_field",
        "is_fragmented",
        "next_revision",
        "selection",
        "standing",
        "start_revision",
        "stream",
        "variant",
        "watch_id",
        "where",
    )

    def __init__(
        self,
        stream: "WatchStream",
        watch_id: int,
        where: KeyRange,
        start_revision: int,
        selection: int,
        is_fragmented: bool,
    ) -> None:
        self.stream = stream
        self.watch_id = watch_id
        self.id_field = watch_id_field(watch_id)
        self.where = where
        self.start_revision = start_revision
        self.next_revision = start_revision
        self.selection = selection
        self.is_fragmented = is_fragmented
        self.variant = bytes((selection, is_fragmented)) + self.id_field
        """Watchers of a range with the same are sent the same bytes, unless in fragments."""
        self.had_events = False
        """Whether it got events since its stream's last periodic progress."""
        self.standing = Standing.CLOSED
