-- What was done with a key since its day was last summed up: rows are only added, so that no gateway waits for another.
CREATE TABLE key_uses (
    id {id},
    key_id TEXT NOT NULL,
    day TEXT NOT NULL,
    requests BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    pico_dollars BIGINT NOT NULL,
    used {real} NOT NULL
){strict};
CREATE INDEX key_uses_day ON key_uses (key_id, day);
