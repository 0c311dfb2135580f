"""Attacks on a server, and on a real etcd for comparison: their cost for it and other clients."""
