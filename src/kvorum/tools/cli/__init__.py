"""Command lines that behave like those of etcd's tools: flags, help, errors, output formats."""

API_VERSION = "3.7"
"""The version of the API that the tools speak."""
