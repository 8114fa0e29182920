-- When a thread was last used and how much was said in it, kept at its tip: a list of threads reads no messages.
ALTER TABLE sessions ADD COLUMN active {real} NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN said BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN said_tokens BIGINT NOT NULL DEFAULT 0;

UPDATE sessions SET
    active = COALESCE(
        (SELECT m.created FROM places p JOIN messages m ON m.id = p.message_id
         WHERE p.session_id = sessions.id AND m.kind = 'message' ORDER BY p.seq DESC LIMIT 1), started),
    said = (
        SELECT COUNT(*) FROM sessions s JOIN places p ON p.session_id = s.id JOIN messages m ON m.id = p.message_id
        WHERE s.thread_id = sessions.thread_id AND s.kind <> 'reverted' AND (p.seq < 0 OR p.seq >= s.carried)
        AND m.kind = 'message'),
    said_tokens = (
        SELECT COALESCE(SUM(m.tokens), 0)
        FROM sessions s JOIN places p ON p.session_id = s.id JOIN messages m ON m.id = p.message_id
        WHERE s.thread_id = sessions.thread_id AND s.kind <> 'reverted' AND (p.seq < 0 OR p.seq >= s.carried)
        AND m.kind = 'message');

CREATE INDEX sessions_active ON sessions (active, id)
    WHERE kind <> 'reverted' AND COALESCE(end_reason, '') <> 'compression';
CREATE INDEX sessions_active_of_tenant ON sessions (tenant, active, id)
    WHERE kind <> 'reverted' AND COALESCE(end_reason, '') <> 'compression';
CREATE INDEX sessions_started ON sessions (started);
