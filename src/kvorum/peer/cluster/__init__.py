"""What members ask each other beside raft, and what connects a member to the transport."""
