-- Names in {braces}, TEXT and BIGINT are what differs between the two databases; see schema.py.

CREATE TABLE texts (
    hash TEXT PRIMARY KEY,
    body TEXT NOT NULL
){strict};

CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    thread_id TEXT NOT NULL,
    parent_id TEXT,
    kind TEXT NOT NULL,
    tenant TEXT NOT NULL,
    platform TEXT NOT NULL,
    user_name TEXT NOT NULL,
    title TEXT NOT NULL,
    model TEXT NOT NULL,
    system_hash TEXT,
    started {real} NOT NULL,
    ended {real},
    end_reason TEXT,
    next_seq BIGINT NOT NULL DEFAULT 0,
    carried BIGINT NOT NULL DEFAULT 0,
    branched_at BIGINT
){strict};
CREATE INDEX sessions_thread ON sessions (thread_id);
CREATE INDEX sessions_parent ON sessions (parent_id);
CREATE INDEX sessions_system ON sessions (system_hash);
CREATE INDEX sessions_recent ON sessions (tenant, started);
-- Of two processes that compact one session, one wins.
CREATE UNIQUE INDEX one_continuation ON sessions (parent_id) WHERE kind = 'continuation';

CREATE TABLE messages (
    id {id},
    thread_id TEXT NOT NULL,
    event TEXT NOT NULL,
    kind TEXT NOT NULL,
    role TEXT NOT NULL,
    tool TEXT NOT NULL,
    body TEXT NOT NULL,
    tokens BIGINT,
    canonical TEXT NOT NULL,
    byte_order TEXT NOT NULL,
    created {real} NOT NULL,
    origin BIGINT
){strict};
CREATE UNIQUE INDEX messages_event ON messages (thread_id, event);
CREATE INDEX messages_created ON messages (created);

-- What a session shows, from 0 on. Before 0 stands what a branch took over of its parent's history beside that.
CREATE TABLE places (
    session_id TEXT NOT NULL,
    seq BIGINT NOT NULL,
    message_id BIGINT NOT NULL,
    PRIMARY KEY (session_id, seq)
){compact};
CREATE INDEX places_message ON places (message_id);

CREATE TABLE compactions (
    id {id},
    thread_id TEXT NOT NULL,
    parent_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    created {real} NOT NULL,
    reverted {real},
    tokens_before BIGINT NOT NULL,
    tokens_after BIGINT NOT NULL,
    record TEXT NOT NULL
){strict};
CREATE INDEX compactions_thread ON compactions (thread_id);
CREATE INDEX compactions_created ON compactions (created);

CREATE TABLE leases (
    thread_id TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    fence BIGINT NOT NULL,
    expires {real} NOT NULL
){strict};

CREATE TABLE usage (
    id {id},
    thread_id TEXT NOT NULL,
    event TEXT NOT NULL,
    session_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    platform TEXT NOT NULL,
    model TEXT NOT NULL,
    task TEXT NOT NULL,
    input BIGINT NOT NULL,
    output BIGINT NOT NULL,
    cache_read BIGINT NOT NULL,
    cache_write BIGINT NOT NULL,
    reasoning BIGINT NOT NULL,
    pico_dollars BIGINT,
    estimated BIGINT NOT NULL,
    raw TEXT NOT NULL,
    created {real} NOT NULL
){strict};
CREATE UNIQUE INDEX usage_event ON usage (thread_id, event);
CREATE INDEX usage_created ON usage (created);

CREATE TABLE outputs (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    size BIGINT NOT NULL,
    content {bytes} NOT NULL,
    created {real} NOT NULL,
    PRIMARY KEY (tenant, id)
){strict};

CREATE TABLE citations (
    thread_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    output_id TEXT NOT NULL,
    call_id TEXT NOT NULL,
    tool TEXT NOT NULL,
    created {real} NOT NULL,
    PRIMARY KEY (thread_id, output_id, call_id)
){strict};
CREATE INDEX citations_output ON citations (tenant, output_id);

CREATE TABLE limits (
    base_url TEXT NOT NULL,
    model TEXT NOT NULL,
    headers TEXT NOT NULL,
    tokens BIGINT NOT NULL,
    source TEXT NOT NULL,
    learnt {real} NOT NULL,
    expires {real} NOT NULL,
    PRIMARY KEY (base_url, model, headers)
){strict};

CREATE TABLE state (
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    changed {real} NOT NULL,
    PRIMARY KEY (scope, name)
){strict};

CREATE TABLE nodes (
    thread_id TEXT NOT NULL,
    id TEXT NOT NULL,
    level BIGINT NOT NULL,
    first_message BIGINT NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (thread_id, id)
){strict};
CREATE INDEX nodes_thread ON nodes (thread_id, level, first_message);

-- What a search will find: a piece of a message or of a stored output. Its terms are in the index that follows.
CREATE TABLE pieces (
    id {id},
    message_id BIGINT,
    output_id TEXT,
    tenant TEXT NOT NULL,
    thread_id TEXT NOT NULL,
    role TEXT NOT NULL,
    tool TEXT NOT NULL,
    start BIGINT NOT NULL,
    length BIGINT NOT NULL,
    said TEXT,
    created {real} NOT NULL
){strict};
CREATE INDEX pieces_message ON pieces (message_id);
CREATE INDEX pieces_thread ON pieces (thread_id);
CREATE INDEX pieces_output ON pieces (output_id) WHERE output_id IS NOT NULL;

-- When the pieces of a run of ids are from: a search in a period looks at few ids.
CREATE TABLE eras (
    run BIGINT PRIMARY KEY,
    earliest {real} NOT NULL,
    latest {real} NOT NULL
){strict};

-- What is not yet indexed: a message, or an output as one thread cites it; and how many of its pieces are.
CREATE TABLE unindexed (
    id {id},
    message_id BIGINT,
    thread_id TEXT,
    output_id TEXT,
    done BIGINT NOT NULL DEFAULT 0
){strict};
CREATE INDEX unindexed_message ON unindexed (message_id);
