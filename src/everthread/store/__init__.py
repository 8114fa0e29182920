"""Where conversations live: one protocol, SQLite and PostgreSQL behind it."""
