"""The server with the calls of macOS only, as far as a Linux machine can show it."""
