"""Connections to other processes: URLs, the dialer, credentials, TLS settings."""
