"""Size of a caller's next prompt, with the rewrite in use and our own additions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from everthread.core.types import Api
from everthread.store.records import Rewrite
from everthread.thread.caller.prepared_call import PreparedCall
from everthread.thread.caller.replacement import replacement_messages
from everthread.thread.caller.rewrites import RewriteState


class MessageSizes(Protocol):
    """Counts messages, each once."""

    def values(self, api: Api, model: str, key: Any, values: Sequence[Any]) -> int:
        """Return the tokens of messages, cached under a key."""
        ...

    def text(self, model: str, text: str) -> int:
        """Return the tokens of a text that is a part of a message."""
        ...


class PromptSizer:
    """Counts the prompt of a call; each message and each rewrite is counted once."""

    def __init__(self, sizes: MessageSizes) -> None:
        self._sizes = sizes

    def tokens(self, call: PreparedCall, used: Rewrite | None) -> int:
        """Return the prompt as the provider counts it, with this rewrite or none."""
        calibration = call.memory.context.calibration
        return calibration.project(call.model, self.estimate(call, used))

    def estimate(self, call: PreparedCall, used: Rewrite | None) -> int:
        """Return the prompt as estimated here, not corrected by the provider's reports."""
        if used is None:
            return call.frame.tokens + call.sent.size + self._added_tokens(call, 0)
        state = RewriteState.load(used.state)
        if state.model == call.model:
            head = state.tokens
        else:
            values = [value for value, _ in replacement_messages(used)]
            head = self._count(call, used.replacement, values)
        if state.note:
            head += self._sizes.text(call.model, state.note)
        tail = sum(call.sent.sizes[used.length :])
        return call.frame.tokens + head + tail + self._added_tokens(call, used.length)

    def _added_tokens(self, call: PreparedCall, length: int) -> int:
        """Return the tokens of hidden rounds and restored files, less those of the messages they replace."""
        sizes = call.sent.sizes
        tokens = 0
        for index, value in call.restored(length).items():
            key = ("restored", call.sent.history.digest(index + 1))
            tokens += self._count(call, key, [value]) - sizes[index]
        texts, values = call.rounds.added_values(length)
        if not texts:
            return tokens
        tokens += self._count(call, ("hidden", *texts), values)
        for start, end, _ in call.rounds.after(length):
            tokens -= sum(sizes[start:end])
        return tokens

    def _count(self, call: PreparedCall, key: Any, values: Sequence[Any]) -> int:
        return self._sizes.values(call.frame.api, call.model, key, values)
