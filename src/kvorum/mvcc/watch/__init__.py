"""Watching: the hub, its streams, and what they ask of the store.

| module | idea |
| --- | --- |
| `hub` | all streams of a member: publishing, catching up, progress |
| `stream`, `watcher` | one call's watchers; one watcher |
| `matching`, `intervals` | who wants to know of a key |
| `batch`, `publication`, `catchup` | changes on their way to watchers, live and from history |
| `history` | what is asked of the store |
"""

from kvorum.mvcc.watch.hub import WatchHub
from kvorum.mvcc.watch.stream import WatchStream

__all__ = ["WatchHub", "WatchStream"]
