"""Cut a history into the head that is kept, the middle that is replaced, and the tail that is kept.

A cut never separates tool calls from their results. An earlier summary is always replaced; the latest user message and
the unanswered group always stay. If the kept messages are too large, they are reduced step by step, and every step is
reported.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from everthread.compaction.compaction_result import CompactionLevel
from everthread.compaction.cutting.cut import Cut, Tail, TokenLimits
from everthread.compaction.cutting.kept_messages import KeptMessages
from everthread.compaction.cutting.pruning import prune_messages
from everthread.compaction.cutting.shortening import (
    MIN_RESULT_TOKENS,
    ShortenedMessage,
    cut_text,
)
from everthread.compaction.cutting.tail import choose_tail, explain_cut, make_smallest_tail
from everthread.core.equal_shares import find_largest_equal_share
from everthread.core.messages import SYSTEM_ROLES
from everthread.core.text import count_noun
from everthread.core.tool_outputs import OutputToStore

HEAD_MESSAGE_DIVISOR = 4
"""A head message larger than the threshold divided by this is cut to half of that, unless it is the latest."""
MIN_SUMMARY_TOKENS = 400
"""Tokens kept for a summary beside a user message that nearly fills the window."""


class Reduction(Enum):
    """A kind of reduction, with the phrase that describes it in the report."""

    HEAD_MESSAGES_CUT = "stored the middle of oversized messages at the start"
    TAIL_HALVED = "protected no last messages and halved the tail to {tokens:,} tokens"
    USER_WORDS_LIMITED = "left {tokens:,} tokens for the user's words"
    SUMMARY_LIMITED = "left {tokens:,} tokens for the summary"
    RESULTS_CUT = "cut {results} of the tail to {tokens:,} tokens each"
    ARGUMENTS_CUT = "cut long arguments and images of the tail"
    LATEST_GROUP_KEPT = "kept only the latest group"
    TAIL_DROPPED = "kept no tail: even the latest message is too large"
    USER_MESSAGES_CUT = "stored the middle of oversized user messages"


class ReductionStep(NamedTuple):
    """A reduction that was needed, with its figures."""

    reduction: Reduction
    tokens: int = 0
    """The tokens that were left."""
    result_count: int = 0
    """The number of results that were cut."""

    def render(self) -> str:
        """Return the step as a phrase for the report."""
        results = count_noun(self.result_count, "oversized tool result")
        return self.reduction.value.format(tokens=self.tokens, results=results)


class CutFitter:
    """Cuts a history so that the kept messages fit, and gives up no more than necessary."""

    def __init__(self, kept: KeptMessages, limits: TokenLimits, level: CompactionLevel) -> None:
        self._kept = kept
        self._limits = limits
        self._level = level
        self._tail = make_smallest_tail(kept, limits)
        self._steps: list[ReductionStep] = []
        """The reductions so far, in order."""

    def fit(self) -> Cut:
        """Choose the largest tail that the level allows, reduce what is kept as far as needed, and return the cut.

        The results of the latest group are cut before anything else is given up. They are cut again later, because
        their shares depend on the tail and on the limits, which the steps in between change.
        """
        self._cut_large_head_messages()
        if self._level > CompactionLevel.NORMAL:
            self._halve_tail()
        self._choose_tail()
        self._cut_latest_results(self._limits.tail_tokens)
        self._shorten_arguments()
        self._shrink_large_summary()
        self._halve_large_tail()
        self._lower_user_words_limit(
            self._limits.target_tokens, minimum=self._limits.min_user_words_tokens
        )
        self._lower_summary_limit(
            self._limits.target_tokens, minimum=self._limits.min_summary_tokens
        )
        self._cut_latest_results(self._limits.tail_tokens)
        self._keep_latest_group()
        self._cut_latest_results_as_last_resort()
        self._drop_oversized_answer()
        self._cut_user_messages()
        return self._make_cut()

    @property
    def _request_tokens(self) -> int:
        """The size of the compacted request, as far as it is reduced."""
        return self._kept.count_request(self._limits, self._tail.start, self._tail.tokens)

    @property
    def _exceeds_target(self) -> bool:
        return self._request_tokens > self._limits.target_tokens

    def _choose_tail(self) -> None:
        """Choose the tail under the current limits."""
        if self._level == CompactionLevel.LATEST_GROUP:
            self._tail = make_smallest_tail(self._kept, self._limits)
        else:
            self._tail = choose_tail(self._kept, self._limits)

    def _recount_tail(self) -> None:
        """Count the tail again, after messages of it changed."""
        self._tail.tokens = self._kept.count_tail(self._tail)

    def _make_cut(self) -> Cut:
        """Return the cut with its messages pruned and shortened, and the texts to store for them."""
        kept = self._kept
        tail = self._tail
        kept_user_index = kept.find_user_before_tail(tail.start)
        messages = [*kept.history.messages]
        outputs: dict[int, tuple[OutputToStore, ...]] = {}
        indices = [*range(kept.head_end), *range(tail.start, len(messages))]
        if kept_user_index is not None:
            indices.append(kept_user_index)
        for index in indices:
            if index in tail.pruned_indices:
                messages[index] = kept.pruner.prune_message(index)
            elif index in tail.result_limits:
                shortened, _ = kept.cut_results_to(index, tail.result_limits[index])
                messages[index] = shortened.message
                outputs[index] = shortened.outputs_to_store
            else:
                messages[index] = kept.messages[index]
                outputs[index] = kept.outputs_to_store.get(index, ())
        return Cut(
            head_end=kept.head_end,
            tail_start=tail.start,
            pruned_indices=frozenset(tail.pruned_indices),
            kept_user_index=kept_user_index,
            messages=messages,
            to_store=tuple(output for index in sorted(outputs) for output in outputs[index]),
            limits=self._limits,
            request_tokens=self._request_tokens,
            reasons=explain_cut(kept, self._limits, tail),
            steps=tuple(step.render() for step in self._steps),
        )

    def _cut_large_head_messages(self) -> None:
        """Cut large messages of the head, except system messages and the latest user message."""
        kept = self._kept
        limit = self._limits.max_tokens // HEAD_MESSAGE_DIVISOR
        for index in range(kept.head_end):
            message = kept.messages[index]
            is_fixed = index == kept.latest_user_index or message.get("role") in SYSTEM_ROLES
            if kept.sizes[index] > limit and not is_fixed:
                kept.replace_message(index, cut_text(index, message, limit // 2, kept.counter))
        if kept.outputs_to_store:
            self._steps.append(ReductionStep(Reduction.HEAD_MESSAGES_CUT))

    def _halve_tail(self) -> None:
        """Halve the tail budget and protect no last messages."""
        tail_tokens = self._limits.tail_tokens // 2
        self._limits = replace(self._limits, protect_last_n=0, tail_tokens=tail_tokens)
        self._steps.append(ReductionStep(Reduction.TAIL_HALVED, tail_tokens))

    def _halve_large_tail(self) -> None:
        """Halve the tail if the request is too large, unless the level has halved it already."""
        if self._exceeds_target and self._level == CompactionLevel.NORMAL:
            self._halve_tail()
            self._choose_tail()
            self._cut_latest_results(self._limits.tail_tokens)

    def _shrink_large_summary(self) -> None:
        """Lower the limit of a summary that is larger than usual if the request is too large."""
        limits = self._limits
        if limits.summary_tokens <= limits.usual_summary_tokens or not self._exceeds_target:
            return
        excess = self._request_tokens - limits.target_tokens
        summary_tokens = max(limits.summary_tokens - excess, limits.usual_summary_tokens)
        self._limits = replace(limits, summary_tokens=summary_tokens)
        self._choose_tail()
        self._cut_latest_results(limits.tail_tokens)

    def _lower_user_words_limit(self, max_tokens: int, *, minimum: int) -> None:
        """Lower the limit of the user's words to this minimum at most, until the cut is within `max_tokens`."""
        used_tokens = self._kept.count_user_words(self._limits, self._tail.start)
        reduction = min(self._request_tokens - max_tokens, used_tokens - minimum)
        if reduction > 0:
            tokens = used_tokens - reduction
            self._limits = replace(self._limits, user_words_tokens=tokens)
            self._steps.append(ReductionStep(Reduction.USER_WORDS_LIMITED, tokens))

    def _lower_summary_limit(self, max_tokens: int, *, minimum: int) -> None:
        """Lower the limit of the summary to this minimum at most, until the cut is within `max_tokens`."""
        reduction = min(self._request_tokens - max_tokens, self._limits.summary_tokens - minimum)
        if reduction > 0:
            tokens = self._limits.summary_tokens - reduction
            self._limits = replace(self._limits, summary_tokens=tokens)
            self._steps.append(ReductionStep(Reduction.SUMMARY_LIMITED, tokens))

    def _cut_latest_results(self, min_tokens: int, *, hard_limit: int | None = None) -> None:
        """Cut the results of the latest group to equal shares of the tokens left for them.

        The results get at least `min_tokens` in all, and none is dropped. Answers of lookup tools are cut only if a
        `hard_limit` is given, which replaces the usual limit.
        """
        kept = self._kept
        limit = self._limits.target_tokens if hard_limit is None else hard_limit
        if self._request_tokens <= limit:
            return
        facts = kept.history.facts
        latest_indices = range(kept.min_tail_start, len(kept.messages))
        indices = [index for index in latest_indices if facts[index].results]
        results = [result for index in indices for result in facts[index].results]
        sizes = [kept.counter.text(result.text) for result in results]
        other_tokens = self._request_tokens - sum(kept.sizes[index] for index in indices)
        available_tokens = max(limit - other_tokens, min_tokens)
        max_tokens = max(find_largest_equal_share(sizes, available_tokens), MIN_RESULT_TOKENS)
        outputs_before = dict(kept.outputs_to_store)
        for index in indices:
            if kept.sizes[index] > max_tokens:
                shortened = kept.cut_original_results(
                    index, max_tokens, cut_lookups=hard_limit is not None
                )
                kept.replace_message(index, shortened)
        if kept.outputs_to_store == outputs_before:
            return
        count = sum(len(kept.outputs_to_store.get(index, ())) for index in indices)
        other_steps = [step for step in self._steps if step.reduction is not Reduction.RESULTS_CUT]
        cut_step = ReductionStep(Reduction.RESULTS_CUT, max_tokens, result_count=count)
        self._steps = [*other_steps, cut_step]
        self._recount_tail()

    def _shorten_arguments(self) -> None:
        """Cut long arguments and images of the latest group if the request is too large."""
        if not self._exceeds_target:
            return
        kept = self._kept
        pruned = prune_messages(
            kept.messages,
            protect_from=len(kept.messages),
            start=kept.min_tail_start,
            prune_results=False,
        )
        has_changed = False
        for index, message in enumerate(pruned):
            if message is not kept.messages[index]:
                outputs_to_store = kept.outputs_to_store.get(index, ())
                kept.replace_message(index, ShortenedMessage(message, outputs_to_store))
                has_changed = True
        if has_changed:
            self._steps.append(ReductionStep(Reduction.ARGUMENTS_CUT))
            self._choose_tail()

    def _keep_latest_group(self) -> None:
        """Reduce the tail to the latest group if the request is too large."""
        if self._exceeds_target and self._tail.start < self._kept.min_tail_start:
            self._tail = make_smallest_tail(self._kept, self._limits)
            self._steps.append(ReductionStep(Reduction.LATEST_GROUP_KEPT))

    def _cut_latest_results_as_last_resort(self) -> None:
        """Cut the results of the latest group to the hard limit. A large user message is cut before them."""
        kept = self._kept
        user_index = kept.latest_user_index
        large_tokens = self._limits.max_tokens // HEAD_MESSAGE_DIVISOR
        is_user_message_large = user_index is not None and kept.sizes[user_index] > large_tokens
        min_tokens = self._limits.tail_tokens if is_user_message_large else 0
        self._cut_latest_results(min_tokens, hard_limit=self._compute_hard_limit())

    def _compute_hard_limit(self) -> int:
        """Return the size that the request must not exceed: less than the threshold, unless its minimum is larger.

        The minimum is larger if the latest user message alone is very large. Then the minimum is the limit, within the
        window.
        """
        kept = self._kept
        limits = self._limits
        tail_start = self._tail.start
        user_index = kept.latest_user_index
        user_tokens = 0
        if user_index is not None and user_index >= kept.min_tail_start:
            user_tokens = kept.sizes[user_index]
        group_tokens = user_tokens + min(kept.min_tail_tokens - user_tokens, limits.tail_tokens)
        words_tokens = min(
            limits.min_user_words_tokens, kept.user_words_sizes.sum_before(tail_start)
        )
        minimum = (
            limits.fixed_tokens
            + kept.count_outside_tail(tail_start)
            + limits.min_summary_tokens
            + words_tokens
            + group_tokens
        )
        if minimum < limits.max_tokens:
            return limits.max_tokens - 1
        return min(minimum, limits.max_prompt_tokens)

    def _drop_oversized_answer(self) -> None:
        """Keep no tail if the latest message is an answer that is too large: the summary covers it."""
        kept = self._kept
        end = len(kept.messages)
        tail_start = self._tail.start
        if self._request_tokens < self._limits.max_tokens or tail_start == end:
            return
        is_user_in_tail = (
            kept.latest_user_index is not None and kept.latest_user_index >= tail_start
        )
        if kept.has_unanswered_calls or is_user_in_tail:
            return
        if kept.count_request(self._limits, end, tail_tokens=0) < self._limits.max_tokens:
            self._tail = Tail(end)
            self._steps.append(ReductionStep(Reduction.TAIL_DROPPED))

    def _cut_user_messages(self) -> None:
        """Store the middle of kept messages until the request fits, the largest first.

        The latest user message is cut last, and only if the window requires it.
        """
        kept = self._kept
        facts = kept.history.facts
        head = [
            index
            for index in range(kept.head_end)
            if kept.messages[index].get("role") not in SYSTEM_ROLES
        ]
        tail_users = [
            index for index in range(self._tail.start, len(kept.messages)) if facts[index].is_user
        ]
        candidates = [index for index in (*head, *tail_users) if index != kept.latest_user_index]
        candidates.sort(key=lambda index: -kept.sizes[index])
        outputs_before = dict(kept.outputs_to_store)
        hard_limit = self._compute_hard_limit()
        max_prompt_tokens = self._limits.max_prompt_tokens
        min_summary_tokens = min(MIN_SUMMARY_TOKENS, self._limits.summary_tokens)
        self._lower_user_words_limit(max_prompt_tokens, minimum=0)
        self._lower_summary_limit(max_prompt_tokens, minimum=min_summary_tokens)
        for index in candidates:
            self._cut_user_message(index, hard_limit)
        if kept.latest_user_index is not None:
            self._cut_user_message(kept.latest_user_index, max_prompt_tokens)
        if kept.outputs_to_store != outputs_before:
            self._steps.append(ReductionStep(Reduction.USER_MESSAGES_CUT))

    def _cut_user_message(self, index: int, limit: int) -> None:
        """Cut a user message by as many tokens as the request is over the limit, if it is."""
        excess = self._request_tokens - limit
        if excess <= 0:
            return
        kept = self._kept
        min_tokens = self._limits.max_tokens // (8 * HEAD_MESSAGE_DIVISOR)
        max_tokens = max(kept.sizes[index] - excess, min_tokens)
        shortened = cut_text(index, kept.messages[index], max_tokens, kept.counter)
        kept.replace_message(index, shortened)
        self._tail.result_limits.pop(index, None)
        self._recount_tail()
