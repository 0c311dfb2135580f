"""The requests between members besides raft, and the link between a member and its transport."""
