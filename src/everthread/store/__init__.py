"""Storage of conversations in SQLite or PostgreSQL."""
