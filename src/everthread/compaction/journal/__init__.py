"""The journal: the summary that no model writes."""
