"""What the TLS flags mean: which certificates are presented and which are trusted."""
