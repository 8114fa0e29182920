"""What an operator sees: metrics, log lines, health."""
