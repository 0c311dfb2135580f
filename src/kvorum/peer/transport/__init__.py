"""Raft messages and snapshots between the nodes of a group, by streams, posts and probes."""
