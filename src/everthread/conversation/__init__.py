"""The core of a conversation: prepare, send and record."""
