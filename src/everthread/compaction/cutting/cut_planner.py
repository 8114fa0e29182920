"""Plan the cut of a history: divide it into head, middle and tail, so that head, summary and tail fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from everthread.compaction.compaction_result import CompactionLevel
from everthread.compaction.cutting.cut import (
    Cut,
    TokenLimits,
    make_running_sizes,
)
from everthread.compaction.cutting.cut_fitter import CutFitter
from everthread.compaction.cutting.cut_plan import CutPlan, SummaryBudget
from everthread.compaction.cutting.kept_messages import KeptMessages
from everthread.compaction.cutting.permanent_messages import (
    PermanentMessages,
    find_permanent_messages,
)
from everthread.compaction.cutting.pruning import Pruner
from everthread.compaction.engine import Services
from everthread.compaction.engine_input import CompactionInput
from everthread.compaction.history.compaction_history import (
    CompactionHistory,
)
from everthread.compaction.summary.earlier_summary import EarlierSummary
from everthread.compaction.summary.user_quotes import (
    UserQuote,
    count_quote_tokens,
    make_user_quote,
)
from everthread.core.messages import Message, text_of
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget

MIN_MIDDLE_TOKENS = 300
"""A middle of fewer tokens is kept, because its summary would be larger."""
SUMMARY_DIVISOR = 4
"""To keep its content, a summary may exceed its usual size, at the cost of the tail, up to the threshold divided by
this."""
ANSWER_CHARS_PER_TOKEN = 2
"""Characters of an answer per token of its summary, actions and names included."""
FREE_TOKENS_DIVISOR = 2
"""The summary gets the tokens that the other parts leave free, divided by this."""


UserWordEntries = dict[int, tuple[UserQuote, int]]
"""The user's words by the index of their message, each with its tokens."""


