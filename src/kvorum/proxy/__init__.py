"""The gRPC proxy between clients and members, and the gateway's choice of a member."""
