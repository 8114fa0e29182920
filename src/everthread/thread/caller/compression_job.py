"""One compaction of a client's history by an engine, in this process or another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everthread.compaction.compaction_result import Compaction, CompactionLevel
from everthread.compaction.engine import ContextEngine
from everthread.compaction.engine_input import CompactionInput, RefitInput
from everthread.core.messages import Message
from everthread.core.summary_marks import (
    is_summary,
    recognize_summaries,
    strip_summary_marks,
)
from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, Request
from everthread.store.rewrite_records import ContextEntry, ProxiedContext
from everthread.thread.caller.start_replacement import StartReplacement, replace_start
from everthread.thread.wire_messages import decode_messages

NO_CONTEXT = ProxiedContext((), (), compacted_count=0, inherited_count=0)


@dataclass(frozen=True, slots=True)
class CompressionResult:
    """The result of an engine: the compaction, the part of the request it replaces, and the engine's state."""

    compaction: Compaction
    cover: StartReplacement | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    tokens: int = 0
    """Tokens of the replacement, counted by the job to keep that work off the event loop."""
    context: ProxiedContext = NO_CONTEXT


@dataclass(frozen=True, slots=True)
class CompressionJob:
    """An `EngineJob`: a client's history in the client's protocol, to be compacted."""

    api: Api
    request: Request
    """Model, system prompt and tools."""
    wire_messages: Sequence[Any]
    """The messages that are sent to the provider now."""
    tokens: int
    level: CompactionLevel
    state: Mapping[str, Any]
    """State of the engine that made the previous rewrite."""
    pins: Sequence[str]
    summary_key: bytes
    max_tail_count: int
    """Number of messages at the end that are the client's own."""
    inherited_count: int = 0
    """Number of messages at the beginning that come from the last rewrite."""

    def restore_engine(self, engine: ContextEngine) -> None:
        if self.state:
            engine.load_state(self.state)
        engine.pin(self.pins)

    def read(self) -> CompactionInput:
        messages = decode_messages(self.api, self.wire_messages, self.request.model)
        return CompactionInput(
            recognize_summaries(messages, self.summary_key),
            current_tokens=self.tokens,
            system=self.request.system,
            tools=self.request.tools,
            level=self.level,
        )

    def make_result(
        self,
        engine: ContextEngine,
        engine_input: CompactionInput,
        compaction: Compaction,
    ) -> CompressionResult:
        """Return the compaction in the client's protocol."""
        if not compaction.changed:
            return CompressionResult(compaction)
        model = self.request.model
        engine.on_compacted(compaction)
        start_replacement = replace_start(
            self.api,
            compaction.messages,
            self.wire_messages,
            self.request,
            max_tail_count=self.max_tail_count,
        )
        counter = TokenCounter(model)
        context = describe_context(
            compaction,
            engine_input.messages,
            inherited_count=len(
                decode_messages(self.api, self.wire_messages[: self.inherited_count], model)
            ),
            counter=counter,
        )
        return CompressionResult(
            compaction,
            start_replacement,
            state=engine.dump_state(),
            tokens=counter.messages(
                decode_messages(self.api, start_replacement.replacement, model)
            ),
            context=context,
        )


@dataclass(frozen=True, slots=True)
class PruningJob:
    """A `RefitJob`: messages that arrived after a rewrite was prepared, to be pruned."""

    api: Api
    request: Request
    wire_messages: Sequence[Any]
    """The messages that are sent to the provider now."""
    tokens: int
    state: Mapping[str, Any]
    summary_key: bytes
    max_tail_count: int
    """Number of messages at the end that are the client's own."""

    def restore_engine(self, engine: ContextEngine) -> None:
        if self.state:
            engine.load_state(self.state)

    def read(self) -> RefitInput:
        model = self.request.model
        messages = recognize_summaries(
            decode_messages(self.api, self.wire_messages, model), self.summary_key
        )
        rewritten_messages = self.wire_messages[: len(self.wire_messages) - self.max_tail_count]
        start = len(decode_messages(self.api, rewritten_messages, model))
        prepared = Compaction(
            messages=messages[:start],
            summary="",
            tokens_before=self.tokens,
            tokens_after=self.tokens,
            kept=tuple(range(start)),
        )
        return RefitInput(
            prepared,
            messages[start:],
            start,
            current_tokens=self.tokens,
            system=self.request.system,
            tools=self.request.tools,
        )

    def make_result(self, engine_input: RefitInput, compaction: Compaction) -> CompressionResult:
        """Return the pruned messages in the client's protocol; without a replacement if the engine summarised."""
        messages = [*engine_input.prepared.messages, *engine_input.new_messages]
        if compaction.messages == messages or compaction.covered:
            return CompressionResult(compaction)
        model = self.request.model
        start_replacement = replace_start(
            self.api,
            compaction.messages,
            self.wire_messages,
            self.request,
            max_tail_count=self.max_tail_count,
        )
        replacement = decode_messages(self.api, start_replacement.replacement, model)
        tokens = TokenCounter(model).messages(replacement)
        return CompressionResult(compaction, start_replacement, tokens=tokens)


def describe_context(
    compaction: Compaction,
    messages: Sequence[Message],
    *,
    inherited_count: int,
    counter: TokenCounter,
) -> ProxiedContext:
    """Describe each message of a compacted context: its index in the history, or its new content."""
    entries = []
    for message, position in zip(compaction.messages, compaction.kept, strict=True):
        if position is not None and position >= inherited_count and message == messages[position]:
            entries.append(ContextEntry(position))
            continue
        [body] = strip_summary_marks([message])
        is_changed = position is not None and message != messages[position]
        index = None if is_summary(message) else position
        entries.append(
            ContextEntry(index, body, tokens=counter.message(body), is_changed=is_changed)
        )
    return ProxiedContext(
        entries,
        compaction.covered,
        compacted_count=len(messages),
        inherited_count=inherited_count,
    )
