"""Requests of conversations: decide on the request to send, render it, and record the answer."""
