"""Store tool outputs in full: compressed, each once, and verified before a thread cites them."""

from __future__ import annotations

import zlib

from everthread.core.tool_outputs import output_id
from everthread.errors import StoreDamagedError, UnknownIdError
from everthread.store.database import Tx
from everthread.store.records import DEFAULT_TENANT, StoredOutput
from everthread.store.sql.session_rows import find_thread, lock_thread
from everthread.store.value_codec import clean_text


def compress_output(text: str) -> bytes:
    return zlib.compress(text.encode("utf-8", "surrogatepass"), 6)


def put_output(
    tx: Tx,
    thread_id: str,
    text: str,
    content: bytes,
    *,
    call_id: str,
    tool: str,
    now: float,
) -> StoredOutput:
    thread_id = lock_thread(tx, thread_id)
    output_key = output_id(text)
    tenant = tx.value("SELECT tenant FROM sessions WHERE id = ?", (thread_id,))
    # Read with a lock, because another process may be deleting the output as uncited.
    while (
        stored_content := tx.value(
            f"{SELECT_OUTPUT_CONTENT} {tx.dialect.for_share}", (tenant, output_key)
        )
    ) is None:
        tx.run(
            "INSERT INTO outputs (tenant, id, size, content, created) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (tenant, id) DO NOTHING",
            (tenant, output_key, len(text), content, now),
        )
    if _decompress_output(output_key, stored_content) != text:
        raise StoreDamagedError(
            f"the stored output {output_key} is not what was given; it was not cited"
        )
    call_id = clean_text(call_id)
    tool = clean_text(tool)
    tx.run(
        "INSERT INTO citations (thread_id, tenant, output_id, call_id, tool, created) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (thread_id, output_id, call_id) DO NOTHING",
        (thread_id, tenant, output_key, call_id, tool, now),
    )
    queue_output(tx, thread_id, output_key)
    return StoredOutput(
        output_key, thread_id, call_id=call_id, tool=tool, size=len(text), created=now
    )


def queue_output(tx: Tx, thread_id: str, key: str) -> None:
    """Queue an output to be indexed for a thread that cites it, unless it is indexed or queued already."""
    select = "SELECT 1 FROM {} WHERE thread_id = ? AND output_id = ?"
    if not any(
        tx.one(select.format(table), (thread_id, key)) for table in ("unindexed", "chunk_details")
    ):
        tx.run("INSERT INTO unindexed (thread_id, output_id) VALUES (?, ?)", (thread_id, key))


def load_output(tx: Tx, key: str, *, tenant: str | None = DEFAULT_TENANT) -> str:
    """Return a stored output of a tenant; with None, of any tenant, because equal ids mean equal texts."""
    if tenant is None:
        content = tx.value("SELECT content FROM outputs WHERE id = ? LIMIT 1", (key,))
    else:
        content = tx.value(SELECT_OUTPUT_CONTENT, (tenant, key))
    if content is None:
        raise UnknownIdError(f"there is no stored output {key!r}")
    return _decompress_output(key, content)


SELECT_OUTPUT_CONTENT = "SELECT content FROM outputs WHERE tenant = ? AND id = ?"


def _decompress_output(key: str, content: bytes) -> str:
    """Return the stored text; raise an error if it is damaged."""
    try:
        text = zlib.decompress(content).decode("utf-8", "surrogatepass")
    except (zlib.error, UnicodeDecodeError) as error:
        raise StoreDamagedError(f"the stored output {key} cannot be read: {error}") from error
    if output_id(text) != key:
        raise StoreDamagedError(f"the stored output {key} is not what its id was made from")
    return text


def list_outputs(tx: Tx, thread_id: str) -> list[StoredOutput]:
    rows = tx.all(
        "SELECT c.output_id, c.thread_id, c.call_id, c.tool, o.size, c.created FROM citations c "
        "JOIN outputs o ON o.tenant = c.tenant AND o.id = c.output_id WHERE c.thread_id = ? "
        "ORDER BY c.created, c.output_id, c.call_id",
        (find_thread(tx, thread_id),),
    )
    return [StoredOutput(*row) for row in rows]
