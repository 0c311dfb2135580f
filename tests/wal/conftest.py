"""A data directory that a real etcd wrote, for those who read it or mutate it."""

from tests.wal.etcd import etcd_directory

__all__ = ["etcd_directory"]
