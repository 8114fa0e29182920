"""The heart: prepare, send, record; what happens between a message and its answer."""
