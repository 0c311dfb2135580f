"""Attacks in a small size, of which every one is survived."""
