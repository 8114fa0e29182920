"""A history to compact, and the messages that are sent for it now."""

from __future__ import annotations

from everthread.core.tokens.budget import Budget
from everthread.store.rewrite_records import Rewrite, RewriteState
from everthread.thread.caller.caller_request import CallerHistory, CallerMessage, CallSettings
from everthread.thread.caller.provider_compactions import count_protected_messages
from everthread.thread.caller.replacement_text import parse_replacement
from everthread.thread.managed_prompt import CompactionOrder
from everthread.thread.wire_messages import JsonMessages


class RewriteTask:
    """A history to compact, with everything that the compaction needs.

    `base_rewrite`: the rewrite that the new one continues. `tokens`: the prompt's tokens as the provider counts them.
    """

    def __init__(
        self,
        caller_history: CallerHistory,
        settings: CallSettings,
        *,
        thread_id: str,
        engine_key: str,
        order: CompactionOrder,
        budget: Budget,
        tokens: int,
        base_rewrite: Rewrite | None,
    ) -> None:
        self.caller_history = caller_history
        self.settings = settings
        self.thread_id = thread_id
        self.engine_key = engine_key
        self.order = order
        self.budget = budget
        self.tokens = tokens
        self.base_rewrite = base_rewrite
        self.base_state = base_rewrite.state if base_rewrite else RewriteState()
        covered_count = base_rewrite.replaced_count if base_rewrite else 0
        self.new_count = len(caller_history) - covered_count
        """The number of the caller's messages that are not covered yet."""
        self.messages: list[CallerMessage] = [
            *(parse_replacement(base_rewrite) if base_rewrite else ()),
            *caller_history.messages[covered_count:],
        ]
        """The messages that the provider gets without this compaction; each is decoded on first use."""
        self.texts = [message.text for message in self.messages]
        self.protected_count = count_protected_messages(self.messages, self.texts)
        """The number of messages, up to the provider's own last compaction, that are never changed."""
        self.wire_messages = JsonMessages(self.texts[self.protected_count :])
        """The messages that may be changed."""
        self.max_tail_count = min(self.new_count, len(self.wire_messages))
        """The number of messages at the end that are the caller's own and not covered yet."""

    @property
    def base_depth(self) -> int:
        """The number of compactions that the history went through before this one."""
        return self.base_rewrite.depth if self.base_rewrite else 0
