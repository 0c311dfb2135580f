"""The classes that users of the client call."""
