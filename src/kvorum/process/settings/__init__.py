"""The settings of the server: flags, the environment, and one checked `Config`."""
