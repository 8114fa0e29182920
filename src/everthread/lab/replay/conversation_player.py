"""Replay recorded calls through a `Conversation`, in simulated time."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.conversation.conversation import Conversation
from everthread.conversation.requests import PreparedRequest
from everthread.conversation.setup import Setup
from everthread.core.types import ModelReply
from everthread.errors import ContextOverflowError, ModelError
from everthread.factory.stores import open_store
from everthread.lab.provider.prompt_blocks import Prompt
from everthread.lab.provider.served_models import PROTOCOLS
from everthread.lab.replay import result
from everthread.lab.replay.cache_lifetime import caches_by_marks
from everthread.lab.replay.call_recorder import ReplayRecorder
from everthread.lab.replay.replay_inputs import ReplayInputs
from everthread.lab.replay.result import PlayedCompaction
from everthread.lab.replay.simulated_cache import ReplayCaches
from everthread.testing import SteppedClock
from everthread.thread.events import (
    CompactionDone,
    CompactionFailed,
    CompactionStarted,
    Event,
    Notice,
)
from everthread.thread.options import SessionOptions
from everthread.thread.route import Route

CompactBefore = Callable[[int, Conversation], bool] | Collection[int]
"""The calls before which to compact regardless of size, as their indexes or as a function."""

_USAGE_FORMATTERS = {protocol.api: protocol.make_usage for protocol in PROTOCOLS}


def make_route(model: str, window: int) -> Route:
    """Return a route to Anthropic for Claude, and to a chat model with an automatic cache for any other."""
    if caches_by_marks(model):
        return Route(model, "anthropic", window, provider="anthropic")
    return Route(model, "openai_chat", window)


def find_ram_folder() -> str | None:
    """Return a folder in memory if the system has one, because the store of a replay is temporary."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - its folder has a random name  # nosec B108


class SimulatedTimer:
    """The idle timer of a replay, which fires in simulated time."""

    def __init__(self, clock: SteppedClock) -> None:
        self._clock = clock
        self._due_time = 0.0
        self._callback: Callable[[], None] | None = None

    def schedule(self, seconds: float, callback: Callable[[], None]) -> SimulatedTimer:
        """Schedule a call, which replaces an earlier one."""
        self._due_time = self._clock.now + seconds
        self._callback = callback
        return self

    def cancel(self) -> None:
        self._callback = None

    def fire_before(self, moment: float) -> bool:
        """Make the scheduled call if it is due before this moment; return whether it was made."""
        callback = self._callback
        if callback is None or self._due_time > moment:
            return False
        self._callback = None
        self._clock.now = self._due_time
        callback()
        return True


