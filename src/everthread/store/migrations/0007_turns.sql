-- Messages that wait for their turn, and how turns ended.
CREATE TABLE turns (
    id TEXT PRIMARY KEY,
    thread_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    place BIGINT NOT NULL,
    request TEXT NOT NULL,
    state TEXT NOT NULL,
    fence BIGINT,
    message TEXT NOT NULL,
    options TEXT NOT NULL,
    result TEXT,
    cancel BIGINT NOT NULL DEFAULT 0,
    created {real} NOT NULL,
    started {real},
    ended {real}
){strict};
CREATE UNIQUE INDEX turns_place ON turns (thread_id, place);
-- A request that is sent again finds its turn.
CREATE UNIQUE INDEX turns_request ON turns (thread_id, request);
CREATE INDEX turns_open ON turns (thread_id, place) WHERE ended IS NULL;
