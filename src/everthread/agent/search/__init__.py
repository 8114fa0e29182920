"""Searching a folder, in a process of its own: a pattern that never comes to an end can be ended from outside."""
