-- The schema of a SQLite store. STRICT tables refuse a value of another type, as PostgreSQL does.

CREATE TABLE texts (
    hash TEXT PRIMARY KEY,
    body TEXT NOT NULL
) STRICT;

CREATE TABLE sessions (
    -- Stands for the id in tables with many rows.
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    thread_id TEXT NOT NULL,
    parent_id TEXT,
    kind TEXT NOT NULL,
    tenant TEXT NOT NULL,
    platform TEXT NOT NULL,
    user_name TEXT NOT NULL,
    title TEXT NOT NULL,
    model TEXT NOT NULL,
    system_hash TEXT,
    started REAL NOT NULL,
    ended REAL,
    end_reason TEXT,
    next_seq INTEGER NOT NULL DEFAULT 0,
    inherited_count INTEGER NOT NULL DEFAULT 0,
    branched_at INTEGER,
    -- When the thread was last used, and the messages and tokens of its history: kept at its tip for the list of threads.
    last_active REAL NOT NULL DEFAULT 0,
    message_count INTEGER NOT NULL DEFAULT 0,
    token_count INTEGER NOT NULL DEFAULT 0,
    -- The program the thread is of, and that program's name for its session: its side calls are grouped by it.
    client TEXT NOT NULL DEFAULT '',
    client_session TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX sessions_thread ON sessions (thread_id);
CREATE INDEX sessions_parent ON sessions (parent_id);
CREATE INDEX sessions_system ON sessions (system_hash);
CREATE INDEX sessions_recent ON sessions (tenant, started);
CREATE INDEX sessions_started ON sessions (started);
CREATE INDEX sessions_active ON sessions (last_active, id)
    WHERE kind <> 'reverted' AND COALESCE(end_reason, '') <> 'compression';
CREATE INDEX sessions_active_of_tenant ON sessions (tenant, last_active, id)
    WHERE kind <> 'reverted' AND COALESCE(end_reason, '') <> 'compression';
CREATE INDEX sessions_client ON sessions (tenant, client_session, started) WHERE client_session <> '';
-- Of two processes that compact one session, one wins.
CREATE UNIQUE INDEX one_continuation ON sessions (parent_id) WHERE kind = 'continuation';

CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    thread_id TEXT NOT NULL,
    event TEXT NOT NULL,
    kind TEXT NOT NULL,
    role TEXT NOT NULL,
    tool TEXT NOT NULL,
    tokens INTEGER,
    created REAL NOT NULL,
    origin INTEGER,
    -- 1 for what the user said: it begins a turn.
    opens_turn INTEGER NOT NULL,
    -- JSON, compressed unless it is short; the characters of the JSON, and a checksum of the stored bytes.
    chars INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX messages_event ON messages (thread_id, event);
CREATE INDEX messages_created ON messages (created);
CREATE INDEX messages_turns ON messages (thread_id, id) WHERE opens_turn = 1;

-- What a session shows, from 0 on. Numbers below 0 are the rest of the history that a branch inherited from its parent.
CREATE TABLE places (
    session_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    message_id INTEGER NOT NULL,
    PRIMARY KEY (session_id, seq)
) WITHOUT ROWID, STRICT;
CREATE INDEX places_message ON places (message_id);

CREATE TABLE compactions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    thread_id TEXT NOT NULL,
    parent_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    created REAL NOT NULL,
    reverted_at REAL,
    tokens_before INTEGER NOT NULL,
    tokens_after INTEGER NOT NULL,
    record TEXT NOT NULL
) STRICT;
CREATE INDEX compactions_thread ON compactions (thread_id);
CREATE INDEX compactions_created ON compactions (created);

CREATE TABLE leases (
    thread_id TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    fence INTEGER NOT NULL,
    expires_at REAL NOT NULL
) STRICT;

