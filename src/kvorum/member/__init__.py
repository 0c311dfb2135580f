"""The member: one deterministic state machine of raft, log, apply, reads and leases.

`open_member` gives a `Member`; `docs/member.md` is the manual. Nothing here reads a clock, a
file or a source of chance but through the seams it is given.
"""
