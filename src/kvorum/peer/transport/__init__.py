"""Raft messages and snapshots between the nodes of a group, over etcd's peer protocol.

The transport serves any program that runs raft (`kvorum.peer.interface.Host`); it knows nothing
about keys, members' names or the meaning of entries. Requests come in through an edge and go out
through a dialer.
"""

from kvorum.peer.transport.headers import Identity
from kvorum.peer.transport.settings import Settings
from kvorum.peer.transport.transport import Transport

__all__ = ["Identity", "Settings", "Transport"]
