"""Threads whose callers send their whole history: clients of the gateway, and agents of a framework.

`CallerThreads` finds the thread of a call (`matching/`), lets `ManagedThread` decide about its prompt, and stores it
with its `CallRecorder`. A compaction makes a rewrite, which replaces the beginning of the history from then on.
"""
