"""Raft messages and snapshots between the nodes of a group, over etcd's peer protocol.

The transport serves any program that runs raft (`kvorum.server.peer.interface.Host`); it knows
nothing about keys, members' names or the meaning of entries. Requests come in through an edge and
go out through a dialer.
"""

from kvorum.server.peer.transport.headers import Identity
from kvorum.server.peer.transport.settings import TransportSettings
from kvorum.server.peer.transport.transport import Transport

__all__ = ["Identity", "Transport", "TransportSettings"]
