"""Find the stored thread that a history belongs to.

Each message gets a digest, chained over the history. `ThreadIndex` looks for the longest chain that is stored, and
`history_relations.py` decides whether the history continues that thread, repeats it or branches from it.
"""
