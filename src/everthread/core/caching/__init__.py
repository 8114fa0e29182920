"""The prompt caches of providers: marks, lifetimes, and why one missed."""
