"""What users of the client call."""
