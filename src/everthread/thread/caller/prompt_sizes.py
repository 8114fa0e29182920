"""Count the size of a caller's next prompt, with the rewrite in use and our own additions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everthread.store.rewrite_records import Rewrite
from everthread.thread.caller.message_caches import SizeCache
from everthread.thread.caller.prepared_call import PreparedCall
from everthread.thread.caller.start_replacement import parse_replacement


class PromptSizer:
    """A counter of prompts that counts each message and each rewrite once."""

    def __init__(self, sizes: SizeCache) -> None:
        self._sizes = sizes

    def count_tokens(self, call: PreparedCall, rewrite: Rewrite | None) -> int:
        """Return the prompt's tokens as the provider counts them. `rewrite`: the one in use, or None."""
        calibration = call.memory.learnt_usage.calibration
        return calibration.project(call.model, self.estimate_tokens(call, rewrite))

    def estimate_tokens(self, call: PreparedCall, rewrite: Rewrite | None) -> int:
        """Return our own estimate of the prompt's tokens, without the correction by the provider's reports."""
        if rewrite is None:
            return (
                call.settings.tokens + call.caller_history.size + self._count_added_tokens(call, 0)
            )
        state = rewrite.state
        if state.model == call.model:
            rewrite_tokens = state.tokens
        else:
            wire_messages = [value for value, _ in parse_replacement(rewrite)]
            rewrite_tokens = self._count_together(call, rewrite.replacement, wire_messages)
        if state.note:
            rewrite_tokens += self._sizes.count_text(call.model, state.note)
        tail_tokens = sum(call.caller_history.sizes[rewrite.replaced_count :])
        return (
            call.settings.tokens
            + rewrite_tokens
            + tail_tokens
            + self._count_added_tokens(call, rewrite.replaced_count)
        )

    def _count_added_tokens(self, call: PreparedCall, length: int) -> int:
        """Return the tokens of recall rounds and restored files, less those of the messages they replace."""
        sizes = call.caller_history.sizes
        tokens = 0
        for index, value in call.caller_history.restore_messages(length).items():
            key = ("restored", call.caller_history.history.digest(index + 1))
            tokens += self._count_together(call, key, [value]) - sizes[index]
        texts, wire_messages = call.rounds.list_added_messages(length)
        if not texts:
            return tokens
        tokens += self._count_together(call, ("hidden", *texts), wire_messages)
        for start, end, _ in call.rounds.list_rounds_after(length):
            tokens -= sum(sizes[start:end])
        return tokens

    def _count_together(self, call: PreparedCall, key: Any, wire_messages: Sequence[Any]) -> int:
        return self._sizes.count_together(call.settings.api, call.model, key, wire_messages)
