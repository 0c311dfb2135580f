# Written by `make client` from kvorum/client/aio; change that.
"""The classes that users of the client call."""
