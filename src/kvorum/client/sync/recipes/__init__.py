# Written by `make client` from kvorum/client/aio; change that.
"""Recipes: what programs build from keys, leases and watches, on the wire as Go's packages do."""
