"""Requests of conversations: decide what goes upstream, render it, record the answer."""
