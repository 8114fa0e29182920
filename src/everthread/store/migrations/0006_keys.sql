-- Keys of the gateway. Of the key itself only a digest is kept.
CREATE TABLE api_keys (
    id TEXT PRIMARY KEY,
    digest TEXT NOT NULL,
    name TEXT NOT NULL,
    tenant TEXT NOT NULL,
    scopes TEXT NOT NULL,
    mode TEXT,
    requests_per_day BIGINT,
    tokens_per_day BIGINT,
    pico_dollars_per_day BIGINT,
    created {real} NOT NULL,
    revoked {real}
){strict};
CREATE UNIQUE INDEX api_keys_digest ON api_keys (digest);

-- What was done with a key on a UTC day.
CREATE TABLE key_days (
    key_id TEXT NOT NULL,
    day TEXT NOT NULL,
    requests BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    pico_dollars BIGINT NOT NULL,
    last_used {real} NOT NULL,
    PRIMARY KEY (key_id, day)
){strict};

-- Random numbers that all gateways on this store share; made once.
CREATE TABLE shared_secrets (
    name TEXT PRIMARY KEY,
    value {bytes} NOT NULL
){strict};
