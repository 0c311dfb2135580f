"""A data directory that a real etcd wrote, for tests that read or change it."""

from tests.storage.wal.etcd import etcd_directory

__all__ = ["etcd_directory"]
