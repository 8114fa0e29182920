"""The tokens that a summary may take, and the user's words in it."""

from __future__ import annotations

from dataclasses import dataclass

from everthread.compaction.cutting.cut import TokenLimits


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
