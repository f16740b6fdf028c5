"""What an operator sees: metrics, logs and traces."""
