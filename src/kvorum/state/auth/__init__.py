"""Authentication: users, roles, permissions by range of keys, passwords and tokens.

`store` holds the replicated part: plain data that only entries change, alike on every member. Each
member has its own tokens. Nothing here depends on requests, calls or the log.
"""
