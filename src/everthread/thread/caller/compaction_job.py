"""The jobs that compact or refit a client's history with an engine, in this process or another."""

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
from everthread.core.turns import user_text
from everthread.core.types import Api, ModelRequest
from everthread.store.rewrite_records import CLIENT_NOTES_ROLE, ContextEntry, ProxiedContext
from everthread.thread.caller.start_replacement import replace_start
from everthread.thread.wire_messages import decode_messages

NO_CONTEXT = ProxiedContext((), (), inherited_count=0, own_roles=())


@dataclass(frozen=True, slots=True)
class CompactionJobResult:
    """The result of an engine: the compaction, the part of the request it replaces, and the engine's state."""

    compaction: Compaction
    replacement: Sequence[Any] = ()
    """The messages that replace the start of the request."""
    tail_count: int = 0
    """The number of messages at the end of the request that stay."""
    tokens: int = 0
    """Tokens of the replacement, counted by the job to keep that work off the event loop."""
    state: Mapping[str, Any] = field(default_factory=dict)
    context: ProxiedContext = NO_CONTEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionJob:
    """A client's history to compact, in the client's protocol."""

    api: Api
    request: ModelRequest
    """Model, system prompt and tools."""
    wire_messages: Sequence[Any]
    """The messages that are sent to the provider without this compaction."""
    tokens: int
    level: CompactionLevel
    state: Mapping[str, Any]
    """State of the engine that made the previous rewrite."""
    summary_key: bytes
    pins: Sequence[str]
    max_tail_count: int
    """Number of messages at the end that are the client's own."""
    inherited_count: int = 0
    """Number of messages at the beginning that come from the last rewrite."""

    def restore_engine(self, engine: ContextEngine) -> None:
        if self.state:
            engine.load_state(self.state)
        engine.pin(self.pins)

    def read(self) -> CompactionInput:
        return CompactionInput(
            recognize_summaries(self.decode(self.wire_messages), self.summary_key),
            current_tokens=self.tokens,
            system=self.request.system,
            tools=self.request.tools,
            level=self.level,
        )

    def decode(self, wire_messages: Sequence[Any]) -> list[Message]:
        return decode_messages(self.api, wire_messages, self.request.model)

    def make_result(
        self, engine: ContextEngine, engine_input: CompactionInput, compaction: Compaction
    ) -> CompactionJobResult:
        """Return the compaction in the client's protocol."""
        if not compaction.changed:
            return CompactionJobResult(compaction)
        engine.on_compacted(compaction)
        counter = TokenCounter(self.request.model)
        replacement, tail_count = replace_start(
            self.api,
            compaction.messages,
            self.wire_messages,
            self.request,
            max_tail_count=self.max_tail_count,
        )
        context = describe_context(
            compaction,
            engine_input.messages,
            inherited_count=len(self.decode(self.wire_messages[: self.inherited_count])),
            counter=counter,
        )
        return CompactionJobResult(
            compaction,
            replacement,
            tail_count,
            tokens=counter.messages(self.decode(replacement)),
            state=engine.dump_state(),
            context=context,
        )


@dataclass(frozen=True, slots=True)
class RefitJob:
    """A client's history whose beginning was compacted ahead, and which became too large since."""

    job: CompactionJob
    """The compaction of the whole history."""
    prepared_compaction: Compaction
    new_count: int
    """Number of messages at the end that came after the prepared compaction."""

    def restore_engine(self, engine: ContextEngine) -> None:
        self.job.restore_engine(engine)

    def read(self) -> RefitInput:
        messages = self.job.read().messages
        wire_messages = self.job.wire_messages
        prepared_count = len(self.job.decode(wire_messages[: len(wire_messages) - self.new_count]))
        return RefitInput(
            self.prepared_compaction,
            messages[prepared_count:],
            prepared_count,
            current_tokens=self.job.tokens,
            system=self.job.request.system,
            tools=self.job.request.tools,
        )

    def make_result(
        self,
        engine: ContextEngine,
        engine_input: RefitInput,  # noqa: ARG002 - as every job
        compaction: Compaction,
    ) -> CompactionJobResult:
        return self.job.make_result(engine, self.job.read(), compaction)


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
