"""Conversations over HTTP: threads, turns, and the desk that answers messages in order."""