class ConversationPlayer:
    """Plays the calls of one conversation in order."""

    def __init__(
        self,
        inputs: ReplayInputs,
        options: SessionOptions,
        make_engine: Callable[[Services], ContextEngine],
        compact_before: CompactBefore,
    ) -> None:
        self.inputs = inputs
        self._options = options
        self._make_engine = make_engine
        self._compact_before = compact_before
        self._clock = SteppedClock(0.0)
        self.call_recorder = ReplayRecorder(inputs.ttl, inputs.started_at)
        self.compactions: list[PlayedCompaction] = []
        self.notes: dict[str, str] = {}
        """Notes by their text without figures, so that of notes that differ only in figures the last is kept."""
        self.refused_call: int | None = None
        self._compaction_started = 0.0
        """The start of the last compaction, by a real clock."""
        self._timer = SimulatedTimer(self._clock)

    @asynccontextmanager
    async def play(self) -> AsyncIterator[Conversation]:
        """Replay all calls and yield the conversation at its end. Its store is removed afterwards."""
        inputs = self.inputs
        with tempfile.TemporaryDirectory(
            prefix="everthread-replay-", dir=find_ram_folder()
        ) as folder:
            store = open_store(Path(folder) / "replay.db")
            try:
                setup = Setup(
                    store=store,
                    route=make_route(inputs.calls[0].model, inputs.window),
                    make_engine=self._make_engine,
                    make_summarizer=lambda context: JournalWriter(context.counter),
                    options=self._options,
                    system=inputs.system,
                    listener=self._on_event,
                    clock=self._clock,
                    wall_clock=lambda: inputs.started_at + self._clock.now,
                    timer=self._timer.schedule,
                )
                async with await Conversation.open(setup, tools=inputs.tools) as conversation:
                    await self._play_calls(conversation)
                    await self._add_summaries(conversation)
                    yield conversation
            finally:
                await store.close()

    def _on_event(self, event: Event) -> None:
        call_index = len(self.call_recorder.calls)
        if isinstance(event, CompactionStarted):
            self._compaction_started = time.perf_counter()
        elif isinstance(event, CompactionDone):
            self.compactions.append(
                PlayedCompaction(
                    call_index,
                    event.reason,
                    tokens_before=event.tokens_before,
                    tokens_after=event.tokens_after,
                    messages_before=event.messages_before,
                    messages_after=event.messages_after,
                    author=event.author,
                    seconds=time.perf_counter() - self._compaction_started,
                )
            )
        elif isinstance(event, CompactionFailed):
            self._add_note(f"a compaction failed before call {call_index + 1:,}: {event.error}")
        elif isinstance(event, Notice):
            self._add_note(event.text)

    def _add_note(self, text: str) -> None:
        self.notes[re.sub(r"[\d,.]+", "#", text)] = text

    async def _play_calls(self, conversation: Conversation) -> None:
        inputs = self.inputs
        caches = ReplayCaches(self._clock, inputs.recording)
        compaction_count = 0
        for call_index, call in enumerate(inputs.calls):
            if self._timer.fire_before(call.sent_at):
                await conversation.wait_for_idle_compaction()
            self._clock.now = call.sent_at
            if call.model != conversation.route.name:
                await conversation.use_model(make_route(call.model, inputs.window))
            try:
                prepared_request, prompt = await self._prepare_call(conversation, call_index)
            except ContextOverflowError as error:
                self._add_note(str(error))
                self.refused_call = call_index
                return
            request = prepared_request.request
            use = caches.use(call_index, request.model, prompt)
            rewrite_cause = (
                result.COMPACTION_CAUSE if len(self.compactions) > compaction_count else ""
            )
            compaction_count = len(self.compactions)
            self.call_recorder.record_call(
                request,
                use,
                call.output_tokens,
                call.sent_at,
                rewrite_cause=rewrite_cause,
            )
            usage = _USAGE_FORMATTERS[prepared_request.api](use, call.output_tokens, 0)
            await conversation.record(ModelReply(call.answer, usage=usage, model=request.model))
            inputs.report_step()

    async def _add_summaries(self, conversation: Conversation) -> None:
        """Add to the compactions the summaries that were stored."""
        stored_compactions = await conversation.store.list_compactions(conversation.id)
        for index, stored_compaction in zip(
            range(len(self.compactions)), stored_compactions, strict=False
        ):
            self.compactions[index] = replace(
                self.compactions[index], summary=stored_compaction.record.summary or ""
            )

    async def _prepare_call(
        self, conversation: Conversation, call_index: int
    ) -> tuple[PreparedRequest, Prompt]:
        """Prepare the request of a call. If it exceeds the window, recover as from a refusal until it fits."""
        messages = list(self.inputs.calls[call_index].inputs)
        compact_before = self._compact_before
        if messages and compact_before:
            await conversation.add(messages)
            messages = []
            if (
                compact_before(call_index, conversation)
                if callable(compact_before)
                else call_index in compact_before
            ):
                compaction = await conversation.compress()
                if not compaction.changed:
                    self._add_note(
                        f"nothing was compacted before call {call_index + 1:,}: {compaction.reason}"
                    )
        prepared_request = await conversation.prepare(messages or None)
        while (
            prompt := self.inputs.prompts.read(prepared_request.request)
        ).tokens > self.inputs.window:
            refusal = f"prompt is too long: {prompt.tokens} tokens > {self.inputs.window} maximum"
            prepared_request = await conversation.recover(ModelError(refusal, status=400))
        return prepared_request, prompt
