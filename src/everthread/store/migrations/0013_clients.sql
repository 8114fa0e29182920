-- Which program a thread is of, and what that program calls its session: its side calls are grouped by it.
ALTER TABLE sessions ADD COLUMN client TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN client_session TEXT NOT NULL DEFAULT '';
CREATE INDEX sessions_client ON sessions (tenant, client_session, started) WHERE client_session <> '';
