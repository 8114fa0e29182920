-- The last batch each store has written: whoever loses the answer to a commit sees here how it ended.
CREATE TABLE writers (
    id TEXT PRIMARY KEY,
    batch BIGINT NOT NULL,
    seen TIMESTAMPTZ NOT NULL DEFAULT now()
);
