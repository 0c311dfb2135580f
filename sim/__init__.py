"""Deterministic simulation of whole clusters: one thread, one seed, one history."""
