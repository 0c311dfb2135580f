# Written by `make client` from kvorum/client/aio; change that.
"""Recipes from keys, leases and watches, compatible with Go's packages on the wire."""
