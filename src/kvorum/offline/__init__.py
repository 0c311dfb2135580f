"""Data directories and snapshots of members that do not run: read, checked, made."""
