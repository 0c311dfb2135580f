"""The client side of gRPC over HTTP/2, without sockets and clocks: bytes in, events out.

`http2` has the frames of one connection, `wire` the calls on it, and `link` puts both inside TLS
and pings a silent server. The client library, the calling side of the pure edge and discovery bring
the sockets and the time.
"""
