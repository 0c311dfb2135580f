"""A watcher: the changes that one client wants, and the next revision to send.

Rules: a watcher has exactly one standing. The hub has sent its events below `next_revision` and
keeps nothing else for it, however long its client does not read.
"""

from enum import Enum
from typing import TYPE_CHECKING, Final

from kvorum.api.responses import watch_id_field
from kvorum.state.mvcc.watch.matching import NormalRange

if TYPE_CHECKING:
    from kvorum.state.mvcc.watch.stream import WatchStream

# A watcher's event options, as bits.
PREV_KV: Final = 1
NO_PUT: Final = 2
NO_DELETE: Final = 4


class WatcherState(Enum):
    """The state of a watcher."""

    SYNCED = "synced"
    """In the hub's tables: it receives each transaction at its commit. It has received everything
    up to the hub's served revision, even if its `next_revision` is lower."""
    BEHIND = "behind"
    """In the hub's queue, or part of the catch-up in progress."""
    HELD = "held"
    """Behind, and excluded from catching up until its stream has room again."""
    COMPACTED = "compacted"
    """Ended by a compaction; keeps its id until the client cancels it."""
    CLOSED = "closed"
    """Cancelled. The hub's queue may still contain it; the hub then skips it."""


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
        where: NormalRange,
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
        """Watchers of one range with equal variants receive the same bytes, unless fragmented."""
        self.had_events = False
        """Whether it received events since its stream's last periodic progress."""
        self.standing = WatcherState.CLOSED
