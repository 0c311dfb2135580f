"""The multi-version store: index, store, compaction, hashes; and the watch hub beside them.

`restore_store` builds a `Store` from a backend. All calls run on the loop; long operations are
offered in slices, and work for another process is a job.
"""
