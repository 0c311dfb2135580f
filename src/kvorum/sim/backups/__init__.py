"""Simulated backup programs: the real code of backups on virtual time, and its checks."""
