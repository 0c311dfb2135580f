"""A replicated key-value store over HTTP, in a few hundred lines; see README.md."""
