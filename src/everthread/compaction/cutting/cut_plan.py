"""The plan of a compaction: the messages that a summary covers, the messages that stay, and the tokens it may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from everthread.compaction.cutting.cut import Cut, FittedCut, TokenLimits
from everthread.compaction.cutting.permanent_messages import PermanentMessages
from everthread.compaction.cutting.pruning import Pruner, redact_message
from everthread.compaction.history.compaction_history import (
    CompactionHistory,
    MessageFacts,
)
from everthread.compaction.summary.earlier_summary import EarlierSummary
from everthread.compaction.summary.user_quotes import UserQuote
from everthread.core.messages import Message, Messages
from everthread.core.summary_marks import without_summary
from everthread.core.tokens import TokenCounter


@dataclass(frozen=True, slots=True)
class RequestSize:
    """The size of a request before its compaction."""

    tokens: int
    """Tokens of the whole request, by the local count."""
    fixed_tokens: int
    """Tokens of system prompt and tools."""
    provider_scale: float
    """Ratio of the provider's token count to the local one."""


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
    fitted_cut: FittedCut
    permanent: PermanentMessages
    """Messages outside the conversation, which stay."""
    covered_indices: tuple[int, ...]
    """Indices of the messages that the new summary covers."""
    middle_messages: list[Message]
    """The covered messages, unpruned, without earlier summaries."""
    user_words: tuple[UserQuote, ...]
    """The user's messages outside head and tail, in order."""
    budget: SummaryBudget
    size: RequestSize

    @property
    def cut(self) -> Cut:
        return self.fitted_cut.cut

    @property
    def facts(self) -> list[MessageFacts]:
        """The covered messages as read. If an answer contains an earlier summary, only the answer's own part."""
        facts: list[MessageFacts] = []
        for index in self.covered_indices:
            message_facts = self.history.facts[index]
            remainder = message_facts.without_summary
            if message_facts.is_summary and remainder and remainder["role"] == "assistant":
                message_facts = MessageFacts(remainder)
            facts.append(message_facts)
        return facts

    @property
    def tail_facts_and_turns(self) -> tuple[list[MessageFacts], list[int]]:
        """The facts of the messages in the tail, and their turns."""
        start = self.cut.tail_start
        return self.history.facts[start:], self.history.turns[start:]

    @property
    def covered_turns(self) -> list[int]:
        """The turns of the covered messages."""
        return list(map(self.history.turns.__getitem__, self.covered_indices))

    @property
    def pruned_messages(self) -> list[Message]:
        """The covered messages for a model: old results are one line each.

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
        return [
            without_summary(message) or message
            for message in map(pruner.pruned_message, self.covered_indices)
        ]

    @property
    def has_work(self) -> bool:
        """Whether there is anything to replace or to make smaller."""
        return self.cut.has_middle or self.only_prunes

    @property
    def only_prunes(self) -> bool:
        """Whether the cut only prunes and summarises nothing.

        Old results in the kept messages become lines, oversized ones are stored and cited. An earlier summary stays
        unchanged.
        """
        if self.cut.has_middle:
            return False
        return bool(self.fitted_cut.to_store) or any(
            new is not old
            for new, old in zip(self.fitted_cut.messages, self.history.messages, strict=True)
        )

    def with_middle_kept(self) -> CutPlan:
        """Return a plan without a summary: the middle stays, its old results as one line each."""
        return replace(
            self,
            fitted_cut=self.fitted_cut.with_middle_kept(self.pruner),
            covered_indices=(),
            middle_messages=[],
        )

    def count_tokens(
        self, messages: Messages, indices: Sequence[int | None], counter: TokenCounter
    ) -> int:
        """Count the tokens of messages that have these indices in the input.

        Reuse the known sizes of unchanged and pruned messages.
        """
        total = 0
        for message, index in zip(messages, indices, strict=True):
            if index is not None and message is self.history.messages[index]:
                total += self.history.sizes[index]
            elif index is not None and message is self.pruner.pruned_message(index):
                total += self.pruner.count_tokens(index, counter)
            else:
                total += counter.message(message)
        return total
