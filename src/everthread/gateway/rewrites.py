"""What stands for the beginning of a client's history: found, or made.

A rewrite is never changed. Whoever needs one for a beginning that has one reads it; of two that make one at the same
time the first is used by both. So the next, longer request begins with the same bytes, in every process.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everthread.core.budget import Budget
from everthread.core.exchange import Api, Request
from everthread.core.ladder import Strength
from everthread.core.messages import calls_of
from everthread.core.summary import Compaction
from everthread.engines.base import ContextEngine
from everthread.errors import EngineError, EverthreadError
from everthread.gateway.covering import cover, decoded, replacement_text
from everthread.gateway.events import Drifted, Rewritten
from everthread.gateway.identity import History
from everthread.session.events import CompactionVoid, Listener
from everthread.stores.base import Store
from everthread.stores.proxied import Rewrite


@dataclass(frozen=True, slots=True)
class Found:
    """The longest rewrite that is in use, and one that is ready for when it is time."""

    used: Rewrite | None = None
    ready: Rewrite | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """A history that shall become smaller."""

    tenant: str
    thread: str
    engine_key: str
    api: Api
    frame: Request
    """Model, system prompt and tools."""
    sent: Sequence[tuple[Any, str]]
    """The client's messages and their text."""
    history: History
    budget: Budget
    tokens: int
    """What the provider counts for it."""
    base: Rewrite | None = None
    """The rewrite it goes on from."""
    strength: Strength = Strength.NORMAL
    ripe: int = 0
    background: bool = False


class Rewrites:
    def __init__(
        self,
        store: Store,
        listener: Listener,
        spent: Callable[[str, Sequence[Mapping[str, Any]]], Awaitable[None]],
    ) -> None:
        self._store = store
        self._tell = listener
        self._spent = spent
        """Told what a summary used."""

    async def find(self, tenant: str, engine: str, history: History, size: int) -> Found:
        """The rewrites for a history whose messages have this size."""
        exact = await self._store.find_rewrites(tenant, engine, history.digests)
        exact = [found for found in exact if found.length <= len(history)]
        longest = exact[0].length if exact else 0
        similar = await self._similar(tenant, engine, history, longest)
        every = [*similar, *exact]
        used = next((found for found in every if found.ripe <= size), None)
        ready = next((found for found in every if found.ripe > size), None)
        if ready is not None and used is not None and ready.length <= used.length:
            ready = None
        return Found(used, ready)

    async def _similar(self, tenant: str, engine: str, history: History, longest: int) -> list[Rewrite]:
        """Rewrites of more, where the client cleared results or dropped thinking since; kept for its new form too."""
        found = []
        for similar in await self._store.find_similar_rewrites(tenant, engine, history.skeletons_after(longest)):
            length = history.skeletons.index(similar.skeleton) + 1
            if length > longest and history.drifted_from(similar.results, length):
                same = replace(similar, chain=history.digest(length), length=length, results=history.results(0, length))
                found.append(await self._store.put_rewrite(same))
                self._tell(Drifted(similar.thread, length))
        return sorted(found, key=lambda rewrite: (-rewrite.length, -rewrite.strength))

    async def make(self, engine: ContextEngine, task: Task) -> Rewrite | None:
        """A rewrite that covers more than the one before; None, with the reason told, where nothing can be won."""
        start = task.base.length if task.base else 0
        pairs = [*(replaced(task.base) if task.base else ()), *task.sent[start:]]
        if task.base:
            engine.load_state(task.base.state)
        values = [value for value, _ in pairs]
        made = await self._compressed(engine, task, values)
        await self._spent(task.thread, made.usage)
        rest = len(task.sent) - start
        cut = cover(task.api, made.messages, values, task.frame.model, most=rest) if made.changed else None
        if cut is None or cut.kept == rest or not cut.replacement:
            self._tell(CompactionVoid(task.thread, made.reason))
            return None
        tools = {call.id: call.name for message in made.messages for call in calls_of(message)}
        for item in made.to_store:
            await self._store.put_output(task.thread, item.text, call_id=item.call_id, tool=tools.get(item.call_id, ""))
        engine.on_compacted(made)
        return await self._put(engine, task, made, len(task.sent) - cut.kept, replacement_text(cut.replacement, pairs))

    async def _put(self, engine: ContextEngine, task: Task, made: Compaction, length: int, replacement: str) -> Rewrite:
        history = task.history
        depth = (task.base.depth if task.base else 0) + 1
        new = Rewrite(
            task.tenant, task.engine_key, history.digest(length), int(task.strength), length, history.skeleton(length),
            history.results(0, length), task.thread, replacement.encode(), task.ripe, depth, engine.dump_state(),
        )  # fmt: skip
        stored = await self._store.put_rewrite(new)
        if stored.replacement == new.replacement:
            before, after = made.tokens_before, made.tokens_after
            self._tell(Rewritten(task.thread, length, before, after, made.author, depth, task.background))
        else:
            self._tell(CompactionVoid(task.thread, "another process rewrote this beginning first; its rewrite is used"))
        return stored

    async def _compressed(self, engine: ContextEngine, task: Task, values: Sequence[Any]) -> Compaction:
        messages = decoded(task.api, values, task.frame.model)
        tokens = max(task.tokens, task.budget.threshold) if task.background else task.tokens
        try:
            return await engine.compress(
                messages, current_tokens=tokens, system=task.frame.system, tools=task.frame.tools,
                strength=task.strength,
            )  # fmt: skip
        except EverthreadError:
            raise
        except Exception as error:  # an engine is anybody's code
            raise EngineError(f"the context engine {engine.name} failed: {type(error).__name__}: {error}") from error


def replaced(rewrite: Rewrite) -> list[tuple[Any, str]]:
    """The messages of a rewrite with their text."""
    text = rewrite.replacement.decode()
    decode = json.JSONDecoder().raw_decode
    found = []
    at = 0
    while at < len(text):
        value, end = decode(text, at)
        found.append((value, text[at:end]))
        at = end + 1
    return found
