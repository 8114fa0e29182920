"""A conversation held without a model: everything is stored, and compacted by a real engine when it is time."""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.registry import create_engine
from everthread.compaction.summarizers.extractive import ExtractiveSummarizer
from everthread.config import Config, home_directory
from everthread.conversation.conversation import Conversation
from everthread.conversation.events import CompactionFailed, Event
from everthread.conversation.options import SessionOptions, Setup
from everthread.core.messages import Message
from everthread.core.tokens import TokenCounter
from everthread.factory.conversations import session_options
from everthread.factory.stores import open_store
from everthread.lab.logs.base import Said
from everthread.lab.replay.player import fast_folder, route_for
from everthread.store.base import StoredMessage
from everthread.store.recalled import Passage, RecallQuery

MODEL = "gpt-4o"
"""By whose tokens is counted, where nobody else is named."""
AGAIN = 10
"""Where nothing could be compacted, it is tried again when a tenth (1/10) of the threshold has come."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How a conversation is held."""

    window: int
    engine: str = "compressor"
    engine_options: dict[str, Any] = field(default_factory=dict)
    options: SessionOptions = field(default_factory=lambda: session_options(Config()))
    model: str = MODEL

    def made(self, services: Services) -> ContextEngine:
        return create_engine(self.engine, services, self.engine_options, home=home_directory())


@dataclass(frozen=True, slots=True)
class Compacted:
    tokens_before: int
    tokens_after: int


@dataclass
class Held:
    """The conversation as it stands."""

    conversation: Conversation
    counter: TokenCounter
    notes: list[str]
    now: float | None = None
    compactions: list[Compacted] = field(default_factory=list)
    tried: int = 0
    """How large it was when nothing could be compacted."""
    _told: set[str] = field(default_factory=set)

    @property
    def full(self) -> bool:
        """Whether a call would be compacted before."""
        threshold, tokens = self.conversation.threshold, self.conversation.tokens
        return tokens >= threshold and tokens >= self.tried + (threshold // AGAIN if self.tried else 0)

    async def compact(self) -> bool:
        before = self.conversation.tokens
        made = await self.conversation.compress()
        if not made.changed:
            self.tried = before
            self._note(f"nothing was compacted at {before:,} tokens: {made.reason}")
            return False
        self.tried = 0
        self.compactions.append(Compacted(before, self.conversation.tokens))
        return True

    async def add(self, said: Iterable[Said | Message]) -> None:
        """Store what was said, each answer of the model by itself, everything between two of them at once."""
        given: list[Message] = []
        for entry in said:
            message = entry.message if isinstance(entry, Said) else entry
            if isinstance(entry, Said) and entry.at is not None:
                await self._store(given)
                given, self.now = [], entry.at
            if message["role"] == "assistant":
                await self._store(given)
                await self._store([message])
                given = []
            else:
                given.append(message)
        await self._store(given)

    async def _store(self, given: list[Message]) -> None:
        if given:
            await self.conversation.add(given)

    async def view(self) -> list[StoredMessage]:
        """What the model sees."""
        return await self.conversation.store.messages(self.conversation.session.id)

    async def recall(self, question: str, first: int) -> list[Passage]:
        """What recall finds beyond what is in view, the best first."""
        session = self.conversation.session
        seen = frozenset(message.id for message in await self.view())
        query = RecallQuery(question, session.tenant, thread=self.conversation.id, seen=seen, limit=first, now=self.now)
        return await self.conversation.store.recall(query)

    def hear(self, event: Event) -> None:
        if isinstance(event, CompactionFailed):
            self._note(f"a compaction failed: {event.error}")

    def _note(self, text: str) -> None:
        """Once, whatever figures it is told with."""
        words = re.sub(r"[\d,.]+", "#", text)
        if words not in self._told:
            self._told.add(words)
            self.notes.append(text)


@asynccontextmanager
async def held(manner: Manner, *, clock: Callable[[], float]) -> AsyncIterator[Held]:
    """An empty conversation to be filled; its store is gone afterwards. `clock`: the time where nothing else tells."""
    heard: list[Held] = []

    def listen(event: Event) -> None:
        for one in heard:
            one.hear(event)

    def now() -> float:
        return heard[0].now if heard and heard[0].now is not None else clock()

    with tempfile.TemporaryDirectory(prefix="everthread-probe-", dir=fast_folder()) as folder:
        store = open_store(Path(folder) / "probe.db")
        try:
            setup = Setup(
                store, route_for(manner.model, manner.window), manner.made,
                lambda desk: ExtractiveSummarizer(desk.counter), replace(manner.options, background=False), None,
                listen, wall=now,
            )  # fmt: skip
            async with await Conversation.open(setup) as conversation:
                heard.append(Held(conversation, TokenCounter(manner.model), []))
                yield heard[0]
        finally:
            await store.close()
