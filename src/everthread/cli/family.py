"""Which sessions belong together, and what they are called: threads, subagents, titles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everthread.cli.output import excerpt
from everthread.core.redaction import redact
from everthread.core.transcript import user_text

if TYPE_CHECKING:
    from everthread.store.models import Session
    from everthread.store.store import Store

PAGE = 2_000
FIRST = 20
"""So many messages are looked through for the first words of the user."""


async def threads(store: Store, tenant: str | None) -> list[str]:
    """Every thread's id, that with the newest session first. By their start: use would move threads between pages."""
    found: dict[str, None] = {}
    read = 0
    while page := await store.list_sessions(tenant=tenant, limit=PAGE, offset=read):
        found |= dict.fromkeys(session.thread for session in page)
        read += len(page)
    return list(found)


async def title_of(store: Store, session: Session) -> str:
    """Its title, or the first words of the user."""
    if session.title:
        return excerpt(redact(session.title), 100)
    first = await store.history(session.id, limit=FIRST)
    # A secret is known by what stands around it: more is read than shown.
    return next((excerpt(redact(words[:4_000]), 100) for m in first if (words := user_text(m.body))), "")


def state_of(session: Session) -> str:
    return "live" if session.live else f"ended ({excerpt(session.end_reason or 'unknown', 20)})"
