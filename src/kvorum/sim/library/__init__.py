"""Clients of the library in a run: production's core, watches, leases and recipes on virtual time.

`connections` carries the core's calls to members, `shell` stands where a loop or threads stand in
production, `process` pauses it and cuts it off. What users do is in `clients`, `watchers` and
`holders`; `checks` judges what they took for theirs, and `fleet` is all of them.
"""
