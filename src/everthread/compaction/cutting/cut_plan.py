"""The plan of a compaction: the messages that a summary covers, the messages that stay, and the tokens it may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from everthread.compaction.cutting.cut import Cut, TokenLimits
from everthread.compaction.cutting.permanent_messages import PermanentMessages
from everthread.compaction.cutting.pruning import Pruner, redact_message
from everthread.compaction.history.compaction_history import (
    CompactionHistory,
    MessageFacts,
)
from everthread.compaction.history.thread_state import ThreadState
from everthread.compaction.summary.earlier_summary import EarlierSummary
from everthread.compaction.summary.user_quotes import UserQuote
from everthread.core.messages import Message, Messages
from everthread.core.summary_marks import without_summary
from everthread.core.tokens import TokenCounter


@dataclass(frozen=True, slots=True)
class SummaryBudget:
    """The tokens for a summary message. The user's words get a share of their own."""

    limits: TokenLimits
    """The token limits of the request, after all reductions."""
    full_tokens: int
    """Tokens for the summary without the user's words, if the middle has enough text for it."""
    middle_tokens: int
    """Tokens that the summary replaces, the earlier summary included."""
    earlier_tokens: int
    """The part of `middle_tokens` that is the earlier summary."""
    user_words_tokens: int
    """Tokens of all of the user's words, unshortened."""
    max_user_words_tokens: int
    """Tokens that the user's words may take at most."""

    @property
    def max_tokens(self) -> int:
        """Tokens for the summary and the user's words: 80 % of the new text, plus the size of the earlier summary.

        If the earlier summary were also reduced to 80 %, every compaction would shorten the record of the oldest turns
        again.
        """
        new_tokens = self.middle_tokens - self.earlier_tokens
        return self.earlier_tokens + new_tokens * 8 // 10

    @property
    def tokens(self) -> int:
        """Tokens for the summary without the user's words, which are allotted first."""
        words_tokens = min(self.user_words_tokens, self.limits.user_words_tokens)
        minimum = min(self.full_tokens, self.middle_tokens // 5)
        return max(min(self.full_tokens, self.max_tokens - words_tokens), minimum)

    @property
    def min_user_words_tokens(self) -> int:
        """Tokens that the user's words get even if the summary is long."""
        return min(self.user_words_tokens * 21 // 20 + 10, self.limits.min_user_words_tokens)

    def count_tokens_for_user_words(self, used_tokens: int) -> int:
        """Return the tokens for the user's words beside a summary of `used_tokens`."""
        unused_tokens = max(self.limits.summary_tokens - used_tokens, 0)
        return min(
            self.limits.user_words_tokens + unused_tokens,
            self.max_user_words_tokens,
            self.max_tokens - used_tokens,
        )


@dataclass(frozen=True, slots=True)
class CutPlan:
    """A plan that divides a history into head, middle and tail."""

    history: CompactionHistory
    pruner: Pruner
    """Makes messages with old results as one line each."""
    earlier_summary: EarlierSummary
    cut: Cut
    permanent: PermanentMessages
    """Messages outside the conversation, which stay."""
    covered_indices: tuple[int, ...]
    """Indices of the messages that the new summary covers."""
    middle_messages: list[Message]
    """The covered messages, unpruned, without earlier summaries."""
    user_words: tuple[UserQuote, ...]
    """The user's messages outside head and tail, in order."""
    budget: SummaryBudget
    tokens_before: int
    """Tokens of the whole request before its compaction, by the local count."""
    provider_scale: float
    """Ratio of the provider's token count to the local one."""

    def list_covered_facts(self) -> list[MessageFacts]:
        """Return the covered messages as read. If an answer contains an earlier summary, only the answer's own part."""
        covered_facts: list[MessageFacts] = []
        for index in self.covered_indices:
            facts = self.history.facts[index]
            remainder = facts.without_summary
            if facts.is_summary and remainder and remainder["role"] == "assistant":
                facts = MessageFacts(remainder)
            covered_facts.append(facts)
        return covered_facts

    def list_covered_turns(self) -> list[int]:
        """Return the turns of the covered messages."""
        return [self.history.turns[index] for index in self.covered_indices]

    def add_tail(self, state: ThreadState) -> ThreadState:
        """Return the state of the thread after the messages of the tail, given the state before them."""
        start = self.cut.tail_start
        return state.after_messages(self.history.facts[start:], self.history.turns[start:])

    def prune_covered_messages(self) -> list[Message]:
        """Prune the covered messages for a model: old results become one line each.

        Secrets are redacted before anything is cut, because half a secret cannot be recognised.
        """
        messages = self.history.messages
        redacted_messages = {
            index: redact_message(messages[index]) for index in self.covered_indices
        }
        pruner = self.pruner
        if any(message is not messages[index] for index, message in redacted_messages.items()):
            clean_messages = [
                redacted_messages.get(index, message) for index, message in enumerate(messages)
            ]
            pruner = Pruner(CompactionHistory(clean_messages))
        pruned_messages = [pruner.prune_message(index) for index in self.covered_indices]
        return [without_summary(message) or message for message in pruned_messages]

    @property
    def has_work(self) -> bool:
        """Whether there is anything to replace or to make smaller."""
        return bool(self.covered_indices) or self.only_prunes

    @property
    def only_prunes(self) -> bool:
        """Whether the cut only prunes and summarises nothing.

        Old results in the kept messages become lines, oversized ones are stored and cited. An earlier summary stays
        unchanged.
        """
        if self.covered_indices:
            return False
        return bool(self.cut.to_store) or any(
            new is not old
            for new, old in zip(self.cut.messages, self.history.messages, strict=True)
        )

    def with_middle_kept(self) -> CutPlan:
        """Return a plan without a summary: the middle stays, its old results as one line each."""
        cut = self.cut
        middle = range(cut.head_end, cut.tail_start)
        messages = [*cut.messages]
        messages[cut.head_end : cut.tail_start] = map(self.pruner.prune_message, middle)
        cut_without_middle = replace(
            cut,
            tail_start=cut.head_end,
            pruned_indices=cut.pruned_indices.union(middle),
            kept_user_index=None,
            messages=messages,
        )
        return replace(self, cut=cut_without_middle, covered_indices=(), middle_messages=[])

    def count_request(
        self, messages: Messages, indices: Sequence[int | None], counter: TokenCounter
    ) -> int:
        """Count the tokens of a request with these messages, which have these indices in the input.

        Reuse the known sizes of unchanged and pruned messages.
        """
        total = self.cut.limits.fixed_tokens
        for message, index in zip(messages, indices, strict=True):
            if index is not None and message is self.history.messages[index]:
                total += self.history.sizes[index]
            elif index is not None and message is self.pruner.prune_message(index):
                total += self.pruner.count_tokens(index, counter)
            else:
                total += counter.message(message)
        return total
