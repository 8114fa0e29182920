"""When to compact a context."""
