"""Index the stored texts, and search them."""
