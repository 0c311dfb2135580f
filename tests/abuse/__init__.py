"""Attacks in a small size; the server survives every one."""
