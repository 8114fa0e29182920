"""Plan the cut of a history: the messages that a summary covers, and the tokens it may take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from everthread.compaction.compaction_result import Compaction, CompactionLevel, Phase
from everthread.compaction.cutting.boundaries import CutFitter
from everthread.compaction.cutting.cut import (
    Cut,
    FittedCut,
    TokenLimits,
    make_running_sizes,
)
from everthread.compaction.cutting.kept_messages import KeptMessages
from everthread.compaction.cutting.permanent_messages import (
    PermanentMessages,
    find_permanent_messages,
)
from everthread.compaction.cutting.pruning import Pruner, redact_message
from everthread.compaction.engine import Services
from everthread.compaction.history.compaction_history import (
    CompactionHistory,
    HistoryReader,
    MessageFacts,
    redact_user_words,
)
from everthread.compaction.planning_engine import CompactionInput
from everthread.compaction.summary.earlier_summary import EarlierSummary
from everthread.compaction.summary.user_quotes import (
    UserQuote,
    count_quote_tokens,
    make_user_quote,
)
from everthread.core.messages import Message, Messages, count_noun, text_of
from everthread.core.summary_marks import without_summary
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


@dataclass(frozen=True, slots=True)
class CutPlan:
    """A plan that divides a history into head, middle and tail, and limits the tokens of the summary."""

    history: CompactionHistory
    pruner: Pruner
    """Makes messages with old results as one line each."""
    earlier_summary: EarlierSummary
    fitted_cut: FittedCut
    permanent: PermanentMessages
    """Messages outside the conversation, which stay."""
    covered: tuple[int, ...]
    """Indices of the messages that the new summary covers."""
    middle_messages: list[Message]
    """The covered messages, unpruned, without earlier summaries."""
    user_words: tuple[UserQuote, ...]
    """The user's messages outside head and tail, in order."""
    user_words_tokens: int
    """Tokens of `user_words`, unshortened."""
    max_user_words_tokens: int
    """Tokens that the user's words may take at most."""
    tokens_before: int
    """Tokens of the whole request, by the local count."""
    provider_scale: float
    """Ratio of the provider's token count to the local one."""
    fixed_tokens: int
    """Tokens of system prompt and tools."""
    middle_tokens: int
    """Tokens that the summary replaces, the earlier summary included."""
    earlier_tokens: int
    """The part of `middle_tokens` that is the earlier summary."""
    pruned_tail_tokens: int
    """Tokens of the tail messages whose results are one line each."""
    full_summary_budget: int
    """Tokens for the summary without the user's words, if the middle has enough text for it."""

    @property
    def messages(self) -> list[Message]:
        """The input."""
        return self.history.messages

    @property
    def turns(self) -> list[int]:
        """The number of the user message that each message belongs to."""
        return self.history.turns

    @property
    def facts(self) -> list[MessageFacts]:
        """Facts of the covered messages. Of an answer with an earlier summary in it, only those of the answer."""
        covered_facts = map(self.history.facts.__getitem__, self.covered)
        return [
            MessageFacts(message_facts.without_summary)
            if message_facts.is_summary
            and message_facts.without_summary
            and message_facts.without_summary["role"] == "assistant"
            else message_facts
            for message_facts in covered_facts
        ]

    @property
    def tail_facts_and_turns(self) -> tuple[list[MessageFacts], list[int]]:
        """The facts of the messages in the tail, and their turns."""
        start = self.cut.tail_start
        return self.history.facts[start:], self.history.turns[start:]

    @property
    def covered_turns(self) -> list[int]:
        """The turns of the covered messages."""
        return list(map(self.history.turns.__getitem__, self.covered))

    @property
    def pruned(self) -> list[Message]:
        """The covered messages for a model: old results are one line each.

        Secrets are redacted before anything is cut, because half a secret cannot be recognised.
        """
        redacted_messages = {
            index: redact_message(self.messages[index]) for index in self.covered
        }
        pruner = self.pruner
        if any(
            message is not self.messages[index]
            for index, message in redacted_messages.items()
        ):
            messages = [
                redacted_messages.get(index, message)
                for index, message in enumerate(self.messages)
            ]
            pruner = Pruner(CompactionHistory([]).extend(messages))
        return [
            without_summary(message) or message
            for message in map(pruner.pruned_message, self.covered)
        ]

    @property
    def cut(self) -> Cut:
        return self.fitted_cut.cut

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
            for new, old in zip(self.fitted_cut.messages, self.messages, strict=True)
        )

    def with_middle_kept(self) -> CutPlan:
        """Return a plan without a summary: the middle stays, its old results as one line each."""
        return replace(
            self,
            fitted_cut=self.fitted_cut.with_middle_kept(self.pruner),
            covered=(),
            middle_messages=[],
        )

    @property
    def covered_message_count(self) -> int:
        """The number of messages that the new summary covers, including those of the earlier summary."""
        return self.earlier_summary.message_count + len(self.covered)

    @property
    def max_summary_tokens(self) -> int:
        """Tokens for the summary and the user's words: 80 % of the new text, plus the size of the earlier summary.

        If the earlier summary were also reduced to 80 %, every compaction would shorten the record of the oldest turns
        again.
        """
        new_tokens = self.middle_tokens - self.earlier_tokens
        return self.earlier_tokens + new_tokens * 8 // 10

    @property
    def summary_budget(self) -> int:
        """Tokens for the summary without the user's words, which are allotted first."""
        minimum = min(self.full_summary_budget, self.middle_tokens // 5)
        return max(
            min(
                self.full_summary_budget,
                self.max_summary_tokens
                - min(self.user_words_tokens, self.fitted_cut.limits.user_words_tokens),
            ),
            minimum,
        )

    @property
    def min_user_words_tokens(self) -> int:
        """Tokens that the user's words get even if the summary is long."""
        return min(
            self.user_words_tokens * 21 // 20 + 10,
            self.fitted_cut.limits.min_user_words_tokens,
        )

    def user_words_budget(self, used_tokens: int) -> int:
        """Return the tokens for the user's words beside a summary of `used_tokens`."""
        unused_tokens = max(self.fitted_cut.limits.summary_tokens - used_tokens, 0)
        return min(
            self.fitted_cut.limits.user_words_tokens + unused_tokens,
            self.max_user_words_tokens,
            self.max_summary_tokens - used_tokens,
        )

    def count_tokens(
        self, messages: Messages, indices: Sequence[int | None], counter: TokenCounter
    ) -> int:
        """Count the tokens of messages that have these indices in the input.

        Reuse the known sizes of unchanged and pruned messages.
        """
        total = 0
        for message, index in zip(messages, indices, strict=True):
            if index is not None and message is self.messages[index]:
                total += self.history.sizes[index]
            elif index is not None and message is self.pruner.pruned_message(index):
                total += self.pruner.count_tokens(index, counter)
            else:
                total += counter.message(message)
        return total

    def explain_no_work(self, budget: Budget) -> str:
        """Return the reason why nothing can be replaced."""
        is_short = self.tokens_before < budget.threshold
        explanation = (
            "the conversation is too short to compact"
            if is_short
            else "there is nothing that may be left out"
        )
        return (
            f"{explanation}: {count_noun(len(self.messages), 'message')}, all kept at the start and at the end "
            f"({self.tokens_before:,} tokens, in a window of {budget.window:,})"
        )

    def make_unchanged_result(self, reason: str) -> Compaction:
        """Return the input as the result, with the reason why nothing changed."""
        return Compaction(
            messages=self.messages,
            summary="",
            tokens_before=self.tokens_before,
            tokens_after=self.tokens_before,
            kept=tuple(range(len(self.messages))),
            changed=False,
            reason=reason,
        )

    def make_pruned_result(self) -> Compaction:
        """Return the messages pruned in place, as a result without a summary."""
        return replace(
            self.make_unchanged_result(""),
            messages=self.fitted_cut.messages,
            changed=True,
            author="none",
            to_store=self.fitted_cut.to_store,
            boundaries=self.cut.reasons,
            steps=self.fitted_cut.steps,
        )

    def accept_if_smaller(
        self, result: Compaction, tokens_after: int, reason: str
    ) -> Compaction:
        """Return the result with its sizes as the provider counts; return the input if the result is not smaller."""
        if tokens_after >= self.tokens_before:
            explanation = f"the result would not be smaller ({self.tokens_before:,} -> {tokens_after:,} tokens)"
            return replace(
                self.make_unchanged_result(explanation),
                warnings=result.warnings,
                usage=result.usage,
            )
        return replace(
            result,
            tokens_before=round(self.tokens_before * self.provider_scale),
            tokens_after=round(tokens_after * self.provider_scale),
            reason=reason,
        )

    def phases(self, summary_tokens: int) -> tuple[Phase, ...]:
        """Return the tokens before and after each phase, for a report."""
        cut = self.cut
        kept_tokens = self.tokens_before - self.fixed_tokens - self.middle_tokens
        unpruned_tokens = sum(self.history.sizes[index] for index in cut.pruned_indices)
        note = f"{len(cut.pruned_indices)} messages of the tail with results as one line each"
        boundaries = f"head {cut.head_end}, tail from {cut.tail_start}"
        return (
            Phase("prune", unpruned_tokens, self.pruned_tail_tokens, note),
            Phase(
                "boundaries",
                self.tokens_before,
                self.fixed_tokens + kept_tokens,
                boundaries,
            ),
            Phase(
                "summarise",
                self.middle_tokens,
                summary_tokens,
                f"within {self.full_summary_budget:,} tokens, the user's words apart",
            ),
        )


def name_trigger(*, manual: bool, level: CompactionLevel) -> str:
    """Return the trigger of a compaction: `manual`, `overflow` or `automatic`."""
    if manual:
        return "manual"
    return "overflow" if level > CompactionLevel.NORMAL else "automatic"


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
        provider_scale = (
            min(max(reported_tokens / tokens_before, 0.5), 2.0)
            if reported_tokens and tokens_before
            else 1.0
        )
        word_entries = self._find_user_words()
        earlier_tokens = sum(
            count_quote_tokens(entry, self.counter.text)
            for entry in self.earlier_summary.quotes
        )
        word_sizes = make_running_sizes(
            ((index, tokens) for index, (_, tokens) in word_entries.items()),
            initial=earlier_tokens,
        )
        limits = self._make_limits(tokens_before, provider_scale)
        pruner = Pruner(history)
        permanent = find_permanent_messages(history)
        kept = KeptMessages(pruner, self.counter, permanent)
        fitter = CutFitter(kept, limits, word_sizes)
        fitted_cut = self._keep_small_middle(fitter.fit(level), pruner)
        cut = fitted_cut.cut
        middle = self._find_middle(cut, permanent)
        middle_tokens = self._count_middle(middle)
        middle_words = (
            entry
            for index, (entry, _) in word_entries.items()
            if cut.head_end <= index < cut.tail_start
        )
        return CutPlan(
            history=history,
            pruner=pruner,
            earlier_summary=self.earlier_summary,
            fitted_cut=fitted_cut,
            permanent=permanent,
            covered=tuple(middle),
            middle_messages=list(middle.values()),
            user_words=(*self.earlier_summary.quotes, *middle_words),
            user_words_tokens=word_sizes.sum_before(cut.tail_start),
            max_user_words_tokens=limits.user_words_tokens,
            tokens_before=tokens_before,
            provider_scale=provider_scale,
            fixed_tokens=self.fixed_tokens,
            middle_tokens=middle_tokens,
            earlier_tokens=self.counter.text(self.earlier_summary.text),
            pruned_tail_tokens=sum(
                pruner.count_tokens(index, self.counter) for index in cut.pruned_indices
            ),
            full_summary_budget=self._summary_budget(
                middle, fitted_cut, middle_tokens=middle_tokens
            ),
        )

    def _find_user_words(self) -> UserWordEntries:
        """Return the user's words after the head, including words typed into tool calls, except the latest message."""
        history = self.history
        facts = history.facts
        indices = [
            index for index in history.user_indices[:-1] if index >= history.head_end
        ]
        redact_user_words(facts[index] for index in indices)
        entries = {
            index: facts[index].make_quote(history.turns[index], self.counter)
            for index in indices
        }
        replies: UserWordEntries = {}
        for index, calls in history.answered_calls.items():
            words = (
                facts[index].find_typed_words(calls)
                if index >= history.head_end
                else ""
            )
            if words:
                entry = make_user_quote(history.turns[index], words)
                replies[index] = entry, count_quote_tokens(entry, self.counter.text)
        return dict(sorted((entries | replies).items())) if replies else entries

    def _make_limits(self, tokens_before: int, provider_scale: float) -> TokenLimits:
        """Return the limits for a prompt of `tokens_before` tokens.

        The summary's size depends on the middle, which is not known before the cut. So the limits allow for the largest
        possible summary.
        """
        budget = self.budget
        usual_tokens = min(
            budget.summary_max, max(tokens_before - self.fixed_tokens, 0) // 2
        )
        return TokenLimits(
            tail_tokens=int(budget.tail_tokens / provider_scale),
            protect_last_n=budget.protect_last_n,
            target_tokens=int(budget.compacted_limit / provider_scale),
            max_tokens=int(budget.threshold / provider_scale),
            max_prompt_tokens=int(budget.prompt_limit / provider_scale),
            fixed_tokens=self.fixed_tokens,
            summary_tokens=max(
                usual_tokens,
                min(
                    self._needed_tokens(
                        facts.without_summary for facts in self.history.facts
                    ),
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

    def _keep_small_middle(self, fitted_cut: FittedCut, pruner: Pruner) -> FittedCut:
        """Return the cut, without a middle if that is too small for a first summary."""
        if self.earlier_summary.text or not self.history.head_end:
            return fitted_cut
        middle_tokens = sum(
            self.history.sizes[fitted_cut.cut.head_end : fitted_cut.cut.tail_start]
        )
        if middle_tokens < min(MIN_MIDDLE_TOKENS, self.budget.threshold // 10):
            return fitted_cut.with_middle_kept(pruner)
        return fitted_cut

    def _find_middle(
        self, cut: Cut, permanent: PermanentMessages
    ) -> dict[int, Message]:
        """Return the messages that the summary replaces, by index, without earlier summaries."""
        excluded_indices = permanent.standalone_indices | {cut.kept_user_index}
        facts = self.history.facts
        return {
            index: message
            for index in range(cut.head_end, cut.tail_start)
            if index not in excluded_indices
            and (message := facts[index].without_summary) is not None
        }

    def _summary_budget(
        self,
        middle: Mapping[int, Message],
        fitted_cut: FittedCut,
        *,
        middle_tokens: int,
    ) -> int:
        """Return the tokens for a summary of this middle. `middle_tokens`: its size with the earlier summary.

        The summary gets a share of the tokens that the other parts leave free, up to half of the replaced text. If
        possible, it gets enough tokens to keep its content, because a conclusion that one compaction drops is lost for
        all later ones. The content of the earlier summary is not halved again.
        """
        limits = fitted_cut.limits
        largest_size = (
            max(limits.target_tokens - fitted_cut.cut.tokens, 0) + limits.summary_tokens
        )
        usual_size = min(self.budget.summary_size(middle_tokens), limits.summary_tokens)
        free_tokens = (
            largest_size - min(limits.summary_tokens, limits.usual_summary_tokens)
        ) // FREE_TOKENS_DIVISOR
        new_tokens = middle_tokens - self.counter.text(self.earlier_summary.text)
        needed_tokens = min(
            self._needed_tokens(middle.values()), self._earlier_tokens + new_tokens // 2
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
        return self._earlier_tokens + sum(map(len, texts)) // ANSWER_CHARS_PER_TOKEN

    @cached_property
    def _earlier_tokens(self) -> int:
        """Tokens of the earlier summary without the user's words."""
        words = sum(
            count_quote_tokens(entry, self.counter.text)
            for entry in self.earlier_summary.quotes
        )
        return max(self.counter.text(self.earlier_summary.text) - words, 0)

    def _count_middle(self, middle: Mapping[int, Message]) -> int:
        """Return the tokens that the summary replaces, the earlier summary included."""
        sizes = self.history.sizes
        tokens = (
            self.counter.text(self.earlier_summary.text)
            if self.earlier_summary.text
            else 0
        )
        for index, message in middle.items():
            is_merged = self.history.facts[index].is_summary
            tokens += self.counter.message(message) if is_merged else sizes[index]
        return tokens


def plan_cut(
    compaction_input: CompactionInput,
    earlier_summary: EarlierSummary,
    services: Services,
    reader: HistoryReader,
) -> CutPlan:
    """Plan the cut, so that head, summary and tail fit."""
    counter = services.counter
    history = reader.read(
        compaction_input.messages, counter, earlier_summary.last_covered_turns
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
