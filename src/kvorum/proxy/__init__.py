"""What stands between clients and members: the gRPC proxy, and the choice of a gateway."""
