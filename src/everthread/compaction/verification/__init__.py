"""Check a model's summary against its sources."""
