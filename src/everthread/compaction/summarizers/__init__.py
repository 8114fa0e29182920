"""Who writes a summary: a model, or, where there is none, the journal."""
