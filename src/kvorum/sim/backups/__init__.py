"""Simulated backup programs: the real `kvorum.backup` code on virtual time, and its checks."""
