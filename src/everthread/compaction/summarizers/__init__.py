"""Summarisers: a model, or the journal if no model is available."""
