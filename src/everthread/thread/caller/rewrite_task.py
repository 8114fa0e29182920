"""A history to compact, and the messages that are sent for it now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everthread.core.tokens.budget import Budget
from everthread.store.rewrite_records import Rewrite
from everthread.thread.caller.caller_request import CallerHistory, CallerMessage, CallSettings
from everthread.thread.caller.provider_compactions import count_protected_messages
from everthread.thread.caller.replacement_text import parse_replacement
from everthread.thread.managed_prompt import CompactionOrder
from everthread.thread.wire_messages import JsonMessages


@dataclass(frozen=True, slots=True)
class RewriteState:
    """State kept with a rewrite: the engine's, and the note after the system prompt."""

    engine: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    model: str = ""
    """The model whose tokenizer counted the replacement; empty if it was not counted."""
    tokens: int = 0

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> RewriteState:
        """Return the state from its JSON form, which is empty for a rewrite that no engine made."""
        return cls(**state)

    def dump(self) -> dict[str, Any]:
        return {
            "engine": dict(self.engine),
            "note": self.note,
            "model": self.model,
            "tokens": self.tokens,
        }


@dataclass(frozen=True, slots=True)
class TaskMessages:
    """The messages that are sent now; each is decoded on first use."""

    messages: Sequence[CallerMessage]
    texts: Sequence[str]
    protected_count: int
    """The number of messages, up to the provider's own last compaction, that are never changed."""
    max_tail_count: int
    """The number of messages at the end that are the caller's own and not covered yet."""

    @property
    def wire_messages(self) -> JsonMessages:
        """The messages that may be changed."""
        return JsonMessages(self.texts[self.protected_count :])


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """A history to compact, with everything that the compaction needs."""

    caller_history: CallerHistory
    settings: CallSettings
    thread: str
    engine_key: str
    budget: Budget
    tokens: int
    """Tokens as the provider counts them."""
    order: CompactionOrder
    base_rewrite: Rewrite | None = None
    """The rewrite that the new one continues."""

    @property
    def new_count(self) -> int:
        """The number of the caller's messages that are not covered yet."""
        return len(self.caller_history) - (
            self.base_rewrite.replaced_count if self.base_rewrite else 0
        )

    @property
    def base_state(self) -> RewriteState:
        return RewriteState.load(self.base_rewrite.state) if self.base_rewrite else RewriteState()

    @property
    def target_tokens(self) -> int:
        """The prompt size to compact for."""
        return self.order.find_target_tokens(self.tokens, self.budget.threshold)

    def list_messages(self) -> TaskMessages:
        """Return the messages that the provider gets without this compaction: a rewrite, then the caller's own."""
        caller_messages = self.caller_history.messages[len(self.caller_history) - self.new_count :]
        messages: list[CallerMessage] = []
        if self.base_rewrite:
            messages += parse_replacement(self.base_rewrite)
        messages += caller_messages
        texts = [message.text for message in messages]
        protected_count = count_protected_messages(messages, texts)
        max_tail = min(self.new_count, len(messages) - protected_count)
        return TaskMessages(
            messages, texts, protected_count=protected_count, max_tail_count=max_tail
        )
