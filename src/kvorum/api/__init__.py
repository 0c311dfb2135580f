"""The contract with clients: messages, fast codecs and the one table of errors."""
