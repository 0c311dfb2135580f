"""What entries and reads do: the replicated state, and everything that decides about it.

Code here receives a `State` and the `Caller` of a request. It cannot see Raft, the log, a clock or
the outbox, so every member that applies the same entries to the same state decides alike.
"""