CREATE TABLE usage (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    thread_id TEXT NOT NULL,
    event TEXT NOT NULL,
    session_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    platform TEXT NOT NULL,
    model TEXT NOT NULL,
    task TEXT NOT NULL,
    input INTEGER NOT NULL,
    output INTEGER NOT NULL,
    cache_read INTEGER NOT NULL,
    cache_write INTEGER NOT NULL,
    reasoning INTEGER NOT NULL,
    pico_dollars INTEGER,
    estimated INTEGER NOT NULL,
    raw TEXT NOT NULL,
    created REAL NOT NULL
) STRICT;
CREATE UNIQUE INDEX usage_event ON usage (thread_id, event);
CREATE INDEX usage_created ON usage (created);

CREATE TABLE outputs (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    size INTEGER NOT NULL,
    content BLOB NOT NULL,
    created REAL NOT NULL,
    PRIMARY KEY (tenant, id)
) STRICT;

CREATE TABLE citations (
    thread_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    output_id TEXT NOT NULL,
    call_id TEXT NOT NULL,
    tool TEXT NOT NULL,
    created REAL NOT NULL,
    PRIMARY KEY (thread_id, output_id, call_id)
) STRICT;
CREATE INDEX citations_output ON citations (tenant, output_id);

CREATE TABLE state (
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    changed REAL NOT NULL,
    PRIMARY KEY (scope, name)
) STRICT;

CREATE TABLE nodes (
    thread_id TEXT NOT NULL,
    id TEXT NOT NULL,
    level INTEGER NOT NULL,
    first_message INTEGER NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (thread_id, id)
) STRICT;
CREATE INDEX nodes_thread ON nodes (thread_id, level, first_message);

-- A chunk of a message or of a stored output that a search can find. Its terms are in `search`.
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    -- The number of the thread's first session.
    thread INTEGER NOT NULL,
    message_id INTEGER,
    start INTEGER NOT NULL,
    length INTEGER NOT NULL,
    -- The text of the chunk, if secrets were removed from it.
    redacted_text TEXT,
    -- For an output: its id, and the tool and the time of its first citation in the thread.
    output_id TEXT,
    tool TEXT,
    created REAL
) STRICT;
CREATE INDEX chunks_message ON chunks (message_id);
CREATE INDEX chunks_thread ON chunks (thread);
CREATE INDEX chunks_output ON chunks (output_id) WHERE output_id IS NOT NULL;

-- A chunk with its thread, role, tool and time.
CREATE VIEW chunk_details AS
SELECT c.id, c.message_id, c.output_id, s.tenant, s.id AS thread_id, COALESCE(m.role, 'tool') AS role,
    COALESCE(m.tool, c.tool, '') AS tool, c.start, c.length, c.redacted_text, COALESCE(m.created, c.created, 0) AS created
FROM chunks c JOIN sessions s ON s.number = c.thread LEFT JOIN messages m ON m.id = c.message_id;

-- The period that the chunks of a run of ids are from: a search in a period reads few ids.
CREATE TABLE eras (
    number INTEGER PRIMARY KEY,
    earliest REAL NOT NULL,
    latest REAL NOT NULL
) STRICT;

