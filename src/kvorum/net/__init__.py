"""What a process needs to speak to others: URLs, connections, credentials, TLS settings."""
