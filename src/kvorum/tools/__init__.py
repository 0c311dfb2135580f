"""The command lines, and the offline work on data directories, snapshots and backups."""