-- Messages, and outputs as one thread cites them, that wait to be indexed; `indexed_chunks` counts the chunks that are.
CREATE TABLE unindexed (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id INTEGER,
    thread_id TEXT,
    output_id TEXT,
    indexed_chunks INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE VIRTUAL TABLE search USING fts5 (
    terms, filters,
    content = '', contentless_delete = 1,
    tokenize = "unicode61 remove_diacritics 0 tokenchars '_'"
);

-- Which thread a client's messages belong to: one row for each point at which a request or an answer ended.
CREATE TABLE links (
    tenant TEXT NOT NULL,
    scope TEXT NOT NULL,
    digest TEXT NOT NULL,
    previous TEXT NOT NULL,
    -- The digest of the thread's last point when this one was appended; empty for the first.
    follows TEXT NOT NULL,
    loose_digest TEXT NOT NULL,
    thread_id TEXT NOT NULL,
    message_count INTEGER NOT NULL,
    last_message_id INTEGER,
    results TEXT NOT NULL,
    PRIMARY KEY (digest, scope, tenant)
) STRICT;
-- Of two writers that follow the same point one appends; the other reads the thread again.
CREATE UNIQUE INDEX links_follows ON links (thread_id, follows);
CREATE INDEX links_loose_digest ON links (loose_digest, scope, tenant);

-- Replacements for the beginnings of conversations. Never changed: the first writer wins. An undo deletes them.
CREATE TABLE rewrites (
    tenant TEXT NOT NULL,
    engine TEXT NOT NULL,
    digest TEXT NOT NULL,
    strength INTEGER NOT NULL,
    replaced_count INTEGER NOT NULL,
    loose_digest TEXT NOT NULL,
    results TEXT NOT NULL,
    thread_id TEXT NOT NULL,
    replacement BLOB NOT NULL,
    session_id TEXT NOT NULL,
    depth INTEGER NOT NULL,
    state TEXT NOT NULL,
    created REAL NOT NULL,
    PRIMARY KEY (digest, engine, tenant, strength)
) STRICT;
CREATE INDEX rewrites_loose_digest ON rewrites (loose_digest, engine, tenant);
CREATE INDEX rewrites_thread ON rewrites (thread_id);
CREATE INDEX rewrites_session ON rewrites (session_id);

-- Keys of the gateway. Only a digest of the key itself is stored.
CREATE TABLE api_keys (
    id TEXT PRIMARY KEY,
    digest TEXT NOT NULL,
    name TEXT NOT NULL,
    tenant TEXT NOT NULL,
    scopes TEXT NOT NULL,
    mode TEXT,
    requests_per_day INTEGER,
    tokens_per_day INTEGER,
    pico_dollars_per_day INTEGER,
    created REAL NOT NULL,
    revoked_at REAL
) STRICT;
CREATE UNIQUE INDEX api_keys_digest ON api_keys (digest);

-- The use of a key on a UTC day.
CREATE TABLE key_days (
    key_id TEXT NOT NULL,
    day TEXT NOT NULL,
    requests INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    pico_dollars INTEGER NOT NULL,
    last_used_at REAL NOT NULL,
    PRIMARY KEY (key_id, day)
) STRICT;

-- Random numbers that all gateways on this store share.
CREATE TABLE shared_secrets (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT;

-- Messages that wait for their turn, and the turns' results.
CREATE TABLE turns (
    id TEXT PRIMARY KEY,
    thread_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    position INTEGER NOT NULL,
    key TEXT NOT NULL,
    state TEXT NOT NULL,
    fence INTEGER,
    message TEXT NOT NULL,
    options TEXT NOT NULL,
    result TEXT,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    created REAL NOT NULL,
    started_at REAL,
    ended_at REAL
) STRICT;
CREATE UNIQUE INDEX turns_position ON turns (thread_id, position);
-- A request that is sent again finds its turn.
CREATE UNIQUE INDEX turns_key ON turns (thread_id, key);
CREATE INDEX turns_open ON turns (thread_id, position) WHERE ended_at IS NULL;

-- Windows and output caps that providers stated: one row for each credential that met them.
CREATE TABLE model_limits (
    tenant TEXT NOT NULL,
    base_url TEXT NOT NULL,
    model TEXT NOT NULL,
    headers TEXT NOT NULL,
    kind TEXT NOT NULL,
    credential TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    source TEXT NOT NULL,
    learnt REAL NOT NULL,
    expires REAL NOT NULL,
    PRIMARY KEY (base_url, model, headers, kind, tenant, credential)
) STRICT;

-- The largest prompt of each UTC day that a model accepted.
CREATE TABLE model_successes (
    tenant TEXT NOT NULL,
    base_url TEXT NOT NULL,
    model TEXT NOT NULL,
    headers TEXT NOT NULL,
    day INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    PRIMARY KEY (base_url, model, headers, tenant, day)
) STRICT;

-- Texts that are pinned to a thread.
CREATE TABLE pins (
    thread_id TEXT NOT NULL,
    id TEXT NOT NULL,
    body TEXT NOT NULL,
    created REAL NOT NULL,
    PRIMARY KEY (thread_id, id)
) STRICT;
