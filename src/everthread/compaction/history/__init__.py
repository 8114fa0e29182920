"""Read a history: its messages, tool calls and outcomes, and the state of the work."""
