"""The edge in plain Python: where no extension is built, and inside the simulator.

No thread: the sockets are non-blocking members of one epoll object, whose own descriptor is
readable whenever one of them is. `poll` does what I/O is possible, then hands out what is
complete.
"""

from kvorum.edge.pure.edge import PureEdge

__all__ = ["PureEdge"]
