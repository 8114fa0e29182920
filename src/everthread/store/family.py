"""Which threads began in which: subagents and branches."""

from __future__ import annotations

from everthread.store.base import Session, Store


async def started_by(store: Store, thread: str) -> list[Session]:
    """The first sessions of the threads that began in this one: subagents and branches."""
    children = [child for session in await store.thread_sessions(thread) for child in await store.children(session.id)]
    return [child for child in children if child.thread != thread]


async def subagents(store: Store, thread: str) -> list[str]:
    """The threads of a thread's subagents, and of theirs."""
    found, waiting = [thread], [thread]
    while waiting:
        started = await started_by(store, waiting.pop())
        fresh = [child.id for child in started if child.kind == "subagent" and child.id not in found]
        found += fresh
        waiting += fresh
    return found[1:]
