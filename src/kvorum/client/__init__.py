"""The Python client: one core without sockets, and two shells around it."""
