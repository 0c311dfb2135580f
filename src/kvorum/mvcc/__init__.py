"""Keys over revisions: index, store, compaction, hashes; and the watch hub beside them.

`restore_store` makes a `Store` from a backend. Everything is a plain call on the loop; what may be
long is offered in slices, and what needs another process is a job.
"""
