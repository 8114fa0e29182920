"""Open a session of a conversation: create it, or find and load it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from everthread.compaction.engine import StartReason
from everthread.conversation.conversation_state import ConversationState
from everthread.store.records import NewSession, Session
from everthread.thread.options import Setup


async def create_session(setup: Setup, new_session: NewSession) -> Session:
    """Create a session, with a system prompt written for it."""
    model = new_session.model or setup.route.name
    system = setup.build_system() if new_session.system is None else new_session.system
    return await setup.store.create_session(replace(new_session, model=model, system=system))


async def find_tip(setup: Setup, prefix: str, *, tenant: str | None) -> Session:
    """Return the tip of the thread with this id or id prefix."""
    session = await setup.store.resolve(prefix, tenant=tenant)
    return await setup.store.session(await setup.store.get_compression_tip(session.id))


async def load_state(
    setup: Setup,
    session: Session,
    tools: Sequence[dict[str, Any]],
    *,
    reason: StartReason,
) -> ConversationState:
    """Load a session: its messages, the state of its engine, and the learnt limits of its model."""
    state = ConversationState(setup, session, tools)
    store = setup.store
    messages, records = await asyncio.gather(
        store.messages(session.id), store.compactions(session.thread)
    )
    state.show_session(session, messages)
    state.compaction_count = sum(record.reverted_at is None for record in records)
    await state.restore()
    await state.load_limits()
    state.engine.on_session_start(session.id, reason=reason, previous=session.parent)
    return state
