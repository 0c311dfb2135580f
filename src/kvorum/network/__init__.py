"""The network: the edge that clients and peers connect to, and the dialer to other members."""
