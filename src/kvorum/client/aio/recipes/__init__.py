"""Recipes from keys, leases and watches, compatible with Go's packages on the wire."""
