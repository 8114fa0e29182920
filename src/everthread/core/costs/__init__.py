"""What calls cost: their usage, the prices of models, and whether a compaction pays."""
