-- What somebody pinned to a thread. Those that were stored as tool outputs are moved here by `move_pins`.
CREATE TABLE pins (
    thread_id TEXT NOT NULL,
    id TEXT NOT NULL,
    body TEXT NOT NULL,
    created {real} NOT NULL,
    PRIMARY KEY (thread_id, id)
){strict};
