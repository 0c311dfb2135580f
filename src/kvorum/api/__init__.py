"""The contract: messages, fast codecs and the one table of errors."""
