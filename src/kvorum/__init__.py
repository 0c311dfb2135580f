"""Kvorum: a distributed, strongly consistent key-value store, compatible with etcd v3.7."""

from kvorum import compiled

__version__ = "0.1.0"

compiled.install()
