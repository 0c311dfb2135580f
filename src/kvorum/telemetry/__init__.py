"""What an operator sees: logs, metrics, and what they count."""
