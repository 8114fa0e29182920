-- Windows and output caps that providers stated, by who met them: one row for each credential.
CREATE TABLE model_limits (
    tenant TEXT NOT NULL,
    base_url TEXT NOT NULL,
    model TEXT NOT NULL,
    headers TEXT NOT NULL,
    kind TEXT NOT NULL,
    credential TEXT NOT NULL,
    tokens BIGINT NOT NULL,
    source TEXT NOT NULL,
    learnt {real} NOT NULL,
    expires {real} NOT NULL,
    PRIMARY KEY (base_url, model, headers, kind, tenant, credential)
){strict};
INSERT INTO model_limits (tenant, base_url, model, headers, kind, credential, tokens, source, learnt, expires)
    SELECT 'default', base_url, model, headers, 'window', '', tokens, source, learnt, expires FROM limits;
DROP TABLE limits;

-- The largest prompt of each UTC day that a model took.
CREATE TABLE model_successes (
    tenant TEXT NOT NULL,
    base_url TEXT NOT NULL,
    model TEXT NOT NULL,
    headers TEXT NOT NULL,
    day BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    PRIMARY KEY (base_url, model, headers, tenant, day)
){strict};

-- Credentials of clients that an upstream accepted. Only a digest is kept.
CREATE TABLE accepted_credentials (
    base_url TEXT NOT NULL,
    digest TEXT NOT NULL,
    accepted {real} NOT NULL,
    PRIMARY KEY (base_url, digest)
){strict};
