"""Watches: the hub, its streams, and the store's interface for both."""

from kvorum.mvcc.watch.hub import WatchHub
from kvorum.mvcc.watch.stream import WatchStream

__all__ = ["WatchHub", "WatchStream"]
