"""Plays a conversation through `Conversation`: prepare, the recorded answer with the simulator's usage, record."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.summarizers.extractive import ExtractiveSummarizer
from everthread.conversation.conversation import Conversation
from everthread.conversation.events import CompactionDone, CompactionFailed, CompactionStarted, Event, Notice
from everthread.conversation.options import Route, SessionOptions, Setup
from everthread.conversation.requests import PreparedRequest
from everthread.core.exchange import Reply
from everthread.errors import ContextOverflowError, ModelError
from everthread.factory.stores import open_store
from everthread.lab.prompt_blocks import Prompt
from everthread.lab.protocols import PROTOCOLS
from everthread.lab.replay import result
from everthread.lab.replay.others import Setting
from everthread.lab.replay.pricing import Ledger
from everthread.lab.replay.result import Compacted, Played
from everthread.lab.replay.simulator import Cache, by_marks
from everthread.testing import SteppedClock

Compact = Callable[[int, Conversation], bool] | Collection[int]
"""Which calls are compacted before, whatever the size: their indices, or who is asked before every call."""

_USAGE = {protocol.api: protocol.usage for protocol in PROTOCOLS}


def route_for(model: str, window: int) -> Route:
    """Claude at Anthropic, anything else as a chat model whose cache works by itself."""
    if by_marks(model):
        return Route(model, "anthropic", window, provider="anthropic")
    return Route(model, "openai_chat", window)


def fast_folder() -> str | None:
    """Where files are written to memory, on systems that have such a place: nothing here outlives the replay."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - the folder in it has a random name


@dataclass
class Player:
    """One conversation under way."""

    setting: Setting
    options: SessionOptions
    engine: Callable[[Services], ContextEngine]
    compact: Compact = ()
    clock: SteppedClock = field(default_factory=lambda: SteppedClock(0.0))
    played: list[Played] = field(default_factory=list)
    compactions: list[Compacted] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refused: int | None = None
    _told: set[str] = field(default_factory=set)
    _started: float = 0.0
    """When the last compaction began, by a real clock."""
    _heard: int = 0
    """How many compactions the ledger knows of."""

    @asynccontextmanager
    async def play(self) -> AsyncIterator[Conversation]:
        """The conversation as it stands at its end; its store is gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="everthread-replay-", dir=fast_folder()) as folder:
            store = open_store(Path(folder) / "replay.db")
            try:
                setting = self.setting
                setup = Setup(
                    store, route_for(setting.models[0], setting.window), self.engine,
                    lambda desk: ExtractiveSummarizer(desk.counter), self.options, setting.system, self._hear,
                    clock=self.clock, wall=lambda: setting.began + self.clock.now,
                )  # fmt: skip
                async with await Conversation.open(setup, tools=setting.tools) as conversation:
                    await self._through(conversation)
                    yield conversation
            finally:
                await store.close()

    def _hear(self, event: Event) -> None:
        if isinstance(event, CompactionStarted):
            self._started = time.perf_counter()
        elif isinstance(event, CompactionDone):
            self.compactions.append(
                Compacted(
                    len(self.played), event.reason, event.tokens_before, event.tokens_after, event.messages_before,
                    event.messages_after, event.author, time.perf_counter() - self._started,
                )
            )  # fmt: skip
        elif isinstance(event, CompactionFailed):
            self._note(f"a compaction failed before call {len(self.played) + 1:,}: {event.error}")
        elif isinstance(event, Notice):
            self._note(event.text)

    def _note(self, text: str) -> None:
        """Once, whatever figures it is told with."""
        words = re.sub(r"[\d,.]+", "#", text)
        if words not in self._told:
            self._told.add(words)
            self.notes.append(text)

    async def _through(self, conversation: Conversation) -> None:
        setting = self.setting
        cache, ledger = Cache(self.clock), Ledger(setting.ttl, setting.began)
        for number, call in enumerate(setting.calls):
            self.clock.now = call.at
            if setting.models[number] != conversation.route.name:
                await conversation.use_model(route_for(setting.models[number], setting.window))
            try:
                sent = await self._sent(conversation, number)
            except ContextOverflowError as error:
                self._note(str(error))
                self.refused = number
                return
            prepared, prompt = sent
            request = prepared.request
            use = cache.use(request.model, prompt)
            reshaped = result.COMPACTED if len(self.compactions) > self._heard else ""
            self._heard = len(self.compactions)
            output = setting.outputs[number]
            self.played.append(ledger.played(request, use, output, call.at, reshaped=reshaped))
            await conversation.record(
                Reply(call.answer, usage=_USAGE[prepared.api](use, output, 0), model=request.model)
            )
            setting.step()

    async def _sent(self, conversation: Conversation, number: int) -> tuple[PreparedRequest, Prompt]:
        """The request as the provider takes it: one that is too long is refused, as it would be."""
        given = list(self.setting.calls[number].given)
        if given and self.compact:
            await conversation.add(given)
            if self._wanted(number, conversation):
                made = await conversation.compress()
                if not made.changed:
                    self._note(f"nothing was compacted before call {number + 1:,}: {made.reason}")
            given = []
        prepared = await conversation.prepare(given or None)
        while (prompt := self.setting.prompts.read(prepared.request)).tokens > self.setting.window:
            words = f"prompt is too long: {prompt.tokens} tokens > {self.setting.window} maximum"
            prepared = await conversation.recover(ModelError(words, status=400))
        return prepared, prompt

    def _wanted(self, number: int, conversation: Conversation) -> bool:
        return self.compact(number, conversation) if callable(self.compact) else number in self.compact
