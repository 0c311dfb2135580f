"""Discovery: members that do not know each other find the initial members of their cluster."""
