"""The server as a plain object: one member with its services, peers and HTTP endpoints."""
