"""The process: flags, start-up, the loop that runs a node."""
