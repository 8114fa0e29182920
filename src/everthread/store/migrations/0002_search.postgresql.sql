-- A short list of what the index has yet to take in keeps searches fast while much is written.
CREATE TABLE search (
    piece_id BIGINT PRIMARY KEY,
    terms TSVECTOR NOT NULL,
    filters TSVECTOR NOT NULL
);
CREATE INDEX search_terms ON search USING gin (terms, filters) WITH (gin_pending_list_limit = 512);
