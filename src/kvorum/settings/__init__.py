"""What the server is told: flags, the environment, and one checked `Config`."""
