"""Raft consensus, sans-IO: no sockets, files, clocks or threads, and usable by itself.

Start with `RawNode`, or with `Node` for queues around it; `docs/raft.md` is the manual.
"""
