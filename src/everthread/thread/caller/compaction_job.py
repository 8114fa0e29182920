"""The jobs that compact or prune a client's history with an engine, in this process or another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from everthread.core.turns import user_text
from everthread.core.types import Api, ModelRequest
from everthread.store.rewrite_records import CLIENT_NOTES_ROLE, ContextEntry, ProxiedContext
from everthread.thread.caller.start_replacement import StartReplacement, replace_start
from everthread.thread.wire_messages import decode_messages

NO_CONTEXT = ProxiedContext((), (), inherited_count=0, own_roles=())


@dataclass(frozen=True, slots=True)
class CompactionJobResult:
    """The result of an engine: the compaction, the part of the request it replaces, and the engine's state."""

    compaction: Compaction
    start_replacement: StartReplacement | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    tokens: int = 0
    """Tokens of the replacement, counted by the job to keep that work off the event loop."""
    context: ProxiedContext = NO_CONTEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClientHistoryJob:
    """A client's history in the client's protocol, for an engine."""

    api: Api
    request: ModelRequest
    """Model, system prompt and tools."""
    wire_messages: Sequence[Any]
    """The messages that are sent to the provider now."""
    tokens: int
    state: Mapping[str, Any]
    """State of the engine that made the previous rewrite."""
    summary_key: bytes
    max_tail_count: int
    """Number of messages at the end that are the client's own."""

    def restore_engine(self, engine: ContextEngine) -> None:
        if self.state:
            engine.load_state(self.state)

    def _decode(self, wire_messages: Sequence[Any]) -> list[Message]:
        return decode_messages(self.api, wire_messages, self.request.model)

    def _make_result(self, compaction: Compaction) -> CompactionJobResult:
        """Return the compaction with the part of the client's request that it replaces."""
        start_replacement = replace_start(
            self.api,
            compaction.messages,
            self.wire_messages,
            self.request,
            max_tail_count=self.max_tail_count,
        )
        counter = TokenCounter(self.request.model)
        tokens = counter.messages(self._decode(start_replacement.replacement))
        return CompactionJobResult(compaction, start_replacement, tokens=tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionJob(_ClientHistoryJob):
    """A client's history to compact."""

    level: CompactionLevel
    pins: Sequence[str]
    inherited_count: int = 0
    """Number of messages at the beginning that come from the last rewrite."""

    def restore_engine(self, engine: ContextEngine) -> None:
        _ClientHistoryJob.restore_engine(self, engine)
        engine.pin(self.pins)

    def read(self) -> CompactionInput:
        return CompactionInput(
            recognize_summaries(self._decode(self.wire_messages), self.summary_key),
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
    ) -> CompactionJobResult:
        """Return the compaction in the client's protocol."""
        if not compaction.changed:
            return CompactionJobResult(compaction)
        engine.on_compacted(compaction)
        context = describe_context(
            compaction,
            engine_input.messages,
            inherited_count=len(self._decode(self.wire_messages[: self.inherited_count])),
            counter=TokenCounter(self.request.model),
        )
        return replace(self._make_result(compaction), state=engine.dump_state(), context=context)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningJob(_ClientHistoryJob):
    """A client's history to prune: messages arrived after its rewrite was prepared."""

    def read(self) -> RefitInput:
        messages = recognize_summaries(self._decode(self.wire_messages), self.summary_key)
        rewritten_messages = self.wire_messages[: len(self.wire_messages) - self.max_tail_count]
        start = len(self._decode(rewritten_messages))
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

    def make_result(
        self,
        engine: ContextEngine,  # noqa: ARG002 - as every job
        engine_input: RefitInput,
        compaction: Compaction,
    ) -> CompactionJobResult:
        """Return the pruned messages in the client's protocol; without a replacement if the engine summarised."""
        messages = [*engine_input.prepared_compaction.messages, *engine_input.new_messages]
        if compaction.messages == messages or compaction.covered:
            return CompactionJobResult(compaction)
        return self._make_result(compaction)


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
        inherited_count=inherited_count,
        own_roles=[_name_role(message) for message in messages[inherited_count:]],
    )


def _name_role(message: Message) -> str:
    role = message["role"]
    return CLIENT_NOTES_ROLE if role == "user" and not user_text(message) else role
