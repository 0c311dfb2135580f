"""What members ask each other that is no raft message, and who connects the transport to a member."""
