-- Pieces as vectors, where recall is to use them. Only those of one model are compared.
CREATE TABLE vectors (
    piece_id BIGINT NOT NULL,
    model TEXT NOT NULL,
    tenant TEXT NOT NULL,
    thread_id TEXT NOT NULL,
    packed {bytes} NOT NULL,
    PRIMARY KEY (piece_id, model)
){strict};
CREATE INDEX vectors_thread ON vectors (thread_id, model, piece_id);
CREATE INDEX vectors_tenant ON vectors (tenant, model, piece_id);
