"""What operating systems do differently: every call that only some of them have.

Each module decides once, when it is imported, by what the system has. On Linux its names are the
system's own functions and classes, so that they cost nothing more. `docs/platforms.md` says what is
weaker elsewhere.
"""
