"""`everthread sessions undo`: undo a thread's last compaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everthread.cli.formats import shorten_id
from everthread.cli.output import print_json, print_text
from everthread.cli.shared_options import AsJson, SessionId, StoreUrl, Tenant
from everthread.cli.store_access import with_store
from everthread.core.messages import count_noun

if TYPE_CHECKING:
    from everthread.store.records import Session
    from everthread.store.store import Store


def undo(
    session_id: SessionId,
    tenant: Tenant = None,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Undo a thread's last compaction: all its messages are back in the context."""

    async def undo_compaction(store: Store) -> Session:
        return await store.undo((await store.resolve(session_id, tenant=tenant)).id)

    session = with_store(store_url, undo_compaction)
    if as_json:
        print_json(
            {
                "thread": session.thread,
                "session": session.id,
                "messages": session.message_count,
            }
        )
    else:
        text = f"thread {shorten_id(session.thread)} goes on in session {shorten_id(session.id)}"
        print_text(f"undone: {text}, with {count_noun(session.message_count, 'message')}")
