"""The communication between members, over etcd's peer protocol.

`transport/` carries raft messages and snapshots; it knows neither keys nor members, and serves any
program that runs raft. `cluster/` serves and sends all other requests between members: for the
member list, for versions, for lease renewals.
"""
