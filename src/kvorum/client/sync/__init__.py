# Written by `make client` from kvorum/client/aio; change that.
"""What users of the client call."""
