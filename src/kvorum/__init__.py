"""Kvorum: a distributed, strongly consistent key-value store, compatible with etcd v3.7."""

__version__ = "0.1.0"
