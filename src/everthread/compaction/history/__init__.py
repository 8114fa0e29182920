"""Read a history: its messages, tool calls and their outcomes, and what they say about the work."""
