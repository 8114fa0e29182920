-- What a compaction took out and was fetched again, each thing once.
CREATE TABLE regrets (
    session_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    what TEXT NOT NULL,
    thread_id TEXT NOT NULL,
    call_id TEXT NOT NULL,
    created {real} NOT NULL,
    PRIMARY KEY (session_id, kind, what)
){strict};
CREATE INDEX regrets_thread ON regrets (thread_id);
CREATE INDEX regrets_created ON regrets (created);
