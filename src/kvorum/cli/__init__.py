"""Command lines as users of etcd's tools know them: flags, help, errors, formats of output."""

API_VERSION = "3.7"
"""The version of the API that the tools speak."""
