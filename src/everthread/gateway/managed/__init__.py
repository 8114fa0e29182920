"""Handle requests of conversations: decide what to send, render it, and record the answer."""
