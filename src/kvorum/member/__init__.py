"""The member: one deterministic state machine of raft, log, apply, reads and leases.

`open_member` returns a `Member`; `docs/member.md` is the manual. Code here reads clocks, files
and random numbers only through the seams it is given.
"""
