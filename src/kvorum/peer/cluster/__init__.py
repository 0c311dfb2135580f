"""What members ask each other beside raft, and who connects the transport to a member."""
