"""Watching: the hub, its streams, and what they ask of the store."""

from kvorum.mvcc.watch.hub import WatchHub
from kvorum.mvcc.watch.stream import WatchStream

__all__ = ["WatchHub", "WatchStream"]
