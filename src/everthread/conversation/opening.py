"""Where a conversation begins, or goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from everthread.compaction.engine import StartReason
from everthread.conversation.live import Live
from everthread.conversation.saving import restore
from everthread.conversation.setup import Setup
from everthread.store.base import NewSession, Session


async def begun(setup: Setup, given: NewSession) -> Session:
    """A new session, with the system prompt written for it."""
    model = given.model or setup.route.name
    system = setup.written_system() if given.system is None else given.system
    return await setup.store.create_session(replace(given, model=model, system=system))


async def found(setup: Setup, prefix: str, *, tenant: str | None) -> Session:
    """Where the thread of any id, or of how one begins, goes on."""
    session = await setup.store.resolve(prefix, tenant=tenant)
    return await setup.store.session(await setup.store.get_compression_tip(session.id))


async def live_on(setup: Setup, session: Session, tools: Sequence[dict[str, Any]], *, reason: StartReason) -> Live:
    """The session in memory: its messages, what the engine knew, what was learnt of the model's window."""
    live = Live(setup, session, tools)
    store, route = setup.store, setup.route
    messages, records, learnt = await asyncio.gather(
        store.messages(session.id),
        store.compactions(session.thread),
        store.limit_for(route.base_url, route.name, headers=route.headers),
    )
    live.show(session, messages)
    live.compactions = sum(record.reverted is None for record in records)
    await restore(live)
    if learnt is not None and learnt.limit < live.window:
        live.learnt = learnt.limit
        live.fit(learnt.limit)
    live.engine.on_session_start(session.id, reason=reason, previous=session.parent)
    return live
