"""Watches: the hub, its streams, and the store's interface for both."""

from kvorum.state.mvcc.watch.hub import WatchHub
from kvorum.state.mvcc.watch.stream import WatchStream

__all__ = ["WatchHub", "WatchStream"]
