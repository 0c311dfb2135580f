"""Tests of the proxies: the gRPC proxy, the TCP gateway, and their command lines."""
