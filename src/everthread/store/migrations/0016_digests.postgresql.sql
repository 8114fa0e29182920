-- What tells rows apart comes first. Where two indexes began with the tenant, a server that has not counted the rows yet
-- took either of them, and read all rows of a tenant for one.
ALTER TABLE links DROP CONSTRAINT links_pkey;
ALTER TABLE links ADD PRIMARY KEY (digest, scope, tenant);
DROP INDEX links_skeleton;
CREATE INDEX links_skeleton ON links (skeleton, scope, tenant);
ALTER TABLE rewrites DROP CONSTRAINT rewrites_pkey;
ALTER TABLE rewrites ADD PRIMARY KEY (chain, engine, tenant, strength);
DROP INDEX rewrites_skeleton;
CREATE INDEX rewrites_skeleton ON rewrites (skeleton, engine, tenant);
