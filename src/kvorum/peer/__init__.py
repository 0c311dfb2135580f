"""Members talk to each other, over etcd's peer protocol.

`transport/` carries raft messages and snapshots; it knows neither keys nor members, and serves any
program that runs raft. `cluster/` is what members ask each other besides: who belongs to the
cluster, which version they run, to renew a lease.
"""
