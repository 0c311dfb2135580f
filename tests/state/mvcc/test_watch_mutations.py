"""Mistakes planted one at a time: the walks must notice each of them."""

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from kvorum.state.mvcc.watch import batch, catchup, hub, matching, publication, stream
from tests.state.mvcc.watch_walk import walk

SEEDS = 800


class Mistake(NamedTuple):
    name: str
    where: Callable[..., Any]
    line: str
    instead: str


MISTAKES = [
    Mistake(
        "an event is lost between catching up and being synced",
        hub.WatchHub._catch_up_some,
        "if served == history.revision:",
        "if served + 1 >= history.revision:",
    ),
    Mistake(
        "a synced watcher receives again what history has sent it",
        hub.WatchHub._deliver,
        "if watcher.next_revision > main:",
        "if watcher.start_revision > main:",
    ),
    Mistake(
        "a future start is ignored",
        hub.WatchHub.admit,
        "watcher.next_revision = max(start, history.revision + 1)",
        "watcher.next_revision = history.revision + 1",
    ),
    Mistake(
        "a watcher that falls behind forgets the transaction it fell behind at",
        hub.WatchHub._deliver,
        "watcher.next_revision = main\n",
        "watcher.next_revision = main + 1\n",
    ),
    Mistake(
        "a watcher that falls behind goes on from where it started",
        hub.WatchHub._deliver,
        "watcher.next_revision = main\n",
        "watcher.next_revision = max(2, watcher.start_revision)\n",
    ),
    Mistake(
        "a watcher on a full stream stays synced",
        hub.WatchHub._deliver,
        "self._leave_synced(watcher)\n        watcher",
        "return\n        watcher",
    ),
    Mistake(
        "a paused stream gets events",
        hub.WatchHub._is_full,
        "stream.is_paused",
        "False",
    ),
    Mistake(
        "a paused stream gets events with others",
        hub.WatchHub._find_audience,
        "stream.is_paused\n",
        "False\n",
    ),
    Mistake(
        "a stream that is paused goes on getting events with others",
        hub.WatchHub.publish_change,
        "audience.pauses != self.pauses",
        "False",
    ),
    Mistake(
        "a new watcher gets nothing while others watch the same",
        matching.WatchedRanges.add,
        "entry.audience = None",
        "pass",
    ),
    Mistake(
        "progress overtakes events of watchers behind",
        stream.WatchStream.request_progress,
        "self.synced == len(self._watchers)",
        "not any(w.standing is WatcherState.COMPACTED for w in self._watchers.values())",
    ),
    Mistake(
        "periodic progress overtakes events of watchers behind",
        hub.WatchHub._send_progress,
        "watcher.standing is WatcherState.SYNCED",
        "watcher.standing is not WatcherState.COMPACTED",
    ),
    Mistake(
        "progress overtakes a transaction that is being published",
        stream.WatchStream.request_progress,
        "and not hub.is_publishing",
        "",
    ),
    Mistake(
        "progress is sent before a future start",
        stream.WatchStream._awaits_future,
        "if self._is_watched(future[0]):",
        "if False:",
    ),
    Mistake(
        "periodic progress is sent before a future start",
        hub.WatchHub._send_progress,
        "and watcher.start_revision <= revision",
        "",
    ),
    Mistake(
        "a watcher that is synced no more is counted as if it were",
        hub.WatchHub._leave_synced,
        "watcher.stream.synced -= 1",
        "pass",
    ),
    Mistake(
        "watchers of a store that was replaced are counted as synced",
        hub.WatchHub.resync,
        "watcher.stream.synced -= 1",
        "pass",
    ),
    Mistake(
        "a watcher ended by a compaction does not block progress",
        stream.WatchStream.request_progress,
        "self.synced == len(self._watchers)",
        "self.synced == sum(w.standing is not WatcherState.COMPACTED"
        " for w in self._watchers.values())",
    ),
    Mistake(
        "the next transaction overtakes one that is being published",
        hub.WatchHub.publish_change,
        "self._finish_publication()",
        "pass",
    ),
    Mistake(
        "a piece of history ends within a revision",
        catchup.CatchUp._read,
        "if rows[0][0] >> MAIN_SHIFT == incomplete:",
        "if False:",
    ),
    Mistake(
        "a piece of history keeps the beginning of the next revision",
        catchup.CatchUp._read,
        "while rows[-1][0] >> MAIN_SHIFT == incomplete:",
        "while False:",
    ),
    Mistake(
        "a cut revision is counted as read",
        catchup.CatchUp._read,
        "self.served_revision = incomplete - 1",
        "self.served_revision = incomplete",
    ),
    Mistake(
        "a piece is larger than a response may be",
        catchup.CatchUp._read,
        "limit = min(2 * limit, rows_max - (len(rows) - already))",
        "limit = 2 * limit",
    ),
    Mistake(
        "a piece that is half read goes on after a compaction",
        hub.WatchHub._catch_up_some,
        "elif history.compacted_revision > self._catch_up.first:",
        "elif False:",
    ),
    Mistake(
        "a piece that is half told is told again after a compaction",
        catchup.CatchUp.unserved,
        "if not self._is_ready:",
        "if True:",
    ),
    Mistake(
        "a piece that is half read goes on after a restore",
        hub.WatchHub.resync,
        "self._abandon_catch_up()",
        "self._catch_up = None",
    ),
    Mistake(
        "after a restore synced watchers go on with what comes",
        hub.WatchHub.resync,
        "for watcher in entry.watchers:",
        "for watcher in ():",
    ),
    Mistake(
        "after a restore watchers are told again",
        hub.WatchHub.resync,
        "max(watcher.next_revision, self._served_revision + 1)",
        "max(2, watcher.start_revision)",
    ),
    Mistake(
        "a restore forgets what was not published yet",
        hub.WatchHub.resync,
        "self._publication = None",
        "self._served_revision += self.is_publishing; self._publication = None",
    ),
    Mistake(
        "watchers ahead of a piece are told of it",
        batch.Match.responses,
        "if changes[indexes[0]][1] >> MAIN_SHIFT < watcher.next_revision:",
        "if False:",
    ),
    Mistake(
        "a compacted watcher goes on from what is left",
        hub.WatchHub._begin_catch_up,
        "elif watcher.next_revision < history.compacted_revision:",
        "elif False:",
    ),
    Mistake(
        "the compacted revision itself is refused",
        hub.WatchHub.admit,
        "elif start < history.compacted_revision:",
        "elif start <= history.compacted_revision:",
    ),
    Mistake(
        "the value before comes from within the transaction's past",
        batch._value_before,
        "history.get(key, main - 1)",
        "history.get(key, main)",
    ),
    Mistake(
        "filters are exchanged",
        batch.Match._body,
        "unwanted = (NO_PUT, NO_DELETE)",
        "unwanted = (NO_DELETE, NO_PUT)",
    ),
    Mistake(
        "an event is counted for the watcher that does not want it",
        batch.Match._body,
        "if selection & PREV_KV:",
        "if selection:",
    ),
    Mistake(
        "a watcher that is left out for want of memory forgets the transaction",
        hub.WatchHub._deliver,
        "self._enqueue(watcher, main)",
        "self._enqueue(watcher, main + 1)",
    ),
    Mistake(
        "watchers that need nothing of a piece of history are forgotten",
        hub.WatchHub._catch_up_some,
        "catch_up.ahead.append(watcher)",
        "pass",
    ),
    Mistake(
        "held watchers are forgotten when the stream goes on",
        hub.WatchHub.release,
        "self._enqueue(watcher, watcher.next_revision)",
        "pass",
    ),
    Mistake(
        "watchers wait for ever for a stream that was full by its own",
        hub.WatchHub._hold,
        "self._full[stream] = None",
        "pass",
    ),
    Mistake(
        "a cancelled watcher is told of what was matched before",
        hub.WatchHub._publish_some,
        "if watcher.standing is WatcherState.SYNCED:",
        "if True:",
    ),
    Mistake(
        "a cancelled watcher is told from history",
        hub.WatchHub._catch_up_some,
        "if watcher.standing is not WatcherState.BEHIND:",
        "if False:",
    ),
    Mistake(
        "an id is given twice",
        stream.WatchStream.create,
        "while self._next_id in self._watchers:",
        "while False:",
    ),
    Mistake(
        "a cancelled watcher stays in the tables",
        hub.WatchHub.remove,
        "self._leave_synced(watcher)",
        "pass",
    ),
    Mistake(
        "a response without the flag is fragmented",
        batch.Match.responses,
        "if watcher.is_fragmented:",
        "if True:",
    ),
    Mistake(
        "a transaction's later changes are not matched",
        publication.Publication.match_some,
        "self._position = end",
        "self._position = end = len(changes)",
    ),
]


def planted(mistake: Mistake) -> Any:
    """Return the function with one line replaced."""
    text = textwrap.dedent(inspect.getsource(mistake.where))
    assert text.count(mistake.line) == 1, f"{mistake.name} does not fit"
    changed = text.replace(mistake.line, mistake.instead)
    # Its globals stay the module's own, as if the line had been written there.
    namespace: dict[str, Any] = {}
    exec(compile(changed, mistake.name, "exec"), vars(inspect.getmodule(mistake.where)), namespace)
    return namespace[mistake.where.__name__]


def owner_of(function: Callable[..., Any]) -> Any:
    module = inspect.getmodule(function)
    *path, _ = function.__qualname__.split(".")
    return getattr(module, path[0]) if path else module


@pytest.mark.sources
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_walk_notices(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_of(mistake.where), mistake.where.__name__, planted(mistake))
    for seed in range(SEEDS):
        try:
            walk(seed)
        except Exception:
            return
    pytest.fail(f"{SEEDS} walks did not notice: {mistake.name}")


def test_without_a_mistake_there_is_nothing_to_notice() -> None:
    for seed in range(SEEDS // 8):
        walk(seed)
