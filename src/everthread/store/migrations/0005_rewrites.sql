-- Which thread a client's messages belong to: one row for each point a request or an answer ended at.
CREATE TABLE links (
    tenant TEXT NOT NULL,
    scope TEXT NOT NULL,
    digest TEXT NOT NULL,
    previous TEXT NOT NULL,
    step TEXT NOT NULL,
    skeleton TEXT NOT NULL,
    thread_id TEXT NOT NULL,
    length BIGINT NOT NULL,
    message_id BIGINT,
    results TEXT NOT NULL,
    PRIMARY KEY (tenant, scope, digest)
){strict};
-- Of two requests that continue one point differently, one continues the thread; the other is a branch.
CREATE UNIQUE INDEX links_step ON links (thread_id, step);
CREATE INDEX links_skeleton ON links (tenant, scope, skeleton);

-- What stands for the beginning of a conversation. Never changed: the first to write it wins.
CREATE TABLE rewrites (
    tenant TEXT NOT NULL,
    engine TEXT NOT NULL,
    chain TEXT NOT NULL,
    strength BIGINT NOT NULL,
    length BIGINT NOT NULL,
    skeleton TEXT NOT NULL,
    results TEXT NOT NULL,
    thread_id TEXT NOT NULL,
    replacement {bytes} NOT NULL,
    ripe BIGINT NOT NULL,
    depth BIGINT NOT NULL,
    state TEXT NOT NULL,
    created {real} NOT NULL,
    PRIMARY KEY (tenant, engine, chain, strength)
){strict};
CREATE INDEX rewrites_skeleton ON rewrites (tenant, engine, skeleton);
CREATE INDEX rewrites_thread ON rewrites (thread_id);
