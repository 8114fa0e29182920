"""The cut of a history, with the token limits it obeys."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from everthread.compaction.cutting.shortening import MIN_RESULT_TOKENS
from everthread.core.messages import (
    RESULT_BLOCK_KINDS,
    Message,
    kind_of,
    with_content,
)
from everthread.core.summary_marks import without_summary
from everthread.core.tool_outputs import OutputToStore

RESULT_DIVISOR = 4
"""One result takes at most the tail budget divided by this."""


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """The token limits of a compacted request and of its parts."""

    tail_tokens: int
    """Collect the tail from the end until this many tokens are used."""
    protect_last_n: int
    """Keep this many last messages in the tail while the compacted request stays within `target_tokens`."""
    target_tokens: int
    """The size that the compacted request should not exceed: 60 % of the threshold."""
    max_tokens: int
    """The size that the compacted request must stay below: the threshold."""
    max_prompt_tokens: int
    """The size that no request may exceed: the window without the tokens for the answer."""
    fixed_tokens: int
    """Tokens of system prompt and tools."""
    summary_tokens: int
    """Tokens for the summary without the user's words."""
    usual_summary_tokens: int
    """The part of `summary_tokens` that is given up only after half of the tail and the user's words."""
    min_summary_tokens: int
    """The part of `summary_tokens` that is kept even if the request is too large."""
    user_words_tokens: int
    """Tokens for the user's words."""
    min_user_words_tokens: int
    """The part of `user_words_tokens` that is kept even if the request is too large."""

    @property
    def max_result_tokens(self) -> int:
        """The maximum tokens of one result in the tail."""
        return max(self.tail_tokens // RESULT_DIVISOR, MIN_RESULT_TOKENS)


@dataclass(slots=True)
class Tail:
    """The messages at the end that are kept."""

    start: int
    tokens: int = 0
    """Tokens of the whole tail, including the latest group."""
    used_budget: int = 0
    """Tokens used of the tail budget."""
    pruned_indices: set[int] = field(default_factory=set)
    """Messages whose results are one line each."""
    result_limits: dict[int, int] = field(default_factory=dict)
    """The maximum tokens of each result, for messages whose results are cut."""
    is_widened: bool = False
    """Whether the tail exceeds its budget to hold `protect_last_n` messages."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The positions of head, middle and tail, and the messages that are kept.

    The head is `[0, head_end)`, the middle `[head_end, tail_start)`, the tail `[tail_start, …)`.
    """

    head_end: int
    tail_start: int
    pruned_indices: frozenset[int]
    """Messages of the tail whose results are one line each."""
    kept_user_index: int | None
    """The latest user message if it is in the middle: it is kept directly after the summary."""
    messages: list[Message]
    """The input, with kept messages pruned or cut where needed; every index is the same."""
    to_store: tuple[OutputToStore, ...]
    """The texts to store for the shortened messages."""
    limits: TokenLimits
    """The token limits after all reductions."""
    request_tokens: int
    """The maximum size of the compacted request."""
    reasons: tuple[str, ...]
    """The reasons for head and tail, as sentences."""
    steps: tuple[str, ...]
    """The reductions that were needed."""

    @property
    def kept_user_message(self) -> Message | None:
        """The message to put directly after the summary, or None."""
        if self.kept_user_index is None:
            return None
        return without_tool_results(self.messages[self.kept_user_index])


@dataclass(frozen=True, slots=True)
class RunningSizes:
    """Running sums of the tokens of selected messages of a history."""

    indices: list[int]
    sums: list[int]
    """The sum before each index, then the sum of all: one more item than `indices`."""

    def sum_before(self, index: int) -> int:
        """Return the tokens of the selected messages before an index."""
        return self.sums[bisect_left(self.indices, index)]


def make_running_sizes(indexed_sizes: Iterable[tuple[int, int]], initial: int = 0) -> RunningSizes:
    """Return the running sums of `(index, tokens)` pairs, which must be in order of the indices."""
    indices: list[int] = []
    sums = [initial]
    for index, tokens in indexed_sizes:
        indices.append(index)
        sums.append(sums[-1] + tokens)
    return RunningSizes(indices, sums)


def without_tool_results(message: Message) -> Message:
    """Return the user's part of a message, without tool results, which stay with their calls."""
    content = message.get("content")
    if isinstance(content, list) and any(kind_of(part) in RESULT_BLOCK_KINDS for part in content):
        message = with_content(
            message, [part for part in content if kind_of(part) not in RESULT_BLOCK_KINDS]
        )
    return without_summary(message) or message