@dataclass(frozen=True)
class CutPlanner:
    """A planner for the cut of one history."""

    history: CompactionHistory
    earlier_summary: EarlierSummary
    budget: Budget
    counter: TokenCounter
    fixed_tokens: int
    """Tokens of system prompt and tools."""

    def plan(self, level: CompactionLevel, reported_tokens: int | None) -> CutPlan:
        """Plan the cut. `reported_tokens`: the provider's count for this prompt."""
        history = self.history
        tokens_before = self.fixed_tokens + sum(history.sizes)
        provider_scale = 1.0
        if reported_tokens and tokens_before:
            provider_scale = min(max(reported_tokens / tokens_before, 0.5), 2.0)
        word_entries = self._find_user_words()
        word_sizes = make_running_sizes(
            ((index, tokens) for index, (_, tokens) in word_entries.items()),
            initial=self._earlier_quote_tokens,
        )
        limits = self._make_limits(tokens_before, provider_scale)
        pruner = Pruner(history)
        permanent = find_permanent_messages(history)
        kept = KeptMessages(pruner, self.counter, permanent, user_words_sizes=word_sizes)
        cut = CutFitter(kept, limits, level).fit()
        middle = self._find_middle(cut, permanent)
        middle_tokens = self._count_middle(middle)
        middle_words = (
            entry
            for index, (entry, _) in word_entries.items()
            if cut.head_end <= index < cut.tail_start
        )
        plan = CutPlan(
            history=history,
            pruner=pruner,
            earlier_summary=self.earlier_summary,
            cut=cut,
            permanent=permanent,
            covered_indices=tuple(middle),
            middle_messages=list(middle.values()),
            user_words=(*self.earlier_summary.quotes, *middle_words),
            budget=SummaryBudget(
                limits=cut.limits,
                full_tokens=self._compute_full_budget(middle, cut, middle_tokens=middle_tokens),
                middle_tokens=middle_tokens,
                earlier_tokens=self._earlier_summary_tokens,
                user_words_tokens=word_sizes.sum_before(cut.tail_start),
                max_user_words_tokens=limits.user_words_tokens,
            ),
            tokens_before=tokens_before,
            provider_scale=provider_scale,
        )
        return plan.with_middle_kept() if self._is_middle_too_small(cut) else plan

    def _find_user_words(self) -> UserWordEntries:
        """Return the user's words after the head, including words typed into tool calls, except the latest message."""
        history = self.history
        indices = [index for index in history.user_indices[:-1] if index >= history.head_end]
        words_by_index = {index: history.facts[index].redacted_words for index in indices}
        words_by_index |= {
            index: words
            for index, words in history.typed_words.items()
            if index >= history.head_end
        }
        entries: UserWordEntries = {}
        for index, words in sorted(words_by_index.items()):
            entry = make_user_quote(history.turns[index], words)
            entries[index] = entry, count_quote_tokens(entry, self.counter.text)
        return entries

    def _make_limits(self, tokens_before: int, provider_scale: float) -> TokenLimits:
        """Return the limits for a prompt of `tokens_before` tokens.

        The summary's size depends on the middle, which is not known before the cut. So the limits allow for the largest
        possible summary.
        """
        budget = self.budget
        usual_tokens = min(budget.summary_max, max(tokens_before - self.fixed_tokens, 0) // 2)
        return TokenLimits(
            tail_tokens=int(budget.tail_tokens / provider_scale),
            protect_last_n=budget.protect_last_n,
            target_tokens=int(budget.max_compacted_tokens / provider_scale),
            max_tokens=int(budget.threshold / provider_scale),
            max_prompt_tokens=int(budget.prompt_limit / provider_scale),
            fixed_tokens=self.fixed_tokens,
            summary_tokens=max(
                usual_tokens,
                min(
                    self._needed_tokens(facts.without_summary for facts in self.history.facts),
                    budget.threshold // SUMMARY_DIVISOR,
                ),
            ),
            usual_summary_tokens=usual_tokens,
            min_summary_tokens=min(budget.summary_min, usual_tokens),
            user_words_tokens=int(budget.user_words_tokens / provider_scale),
            min_user_words_tokens=int(
                min(budget.threshold // 10, budget.user_words_tokens) / provider_scale
            ),
        )

    def _is_middle_too_small(self, cut: Cut) -> bool:
        """Return whether the middle is too small for a first summary."""
        if self.earlier_summary.text or not self.history.head_end:
            return False
        middle_tokens = sum(self.history.sizes[cut.head_end : cut.tail_start])
        return middle_tokens < min(MIN_MIDDLE_TOKENS, self.budget.threshold // 10)

    def _find_middle(self, cut: Cut, permanent: PermanentMessages) -> dict[int, Message]:
        """Return the messages that the summary replaces, by index, without earlier summaries."""
        excluded_indices = permanent.standalone_indices | {cut.kept_user_index}
        facts = self.history.facts
        return {
            index: message
            for index in range(cut.head_end, cut.tail_start)
            if index not in excluded_indices
            and (message := facts[index].without_summary) is not None
        }

    def _compute_full_budget(
        self, middle: Mapping[int, Message], cut: Cut, *, middle_tokens: int
    ) -> int:
        """Return the tokens for a summary of this middle. `middle_tokens`: its size with the earlier summary.

        The summary gets a share of the tokens that the other parts leave free, up to half of the replaced text. If
        possible, it gets enough tokens to keep its content, because a conclusion that one compaction drops is lost for
        all later ones. The content of the earlier summary is not halved again.
        """
        limits = cut.limits
        largest_size = max(limits.target_tokens - cut.request_tokens, 0) + limits.summary_tokens
        usual_size = min(self.budget.summary_size(middle_tokens), limits.summary_tokens)
        free_tokens = (
            largest_size - min(limits.summary_tokens, limits.usual_summary_tokens)
        ) // FREE_TOKENS_DIVISOR
        new_tokens = middle_tokens - self._earlier_summary_tokens
        needed_tokens = min(
            self._needed_tokens(middle.values()),
            self._earlier_content_tokens + new_tokens // 2,
        )
        return max(
            usual_size,
            min(usual_size + free_tokens, middle_tokens // 2),
            min(needed_tokens, largest_size),
        )

    def _needed_tokens(self, messages: Iterable[Message | None]) -> int:
        """Estimate the tokens that it takes to keep the earlier summary and the content of these answers."""
        texts = (
            text_of(message)
            for message in messages
            if message is not None and message["role"] == "assistant"
        )
        return self._earlier_content_tokens + sum(map(len, texts)) // ANSWER_CHARS_PER_TOKEN

    @cached_property
    def _earlier_summary_tokens(self) -> int:
        return self.counter.text(self.earlier_summary.text)

    @cached_property
    def _earlier_quote_tokens(self) -> int:
        return sum(
            count_quote_tokens(entry, self.counter.text) for entry in self.earlier_summary.quotes
        )

    @property
    def _earlier_content_tokens(self) -> int:
        """Tokens of the earlier summary without the user's words."""
        return max(self._earlier_summary_tokens - self._earlier_quote_tokens, 0)

    def _count_middle(self, middle: Mapping[int, Message]) -> int:
        """Return the tokens that the summary replaces, the earlier summary included."""
        sizes = self.history.sizes
        tokens = self._earlier_summary_tokens
        for index, message in middle.items():
            is_merged = self.history.facts[index].is_summary
            tokens += self.counter.message(message) if is_merged else sizes[index]
        return tokens


def plan_cut(
    compaction_input: CompactionInput,
    earlier_summary: EarlierSummary,
    services: Services,
) -> CutPlan:
    """Plan the cut, so that head, summary and tail fit."""
    counter = services.counter
    messages = list(compaction_input.messages)
    history = CompactionHistory(
        messages,
        sizes=[counter.message(message) for message in messages],
        last_covered_turns=earlier_summary.last_covered_turns,
    )
    fixed_tokens = counter.request(
        (), system=compaction_input.system, tools=list(compaction_input.tools or ())
    )
    planner = CutPlanner(
        history,
        earlier_summary,
        services.budget,
        counter=counter,
        fixed_tokens=fixed_tokens,
    )
    return planner.plan(compaction_input.level, compaction_input.current_tokens)
