"""The edge in pure Python, for systems without the extension and for the simulator.

It has no thread: one poller watches its non-blocking sockets, and the poller's descriptor is
readable whenever one of them is ready. `poll` first does all I/O that is possible, then returns
complete requests and events.
"""

from kvorum.network.edge.pure.edge import PureEdge

__all__ = ["PureEdge"]
