"""Backups: an archive of snapshots and of every change between them, written and read."""
