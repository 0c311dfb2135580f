"""Authentication: users, roles, permissions by range of keys, passwords and tokens.

What is replicated is in `store`: plain data, changed only by entries, alike on every member. Tokens
are each member's own. Nothing here knows of requests, calls or the log.
"""
