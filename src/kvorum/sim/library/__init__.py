"""Library clients in a run: production's core, watches, leases and recipes on virtual time.

`connections` carries the core's calls to members, `shell` replaces production's loop or threads,
and `process` pauses and partitions a client. `clients`, `watchers` and `holders` play the users;
`checks` judges the leases and locks they claimed, and `fleet` holds all of them.
"""
