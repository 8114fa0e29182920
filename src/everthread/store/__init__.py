"""Storage of conversations: one protocol, implemented for SQLite and PostgreSQL."""
