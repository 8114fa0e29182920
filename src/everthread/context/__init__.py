"""When a context is compacted, and what is done after a refusal: shared by conversation and gateway."""
