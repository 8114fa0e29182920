"""Cut a history into the head that is kept, the middle that is replaced, and the tail that is kept.

A cut never separates tool calls from their results. An earlier summary is always replaced; the latest user message and
the unanswered group always stay. If the kept messages are too large, they are reduced step by step, and every step is
reported.
"""

from __future__ import annotations

from dataclasses import replace

from everthread.compaction.compaction_result import CompactionLevel
from everthread.compaction.cutting.cut import Cut, FittedCut, RunningSizes, TokenLimits
from everthread.compaction.cutting.kept_messages import KeptMessages
from everthread.compaction.cutting.pruning import prune_messages
from everthread.compaction.cutting.shortening import (
    MIN_RESULT_TOKENS,
    ShortenedMessage,
    cut_text,
    find_largest_equal_share,
)
from everthread.compaction.cutting.tail import Tail, TailChooser
from everthread.core.messages import (
    SYSTEM_ROLES,
    count_noun,
)

HEAD_MESSAGE_DIVISOR = 4
"""A head message larger than the threshold divided by this is cut to half of that, unless it is the latest."""
MIN_SUMMARY_TOKENS = 400
"""Tokens kept for a summary beside a user message that nearly fills the window."""


class CutFitter:
    """Cuts a history so that the kept messages fit, and gives up no more than necessary."""

    def __init__(
        self,
        kept: KeptMessages,
        limits: TokenLimits,
        user_words_sizes: RunningSizes,
    ) -> None:
        """Prepare a cut. `user_words_sizes`: sizes of the user's messages outside the head."""
        self.kept = kept
        self.limits = limits
        self.user_words_sizes = user_words_sizes
        self.steps: list[str] = []
        """The reductions so far, each as a phrase for the report."""

    def fit(self, level: CompactionLevel) -> FittedCut:
        """Return the cut that fits, with the steps it took.

        Oversized head messages are always cut. Then reduce in this order, only as far as needed: results and arguments
        of the latest group, a large summary, the tail, the limits of user words and summary, the tail down to the
        latest group, and at last kept user messages.
        """
        keeps_latest_only = level == CompactionLevel.LATEST_GROUP
        earliest_start = len(self.kept.messages) if keeps_latest_only else 0
        self._cut_large_head_messages()
        if level > CompactionLevel.NORMAL:
            self._halve_tail()
        tail, cut = self._tail_chooser.choose(earliest_start)
        cut = self._cut_latest_results(tail, cut, min_tokens=self.limits.tail_tokens)
        if self._shorten_arguments(cut):
            tail, cut = self._tail_chooser.choose(earliest_start)
        if (
            self.limits.summary_tokens > self.limits.usual_summary_tokens
            and cut.tokens > self.limits.target_tokens
        ):
            self._shrink_large_summary(cut.tokens - self.limits.target_tokens)
            tail, cut = self._tail_chooser.choose(earliest_start)
            cut = self._cut_latest_results(tail, cut, min_tokens=self.limits.tail_tokens)
        if cut.tokens > self.limits.target_tokens and level == CompactionLevel.NORMAL:
            self._halve_tail()
            tail, cut = self._tail_chooser.choose(earliest_start)
            cut = self._cut_latest_results(tail, cut, min_tokens=self.limits.tail_tokens)
        cut = self._shrink_summary_limits(
            cut,
            limit=self.limits.target_tokens,
            min_user_words=self.limits.min_user_words_tokens,
            min_summary=self.limits.min_summary_tokens,
        )
        cut = self._cut_latest_results(tail, cut, min_tokens=self.limits.tail_tokens)
        if cut.tokens > self.limits.target_tokens and not keeps_latest_only:
            latest_tail, latest_cut = self._tail_chooser.choose(len(self.kept.messages))
            if latest_cut.tail_start > cut.tail_start:
                tail = latest_tail
                cut = latest_cut
                self.steps.append("kept only the latest group")
        # Cut a large user message before the results it waits for.
        is_user_message_large = (
            self.kept.latest_user_index is not None
            and self.kept.sizes[self.kept.latest_user_index]
            > self.limits.max_tokens // HEAD_MESSAGE_DIVISOR
        )
        min_group_tokens = self.limits.tail_tokens if is_user_message_large else 0
        cut = self._cut_latest_results(
            tail, cut, min_tokens=min_group_tokens, limit=self._find_hard_limit(tail)
        )
        cut = self._drop_oversized_answer(tail, cut)
        cut = self._cut_user_messages(tail, cut)
        return self._finish(tail, cut)

    def _finish(self, tail: Tail, cut: Cut) -> FittedCut:
        """Return the cut with its messages pruned and shortened, and the texts to store for them."""
        messages = [*self.kept.history.messages]
        outputs = {
            index: items
            for index, items in self.kept.outputs_to_store.items()
            if index < cut.head_end
        }
        indices = [*range(cut.head_end), *range(cut.tail_start, len(messages))]
        if cut.kept_user_index is not None:
            indices.append(cut.kept_user_index)
        for index in indices:
            if index in cut.pruned_indices:
                messages[index] = self.kept.pruner.pruned_message(index)
            elif index in tail.result_limits:
                shortened, _ = self.kept.cut_results_to(index, tail.result_limits[index])
                messages[index] = shortened.message
                outputs[index] = shortened.outputs_to_store
            else:
                messages[index] = self.kept.messages[index]
                outputs[index] = self.kept.outputs_to_store.get(index, ())
        to_store = tuple(item for index in sorted(outputs) for item in outputs[index])
        return FittedCut(messages, cut, self.limits, to_store, tuple(self.steps))

    def _cut_large_head_messages(self) -> None:
        """Cut large messages of the head, except system messages and the latest user message."""
        limit = self.limits.max_tokens // HEAD_MESSAGE_DIVISOR
        for index in range(self.kept.head_end):
            is_system = self.kept.messages[index].get("role") in SYSTEM_ROLES
            if (
                self.kept.sizes[index] > limit
                and index != self.kept.latest_user_index
                and not is_system
            ):
                self.kept.replace_message(
                    index,
                    cut_text(index, self.kept.messages[index], limit // 2, self.kept.counter),
                )
        if self.kept.outputs_to_store:
            self.steps.append("stored the middle of oversized messages at the start")

    def _halve_tail(self) -> None:
        """Halve the tail budget and protect no last messages."""
        self.limits = replace(
            self.limits, protect_last_n=0, tail_tokens=self.limits.tail_tokens // 2
        )
        self.steps.append(
            f"protected no last messages and halved the tail to {self.limits.tail_tokens:,} tokens"
        )

    def _shrink_large_summary(self, tokens: int) -> None:
        """Lower the limit of a summary that is larger than usual by this many tokens."""
        summary_tokens = max(self.limits.summary_tokens - tokens, self.limits.usual_summary_tokens)
        self.limits = replace(self.limits, summary_tokens=summary_tokens)

    def _shrink_summary_limits(
        self, cut: Cut, *, limit: int, min_user_words: int, min_summary: int
    ) -> Cut:
        """Lower the token limits of the user's words, then of the summary, until the cut is within `limit`.

        Neither is lowered below its minimum.
        """
        for name, minimum, label in (
            ("user_words_tokens", min_user_words, "the user's words"),
            ("summary_tokens", min_summary, "the summary"),
        ):
            excess = cut.tokens - limit
            current_limit = getattr(self.limits, name)
            used_tokens = (
                min(current_limit, self.user_words_sizes.sum_before(cut.tail_start))
                if name == "user_words_tokens"
                else current_limit
            )
            reduction = min(excess, max(used_tokens - minimum, 0))
            if excess > 0 and reduction > 0:
                self.limits = replace(self.limits, **{name: used_tokens - reduction})
                cut = replace(cut, tokens=cut.tokens - reduction)
                self.steps.append(f"left {used_tokens - reduction:,} tokens for {label}")
        return cut

    def _cut_latest_results(
        self, tail: Tail, cut: Cut, *, min_tokens: int, limit: int | None = None
    ) -> Cut:
        """Cut the results of the latest group to equal shares of the tokens left for them.

        The results get at least `min_tokens` in all, and none is dropped. Answers of lookup tools are cut only if a
        `limit` is given.
        """
        is_last_resort = limit is not None
        limit = self.limits.target_tokens if limit is None else limit
        if cut.tokens <= limit:
            return cut
        indices = [
            index
            for index in range(self.kept.min_tail_start, len(self.kept.messages))
            if self.kept.history.facts[index].results
        ]
        facts = self.kept.history.facts
        sizes = [
            self.kept.counter.text(result.text)
            for index in indices
            for result in facts[index].results
        ]
        result_tokens = sum(self.kept.sizes[index] for index in indices)
        available_tokens = max(limit - (cut.tokens - result_tokens), min_tokens)
        max_tokens = max(find_largest_equal_share(sizes, available_tokens), MIN_RESULT_TOKENS)
        outputs_before = dict(self.kept.outputs_to_store)
        for index in indices:
            if self.kept.sizes[index] > max_tokens:
                self.kept.replace_message(
                    index,
                    self.kept.cut_original_results(index, max_tokens, cut_lookups=is_last_resort),
                )
        if self.kept.outputs_to_store == outputs_before:
            return cut
        count = sum(len(self.kept.outputs_to_store.get(index, ())) for index in indices)
        description = f"cut {count_noun(count, 'oversized tool result')} of the tail to {max_tokens:,} tokens each"
        self.steps = [step for step in self.steps if "oversized tool result" not in step]
        self.steps.append(description)
        return self._tail_chooser.recount(tail, cut)

    def _shorten_arguments(self, cut: Cut) -> bool:
        """Cut long arguments and images of the latest group if the cut is too large; return whether any changed."""
        if cut.tokens <= self.limits.target_tokens:
            return False
        pruned = prune_messages(
            self.kept.messages,
            protect_from=len(self.kept.messages),
            start=self.kept.min_tail_start,
            prune_results=False,
        )
        changed_indices = [
            index
            for index, message in enumerate(pruned)
            if message is not self.kept.messages[index]
        ]
        for index in changed_indices:
            self.kept.replace_message(
                index,
                ShortenedMessage(pruned[index], self.kept.outputs_to_store.get(index, ())),
            )
        if changed_indices:
            self.steps.append("cut long arguments and images of the tail")
        return bool(changed_indices)

    def _find_hard_limit(self, tail: Tail) -> int:
        """Return the size that the request must not exceed: less than the threshold, unless its minimum is larger.

        The minimum is larger if the latest user message alone is very large. Then the minimum is the limit, within the
        window.
        """
        group_tokens = min(self.kept.min_tail_tokens, self.limits.tail_tokens)
        if (
            self.kept.latest_user_index is not None
            and self.kept.latest_user_index >= self.kept.min_tail_start
        ):
            group_tokens = self.kept.sizes[self.kept.latest_user_index] + min(
                self.kept.min_tail_tokens - self.kept.sizes[self.kept.latest_user_index],
                self.limits.tail_tokens,
            )
        words_tokens = min(
            self.limits.min_user_words_tokens,
            self.user_words_sizes.sum_before(tail.start),
        )
        minimum = (
            self.limits.fixed_tokens
            + self.kept.count_outside_tail(tail.start)
            + self.limits.min_summary_tokens
            + words_tokens
            + group_tokens
        )
        return (
            self.limits.max_tokens - 1
            if minimum < self.limits.max_tokens
            else min(minimum, self.limits.max_prompt_tokens)
        )

    def _drop_oversized_answer(self, tail: Tail, cut: Cut) -> Cut:
        """Return a cut without a tail if the latest message is an answer that is too large: the summary covers it."""
        end = len(self.kept.messages)
        holds_user = (
            self.kept.latest_user_index is not None and self.kept.latest_user_index >= tail.start
        )
        if (
            cut.tokens < self.limits.max_tokens
            or self.kept.has_unanswered_calls
            or holds_user
            or tail.start == end
        ):
            return cut
        empty_tail = Tail(end)
        cut_without_tail = self._tail_chooser.make_cut(empty_tail)
        if cut_without_tail.tokens >= self.limits.max_tokens:
            return cut
        tail.start = end
        tail.tokens = 0
        self.steps.append("kept no tail: even the latest message is too large")
        return replace(
            cut_without_tail,
            reasons=(cut.reasons[0], "There is no tail.", cut_without_tail.reasons[2]),
        )

    def _cut_user_messages(self, tail: Tail, cut: Cut) -> Cut:
        """Store the middle of kept messages until the request fits, the largest first.

        The latest user message is cut last, and only if the window requires it.
        """
        tail_user_indices = (
            position
            for position in range(cut.tail_start, len(self.kept.messages))
            if self.kept.history.facts[position].is_user
        )
        head_indices = (
            position
            for position in range(cut.head_end)
            if self.kept.messages[position].get("role") not in SYSTEM_ROLES
        )
        candidates = [
            index
            for index in (*head_indices, *tail_user_indices)
            if index != self.kept.latest_user_index
        ]
        candidates.sort(key=lambda index: -self.kept.sizes[index])
        outputs_before = dict(self.kept.outputs_to_store)
        limit = self._find_hard_limit(tail)
        min_summary = min(MIN_SUMMARY_TOKENS, self.limits.summary_tokens)
        cut = self._shrink_summary_limits(
            cut,
            limit=self.limits.max_prompt_tokens,
            min_user_words=0,
            min_summary=min_summary,
        )
        for index in candidates:
            if cut.tokens > limit:
                cut = self._cut_user_message(index, tail, cut, limit=limit)
        if self.kept.latest_user_index is not None and cut.tokens > self.limits.max_prompt_tokens:
            cut = self._cut_user_message(
                self.kept.latest_user_index,
                tail,
                cut,
                limit=self.limits.max_prompt_tokens,
            )
        if self.kept.outputs_to_store != outputs_before:
            self.steps.append("stored the middle of oversized user messages")
        return cut

    def _cut_user_message(self, index: int, tail: Tail, cut: Cut, *, limit: int) -> Cut:
        """Cut a user message by as many tokens as the request is over the limit."""
        max_tokens = max(
            self.kept.sizes[index] - (cut.tokens - limit),
            self.limits.max_tokens // (8 * HEAD_MESSAGE_DIVISOR),
        )
        self.kept.replace_message(
            index,
            cut_text(index, self.kept.messages[index], max_tokens, self.kept.counter),
        )
        tail.result_limits.pop(index, None)
        return self._tail_chooser.recount(tail, cut)

    @property
    def _tail_chooser(self) -> TailChooser:
        """A chooser for the tail under the current limits."""
        return TailChooser(self.kept, self.user_words_sizes, self.limits)
