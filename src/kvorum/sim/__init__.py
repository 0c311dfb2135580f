"""Deterministic simulation of whole clusters: one thread, one seed, one history.

The production member runs here, unchanged, in a world of virtual time, a network that loses and
reorders, disks that lose power and clients that check every answer. `python -m kvorum.sim` runs
seeds; docs/simulation.md explains its output.
"""
