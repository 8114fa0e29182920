"""The summary message: its sections, the quotes in it, and its place among the messages."""
