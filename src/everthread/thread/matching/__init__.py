"""Find the stored thread that a history belongs to, and append to it."""
