"""`everthread sessions undo`: undo a thread's last compaction."""

from __future__ import annotations

from everthread.cli.formats import shorten_id
from everthread.cli.output import print_json, print_text
from everthread.cli.shared_options import JsonOption, SessionArgument, StoreOption, TenantOption
from everthread.cli.store_access import with_session
from everthread.core.text import count_noun


def undo(
    session_id: SessionArgument,
    tenant: TenantOption = None,
    store_url: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Undo a thread's last compaction: all its messages are back in the context."""
    session = with_session(
        store_url, session_id, lambda store, found: store.undo(found.id), tenant=tenant
    )
    if as_json:
        print_json(
            {
                "thread": session.thread,
                "session": session.id,
                "messages": session.message_count,
            }
        )
    else:
        text = f"thread {shorten_id(session.thread)} continues in session {shorten_id(session.id)}"
        print_text(f"undone: {text}, with {count_noun(session.message_count, 'message')}")
