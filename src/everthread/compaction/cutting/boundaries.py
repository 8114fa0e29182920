"""Choose the cuts of a transcript: the head that is kept, the middle that is replaced, the tail that is kept.

A cut never separates tool calls from their results. An earlier summary is always replaced; the latest user message and
the unanswered group always stay. Within the tail budget the newest results stay, an oversized one cut to its share;
older results become one line each. If the rest is too large it is reduced step by step, and every step is reported.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from everthread.compaction.compaction_result import CompactionLevel
from everthread.compaction.cutting.permanent_messages import PermanentMessages
from everthread.compaction.cutting.pruning import Pruner, prune_messages
from everthread.compaction.cutting.shortening import (
    MIN_RESULT_TOKENS,
    ShortenedMessage,
    cut_results,
    cut_text,
    largest_equal_share,
)
from everthread.compaction.history.compaction_history import CompactionHistory
from everthread.core.message_repair import STUB_RESULT
from everthread.core.messages import (
    RESULT_BLOCKS,
    SYSTEM_ROLES,
    Message,
    Messages,
    count_noun,
    kind_of,
    with_content,
)
from everthread.core.outputs import OutputToStore
from everthread.core.tokens import TokenCounter
from everthread.core.transcript import Span, without_summary

RECENT_SHARE = 2
"""Share (1/n) of the tail budget for the newest messages, which stay unchanged; the rest is for older ones."""
RESULT_SHARE = 4
"""One result takes at most this share (1/n) of the tail budget; so do all kept reads of files together."""
HEAD_SHARE = 4
"""A head message above this share (1/n) of the threshold is cut to half of that, unless it is the latest."""
MIN_SUMMARY_TOKENS = 400
"""Tokens kept for a summary beside a user message that nearly fills the window."""
_MIN_CUT_TOKENS = 256
"""Cut one more result to fit only if at least this many tokens of the tail budget are left."""


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
    """The size that no request may exceed: the window without the room for the answer."""
    fixed_tokens: int = 0
    """Tokens of system prompt and tools."""
    summary_tokens: int = 0
    """Tokens for the summary without the user's words."""
    usual_summary_tokens: int = 0
    """The part of `summary_tokens` that is given up only after half of the tail and the user's words."""
    min_summary_tokens: int = 0
    """The part of `summary_tokens` that is kept even if the request is too large."""
    user_words_tokens: int = 0
    """Tokens for the user's words."""
    min_user_words_tokens: int = 0
    """The part of `user_words_tokens` that is kept even if the request is too large."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Head `[0, head_end)`, middle `[head_end, tail_start)` and tail `[tail_start, …)`, with the reasons for them."""

    head_end: int
    tail_start: int
    pruned_indices: frozenset[int]
    """Messages of the tail whose results are one line each."""
    kept_user_index: int | None
    """The latest user message if it is in the middle: it is kept directly after the summary."""
    has_middle: bool
    tokens: int
    """The maximum size of the compacted request."""
    reasons: tuple[str, ...]

    def kept_user_message(self, messages: Messages) -> Message | None:
        """Return the message to put directly after the summary, or None."""
        return (
            None
            if self.kept_user_index is None
            else without_tool_results(messages[self.kept_user_index])
        )


@dataclass(frozen=True, slots=True)
class RunningSizes:
    """Running sums of the tokens of selected messages of a history."""

    indices: list[int]
    sums: list[int]
    """The sum before each index, then the sum of all: one more item than `indices`."""

    def sum_before(self, index: int) -> int:
        """Return the tokens of the selected messages before an index."""
        return self.sums[bisect_left(self.indices, index)]


@dataclass(frozen=True, slots=True)
class FittedCut:
    """A cut that fits, the messages as it shortens them, and the texts to store for that."""

    messages: list[Message]
    """The input, with kept messages pruned or cut where needed; every index is the same."""
    cut: Cut
    limits: TokenLimits
    """The token limits after all reductions."""
    to_store: tuple[OutputToStore, ...]
    steps: tuple[str, ...]
    """The reductions that were needed."""

    def with_middle_kept(self, pruner: Pruner) -> FittedCut:
        """Return this cut without a middle: those messages stay, their old results as one line each."""
        cut = self.cut
        middle = range(cut.head_end, cut.tail_start)
        cut_without_middle = replace(
            cut,
            tail_start=cut.head_end,
            pruned_indices=cut.pruned_indices.union(middle),
            kept_user_index=None,
            has_middle=False,
        )
        messages = [*self.messages]
        messages[cut.head_end : cut.tail_start] = map(pruner.pruned_message, middle)
        return replace(self, messages=messages, cut=cut_without_middle)


@dataclass(slots=True)
class _Tail:
    """The messages at the end that are kept."""

    start: int
    tokens: int
    """Tokens of the whole tail, including the latest group."""
    used_budget: int
    """Tokens used of the tail budget."""
    pruned_indices: set[int]
    """Messages whose results are one line each."""
    result_limits: dict[int, int]
    """The maximum tokens of each result, for messages whose results are cut."""
    is_widened: bool = False
    """Whether the tail exceeds its budget to hold `protect_last_n` messages."""


def find_minimal_tail(history: CompactionHistory) -> tuple[int, bool]:
    """Return the start of the minimal tail, and whether it begins with the unanswered group.

    That group is the last assistant message with calls, if no assistant message follows it; otherwise the minimal tail
    is the latest message. An earlier summary at the very end does not count as a tail.
    """
    messages = history.messages
    groups = history.groups
    start = groups[-1].start if groups else 0
    if all(without_summary(message) is None for message in messages[start:]):
        start = len(messages)
    last_answer = next(
        (
            index
            for index in range(len(messages) - 1, -1, -1)
            if messages[index].get("role") == "assistant"
        ),
        None,
    )
    if (
        last_answer is None
        or not history.facts[last_answer].calls
        or _is_interrupted(history, last_answer)
    ):
        return start, False
    group_start = next(group.start for group in groups if group.end > last_answer)
    return min(start, group_start), True


def _is_interrupted(history: CompactionHistory, index: int) -> bool:
    """Return whether the user wrote a message after these calls before any of them had a result."""
    following = history.facts[index + 1 :]
    texts = [text for facts in following for text, _ in facts.outputs]
    return any(facts.is_user for facts in following) and all(
        text == STUB_RESULT for text in texts
    )


def without_tool_results(message: Message) -> Message:
    """Return the user's part of a message, without tool results, which stay with their calls."""
    content = message.get("content")
    if isinstance(content, list) and any(
        kind_of(part) in RESULT_BLOCKS for part in content
    ):
        message = with_content(
            message, [part for part in content if kind_of(part) not in RESULT_BLOCKS]
        )
    return without_summary(message) or message


class CutFitter:
    """Cut a transcript so that the kept part fits, giving up no more than necessary."""

    def __init__(
        self,
        pruner: Pruner,
        limits: TokenLimits,
        *,
        counter: TokenCounter,
        user_words_sizes: RunningSizes,
        permanent: PermanentMessages,
    ) -> None:
        """Prepare to cut the pruner's history.

        `user_words_sizes`: sizes of the user's messages outside the head; `permanent`: messages outside the
        conversation, which stay.
        """
        history = pruner.history
        self.history = history
        self.pruner = pruner
        """Makes messages with old results as one line each."""
        self.limits = limits
        self.counter = counter
        self.user_words_sizes = user_words_sizes
        self.permanent = permanent
        outside_head = permanent.indices_between(
            history.head_end, len(history.messages)
        )
        self._permanent_sizes = running_sizes(
            (index, counter.message(permanent.messages[index]))
            for index in outside_head
        )
        self.stored_outputs: dict[int, tuple[OutputToStore, ...]] = {}
        """Texts to store for each shortened message, by its index."""
        self.steps: list[str] = []
        self.messages = list(history.messages)
        """A copy of the input, in which messages are replaced by shortened ones."""
        self.sizes = list(history.sizes)
        """Tokens of each message, without an earlier summary in it."""
        for index in history.summary_indices:
            remainder = history.facts[index].without_summary
            self.sizes[index] = (
                0 if remainder is None else self.counter.message(remainder)
            )
        self.head_end = history.head_end
        self.latest_user_index = history.latest_user_index
        latest_start, self.has_unanswered_calls = find_minimal_tail(history)
        self.min_tail_start = max(latest_start, self.head_end)
        """Start of the smallest tail: the unanswered group, or the latest message."""
        self.has_separate_summary = any(
            history.facts[index].without_summary is None
            for index in history.summary_indices
        )
        """Whether an earlier summary is a separate message."""
        self._tool_names = {
            call.id: call.name for facts in history.facts for call in facts.calls
        }
        self._shortened_by_share: dict[
            tuple[int, int], tuple[ShortenedMessage, int]
        ] = {}
        """Messages with shortened results and their sizes, by index and maximum tokens per result."""

    def fit(self, level: CompactionLevel) -> FittedCut:
        """Return the cut that fits, with the steps it took.

        After oversized head messages, reduce in this order and only as far as needed: results and arguments of the
        latest group, a large summary, the tail, the room for user words and summary, the tail down to the latest group,
        and kept user messages last.
        """
        keeps_latest_only = level == CompactionLevel.LATEST_GROUP
        earliest_start = len(self.messages) if keeps_latest_only else 0
        self._cut_large_head_messages()
        if level > CompactionLevel.NORMAL:
            self._halve_tail()
        tail, cut = self._choose_tail(earliest_start)
        cut = self._cut_latest_results(tail, cut, min_tokens=self.limits.tail_tokens)
        if self._shorten_arguments(cut):
            tail, cut = self._choose_tail(earliest_start)
        if (
            self.limits.summary_tokens > self.limits.usual_summary_tokens
            and cut.tokens > self.limits.target_tokens
        ):
            self._shrink_large_summary(cut.tokens - self.limits.target_tokens)
            tail, cut = self._choose_tail(earliest_start)
            cut = self._cut_latest_results(
                tail, cut, min_tokens=self.limits.tail_tokens
            )
        if cut.tokens > self.limits.target_tokens and level == CompactionLevel.NORMAL:
            self._halve_tail()
            tail, cut = self._choose_tail(earliest_start)
            cut = self._cut_latest_results(
                tail, cut, min_tokens=self.limits.tail_tokens
            )
        cut = self._shrink_summary_room(
            cut,
            limit=self.limits.target_tokens,
            min_user_words=self.limits.min_user_words_tokens,
            min_summary=self.limits.min_summary_tokens,
        )
        cut = self._cut_latest_results(tail, cut, min_tokens=self.limits.tail_tokens)
        if cut.tokens > self.limits.target_tokens and not keeps_latest_only:
            latest_tail, latest_cut = self._choose_tail(len(self.messages))
            if latest_cut.tail_start > cut.tail_start:
                tail = latest_tail
                cut = latest_cut
                self.steps.append("kept only the latest group")
        # Cut a large user message before the results it waits for.
        is_user_message_large = (
            self.latest_user_index is not None
            and self.sizes[self.latest_user_index]
            > self.limits.max_tokens // HEAD_SHARE
        )
        min_group_tokens = self.limits.tail_tokens if is_user_message_large else 0
        cut = self._cut_latest_results(
            tail, cut, min_tokens=min_group_tokens, limit=self._hard_limit(tail)
        )
        cut = self._drop_oversized_answer(tail, cut)
        cut = self._cut_user_messages(tail, cut)
        return self._finish(tail, cut)

    def _finish(self, tail: _Tail, cut: Cut) -> FittedCut:
        """Return the cut with its messages pruned and shortened, and the texts to store for them."""
        messages = [*self.history.messages]
        outputs = {
            index: items
            for index, items in self.stored_outputs.items()
            if index < cut.head_end
        }
        indices = [*range(cut.head_end), *range(cut.tail_start, len(messages))]
        if cut.kept_user_index is not None:
            indices.append(cut.kept_user_index)
        for index in indices:
            if index in cut.pruned_indices:
                messages[index] = self.pruner.pruned_message(index)
            elif index in tail.result_limits:
                shortened, _ = self._cut_results_to(index, tail.result_limits[index])
                messages[index] = shortened.message
                outputs[index] = shortened.outputs_to_store
            else:
                messages[index] = self.messages[index]
                outputs[index] = self.stored_outputs.get(index, ())
        to_store = tuple(item for index in sorted(outputs) for item in outputs[index])
        return FittedCut(messages, cut, self.limits, to_store, tuple(self.steps))

    # Choice of the cut

    def _choose_tail(self, earliest_start: int) -> tuple[_Tail, Cut]:
        """Choose the tail for the current limits. It starts at `earliest_start` or later, but is never below the
        minimum."""
        tail = self._collect_tail(earliest_start, reserved_tokens=0)
        read_indices = self._find_newest_reads(tail)
        read_tokens = sum(
            self._count_tokens_to_restore(index) for index in read_indices
        )
        if read_tokens:
            tail = self._collect_tail(
                earliest_start,
                reserved_tokens=min(
                    read_tokens, self.limits.tail_tokens // RESULT_SHARE
                ),
            )
        self._restore_results(tail, read_indices)
        return tail, self._make_cut(tail)

    def _collect_tail(self, earliest_start: int, *, reserved_tokens: int) -> _Tail:
        """Collect the tail from the end backwards until its budget, less `reserved_tokens`, is used."""
        limits = self.limits
        tokens = sum(self.sizes[self.min_tail_start :])
        # The latest group takes half of the tail at most, so that it does not push small recent messages out.
        tail = _Tail(
            self.min_tail_start,
            tokens,
            min(tokens, limits.tail_tokens // RECENT_SHARE),
            set(),
            {},
        )
        is_recent = True
        for group in reversed(self.history.groups):
            if group.end > tail.start:
                continue
            if group.start < max(self.head_end, earliest_start) or self._holds_summary(
                group
            ):
                break
            indices = range(group.start, group.end)
            size = sum(map(self._size_in_tail, indices)) if is_recent else 0
            is_recent = (
                is_recent
                and tail.used_budget + size <= limits.tail_tokens // RECENT_SHARE
            )
            if not is_recent:
                size = sum(map(self._pruned_size, indices))
            if tail.used_budget + size > limits.tail_tokens - reserved_tokens:
                has_too_few = len(self.messages) - tail.start < limits.protect_last_n
                if (
                    not has_too_few
                    or self._count_request(group.start, tail.tokens + size)
                    > limits.target_tokens
                ):
                    break
                tail.is_widened = True
            self._prepend_to_tail(tail, indices, size, is_pruned=not is_recent)
        return tail

    def _prepend_to_tail(
        self, tail: _Tail, indices: range, size: int, *, is_pruned: bool
    ) -> None:
        """Add a group of messages at the start of the tail."""
        tail.start = indices.start
        tail.tokens += size
        tail.used_budget += size
        if is_pruned:
            tail.pruned_indices.update(indices)
        else:
            max_tokens = self._max_result_tokens
            tail.result_limits.update(
                (index, max_tokens)
                for index in indices
                if self.sizes[index] > max_tokens
            )

    def _restore_results(self, tail: _Tail, read_indices: Sequence[int]) -> None:
        """Spend the rest of the tail budget on full results: reads of files first, then the newest."""
        remaining = min(
            self.limits.tail_tokens - tail.used_budget,
            self.limits.target_tokens - self._count_request(tail.start, tail.tokens),
        )
        other_indices = sorted(
            tail.pruned_indices.difference(read_indices), reverse=True
        )
        for index in (
            *(
                read_index
                for read_index in read_indices
                if read_index in tail.pruned_indices
            ),
            *other_indices,
        ):
            if remaining <= 0:
                break
            max_tokens = self._max_result_tokens
            added_tokens = self._count_tokens_to_restore(index)
            if added_tokens > remaining >= _MIN_CUT_TOKENS:
                max_tokens = max(
                    self._pruned_size(index) + remaining - MIN_RESULT_TOKENS,
                    MIN_RESULT_TOKENS,
                )
                added_tokens = self._cut_results_to(index, max_tokens)[
                    1
                ] - self._pruned_size(index)
            if 0 < added_tokens <= remaining:
                remaining -= added_tokens
                tail.tokens += added_tokens
                tail.used_budget += added_tokens
                tail.pruned_indices.discard(index)
                if self.sizes[index] > max_tokens:
                    tail.result_limits[index] = max_tokens

    def _find_newest_reads(self, tail: _Tail) -> list[int]:
        """Return the tail messages with the newest read of a file that was not changed since, newest first."""
        seen_paths: set[str] = set()
        read_indices: list[int] = []
        for index in range(len(self.messages) - 1, tail.start - 1, -1):
            calls = self.history.answered_calls.get(index, ())
            for files in self.history.facts[index].find_named_files(calls):
                if (
                    not files.is_change
                    and index in tail.pruned_indices
                    and not seen_paths.issuperset(files.paths)
                ):
                    read_indices.append(index)
                seen_paths.update(files.paths)
        return list(dict.fromkeys(read_indices))

    def _make_cut(self, tail: _Tail) -> Cut:
        """Return the cut for this tail, with its size and the reasons."""
        user_index = self._find_user_before_tail(tail.start)
        facts = self.history.facts
        excluded_indices = self.permanent.standalone_indices | {user_index}
        middle_facts = (
            facts[index]
            for index in range(self.head_end, tail.start)
            if index not in excluded_indices
        )
        reasons = (
            f"The head is {count_noun(self.head_end, 'message')}.",
            self._explain_tail(tail),
            _explain_user_message(self.latest_user_index, self.head_end, tail.start),
        )
        return Cut(
            head_end=self.head_end,
            tail_start=tail.start,
            pruned_indices=frozenset(tail.pruned_indices),
            kept_user_index=user_index,
            has_middle=any(
                message_facts.without_summary is not None
                for message_facts in middle_facts
            ),
            tokens=self._count_request(tail.start, tail.tokens),
            reasons=reasons,
        )

    def _find_user_before_tail(self, tail_start: int) -> int | None:
        """Return the index of the latest user message if it is between the head and a tail that starts here."""
        return (
            self.latest_user_index
            if self.latest_user_index is not None
            and self.head_end <= self.latest_user_index < tail_start
            else None
        )

    def _count_request(self, tail_start: int, tail_tokens: int) -> int:
        """Return the tokens of the compacted request with this tail."""
        words_tokens = min(
            self.limits.user_words_tokens, self.user_words_sizes.sum_before(tail_start)
        )
        return (
            self._count_kept(tail_start)
            + self.limits.summary_tokens
            + words_tokens
            + tail_tokens
        )

    def _count_kept(self, tail_start: int) -> int:
        """Return the tokens of everything kept outside the tail and the summary, including system prompt and tools."""
        user_index = self._find_user_before_tail(tail_start)
        user_tokens = (
            0
            if user_index is None
            else self.counter.message(without_tool_results(self.messages[user_index]))
        )
        return (
            self.limits.fixed_tokens
            + sum(self.sizes[: self.head_end])
            + self._permanent_sizes.sum_before(tail_start)
            + user_tokens
        )

    # Reductions, step by step

    def _cut_large_head_messages(self) -> None:
        """Cut large messages of the head, except system messages and the latest user message."""
        limit = self.limits.max_tokens // HEAD_SHARE
        for index in range(self.head_end):
            is_system = self.messages[index].get("role") in SYSTEM_ROLES
            if (
                self.sizes[index] > limit
                and index != self.latest_user_index
                and not is_system
            ):
                self._replace_message(
                    index,
                    cut_text(index, self.messages[index], limit // 2, self.counter),
                )
        if self.stored_outputs:
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
        """Take this many tokens from the room of a summary that is larger than usual."""
        summary_tokens = max(
            self.limits.summary_tokens - tokens, self.limits.usual_summary_tokens
        )
        self.limits = replace(self.limits, summary_tokens=summary_tokens)

    def _shrink_summary_room(
        self, cut: Cut, *, limit: int, min_user_words: int, min_summary: int
    ) -> Cut:
        """Leave less room for the user's words, then for the summary, until the cut is within `limit`.

        Neither gets less than its minimum.
        """
        for name, minimum, label in (
            ("user_words_tokens", min_user_words, "the user's words"),
            ("summary_tokens", min_summary, "the summary"),
        ):
            excess = cut.tokens - limit
            room_tokens = getattr(self.limits, name)
            used_tokens = (
                min(room_tokens, self.user_words_sizes.sum_before(cut.tail_start))
                if name == "user_words_tokens"
                else room_tokens
            )
            reduction = min(excess, max(used_tokens - minimum, 0))
            if excess > 0 and reduction > 0:
                self.limits = replace(self.limits, **{name: used_tokens - reduction})
                cut = replace(cut, tokens=cut.tokens - reduction)
                self.steps.append(
                    f"left {used_tokens - reduction:,} tokens for {label}"
                )
        return cut

    def _cut_latest_results(
        self, tail: _Tail, cut: Cut, *, min_tokens: int, limit: int | None = None
    ) -> Cut:
        """Cut the results of the latest group to equal shares of the room left for them.

        They get at least `min_tokens` in all, and none is dropped. Lookup answers are cut only if a `limit` is given.
        """
        is_last_resort = limit is not None
        limit = self.limits.target_tokens if limit is None else limit
        if cut.tokens <= limit:
            return cut
        indices = [
            index
            for index in range(self.min_tail_start, len(self.messages))
            if self.history.facts[index].results
        ]
        facts = self.history.facts
        sizes = [
            self.counter.text(result.text)
            for index in indices
            for result in facts[index].results
        ]
        result_tokens = sum(self.sizes[index] for index in indices)
        results_room = max(limit - (cut.tokens - result_tokens), min_tokens)
        max_tokens = max(largest_equal_share(sizes, results_room), MIN_RESULT_TOKENS)
        stored_before = dict(self.stored_outputs)
        for index in indices:
            if self.sizes[index] > max_tokens:
                self._replace_message(
                    index,
                    self._cut_message_results(
                        index, max_tokens, cut_lookups=is_last_resort
                    ),
                )
        if self.stored_outputs == stored_before:
            return cut
        count = sum(len(self.stored_outputs.get(index, ())) for index in indices)
        description = f"cut {count_noun(count, 'oversized tool result')} of the tail to {max_tokens:,} tokens each"
        self.steps = [
            step for step in self.steps if "oversized tool result" not in step
        ]
        self.steps.append(description)
        return self._recount(tail, cut)

    def _shorten_arguments(self, cut: Cut) -> bool:
        """Cut long arguments and images of the latest group if the cut is too large; return whether any changed."""
        if cut.tokens <= self.limits.target_tokens:
            return False
        pruned = prune_messages(
            self.messages,
            protect_from=len(self.messages),
            start=self.min_tail_start,
            prune_results=False,
        )
        changed_indices = [
            index
            for index, message in enumerate(pruned)
            if message is not self.messages[index]
        ]
        for index in changed_indices:
            self._replace_message(
                index,
                ShortenedMessage(pruned[index], self.stored_outputs.get(index, ())),
            )
        if changed_indices:
            self.steps.append("cut long arguments and images of the tail")
        return bool(changed_indices)

    def _hard_limit(self, tail: _Tail) -> int:
        """Return the size that the request must not exceed: less than the threshold, unless its minimum is larger.

        That happens if the latest user message alone is very large. Then the minimum is the limit, within the window.
        """
        group_tokens = min(
            sum(self.sizes[self.min_tail_start :]), self.limits.tail_tokens
        )
        if (
            self.latest_user_index is not None
            and self.latest_user_index >= self.min_tail_start
        ):
            group_tokens = self.sizes[self.latest_user_index] + min(
                sum(self.sizes[self.min_tail_start :])
                - self.sizes[self.latest_user_index],
                self.limits.tail_tokens,
            )
        words_tokens = min(
            self.limits.min_user_words_tokens,
            self.user_words_sizes.sum_before(tail.start),
        )
        minimum = (
            self._count_kept(tail.start)
            + self.limits.min_summary_tokens
            + words_tokens
            + group_tokens
        )
        return (
            self.limits.max_tokens - 1
            if minimum < self.limits.max_tokens
            else min(minimum, self.limits.max_prompt_tokens)
        )

    def _drop_oversized_answer(self, tail: _Tail, cut: Cut) -> Cut:
        """Return a cut without a tail if the latest message is an answer that is too large: the summary covers it."""
        end = len(self.messages)
        holds_user = (
            self.latest_user_index is not None and self.latest_user_index >= tail.start
        )
        if (
            cut.tokens < self.limits.max_tokens
            or self.has_unanswered_calls
            or holds_user
            or tail.start == end
        ):
            return cut
        empty_tail = _Tail(end, 0, 0, set(), {})
        cut_without_tail = self._make_cut(empty_tail)
        if cut_without_tail.tokens >= self.limits.max_tokens:
            return cut
        tail.start = end
        tail.tokens = 0
        self.steps.append("kept no tail: even the latest message is too large")
        return replace(
            cut_without_tail,
            reasons=(cut.reasons[0], "There is no tail.", cut_without_tail.reasons[2]),
        )

    def _cut_user_messages(self, tail: _Tail, cut: Cut) -> Cut:
        """Store the middle of kept messages until the request fits, the largest first.

        The latest user message is cut last, and only if the window requires it.
        """
        tail_user_indices = (
            position
            for position in range(cut.tail_start, len(self.messages))
            if self.history.facts[position].is_user
        )
        head_indices = (
            position
            for position in range(cut.head_end)
            if self.messages[position].get("role") not in SYSTEM_ROLES
        )
        candidates = [
            index
            for index in (*head_indices, *tail_user_indices)
            if index != self.latest_user_index
        ]
        candidates.sort(key=lambda index: -self.sizes[index])
        stored_before = dict(self.stored_outputs)
        limit = self._hard_limit(tail)
        min_summary = min(MIN_SUMMARY_TOKENS, self.limits.summary_tokens)
        cut = self._shrink_summary_room(
            cut,
            limit=self.limits.max_prompt_tokens,
            min_user_words=0,
            min_summary=min_summary,
        )
        for index in candidates:
            if cut.tokens > limit:
                cut = self._cut_user_message(index, tail, cut, limit=limit)
        if (
            self.latest_user_index is not None
            and cut.tokens > self.limits.max_prompt_tokens
        ):
            cut = self._cut_user_message(
                self.latest_user_index, tail, cut, limit=self.limits.max_prompt_tokens
            )
        if self.stored_outputs != stored_before:
            self.steps.append("stored the middle of oversized user messages")
        return cut

    def _cut_user_message(
        self, index: int, tail: _Tail, cut: Cut, *, limit: int
    ) -> Cut:
        """Cut a user message by as many tokens as the request is over the limit."""
        max_tokens = max(
            self.sizes[index] - (cut.tokens - limit),
            self.limits.max_tokens // (8 * HEAD_SHARE),
        )
        self._replace_message(
            index, cut_text(index, self.messages[index], max_tokens, self.counter)
        )
        tail.result_limits.pop(index, None)
        return self._recount(tail, cut)

    def _replace_message(self, index: int, shortened: ShortenedMessage) -> None:
        """Replace the message at this index by a shortened one."""
        self.messages[index] = shortened.message
        if shortened.outputs_to_store:
            self.stored_outputs[index] = shortened.outputs_to_store
        remainder = without_summary(shortened.message)
        self.sizes[index] = 0 if remainder is None else self.counter.message(remainder)

    # Sizes

    @property
    def _max_result_tokens(self) -> int:
        """The maximum tokens of one result in the tail."""
        return max(self.limits.tail_tokens // RESULT_SHARE, MIN_RESULT_TOKENS)

    def _recount(self, tail: _Tail, cut: Cut) -> Cut:
        """Return the cut with its size counted again, after messages of the tail changed."""
        older_tokens = sum(
            self._kept_size(tail, index)
            for index in range(tail.start, self.min_tail_start)
        )
        tail.tokens = older_tokens + sum(
            self.sizes[max(tail.start, self.min_tail_start) :]
        )
        return replace(cut, tokens=self._count_request(tail.start, tail.tokens))

    def _kept_size(self, tail: _Tail, index: int) -> int:
        """Return the tokens of a message as the tail keeps it: pruned, cut or whole."""
        if index in tail.pruned_indices:
            return self._pruned_size(index)
        return (
            self._cut_results_to(index, tail.result_limits[index])[1]
            if index in tail.result_limits
            else self.sizes[index]
        )

    def _cut_results_to(
        self, index: int, max_tokens: int
    ) -> tuple[ShortenedMessage, int]:
        """Return a message with each of its results cut to `max_tokens`, and its size."""
        result = self._shortened_by_share.get((index, max_tokens))
        if result is None:
            shortened = self._cut_message_results(index, max_tokens)
            remainder = without_summary(shortened.message)
            size = 0 if remainder is None else self.counter.message(remainder)
            result = self._shortened_by_share[index, max_tokens] = (shortened, size)
        return result

    def _cut_message_results(
        self, index: int, max_tokens: int, *, cut_lookups: bool = True
    ) -> ShortenedMessage:
        """Cut the results of an original message to `max_tokens` each."""
        return cut_results(
            index,
            self.history.messages[index],
            max_tokens,
            counter=self.counter,
            tool_names=self._tool_names,
            cut_lookups=cut_lookups,
        )

    def _size_in_tail(self, index: int) -> int:
        """Return the tokens of a message with its results cut to the maximum."""
        if (
            self.sizes[index] <= self._max_result_tokens
            or not self.history.facts[index].results
        ):
            return self.sizes[index]
        return self._cut_results_to(index, self._max_result_tokens)[1]

    def _count_tokens_to_restore(self, index: int) -> int:
        """Return how many tokens it adds to show the results of a message instead of one line each."""
        return self._size_in_tail(index) - self._pruned_size(index)

    def _pruned_size(self, index: int) -> int:
        """Return the tokens of a message with its results as one line each."""
        if not self.history.facts[index].is_summary:
            return self.pruner.count_tokens(index, self.counter)
        remainder = without_summary(self.pruner.pruned_message(index))
        return 0 if remainder is None else self.counter.message(remainder)

    def _holds_summary(self, group: Span) -> bool:
        """Return whether a group holds an earlier summary as a separate message."""
        return self.has_separate_summary and any(
            facts.without_summary is None
            for facts in self.history.facts[group.start : group.end]
        )

    def _explain_tail(self, tail: _Tail) -> str:
        """Return a sentence on the size of the tail and the reason for it."""
        message_count = count_noun(len(self.messages) - tail.start, "message")
        size_text = f"The tail is {message_count}, {tail.tokens:,} tokens of {self.limits.tail_tokens:,}"
        if tail.start == self.min_tail_start:
            return f"{size_text}: the latest group or message, which always stays."
        if tail.is_widened:
            minimum = self.limits.protect_last_n
            target_tokens = self.limits.target_tokens
            return f"{size_text}: widened towards the last {minimum} messages, up to {target_tokens:,} tokens in all."
        if tail.tokens > self.limits.tail_tokens:
            return f"{size_text}: the latest group is larger than its share."
        return f"{size_text}."


def running_sizes(sizes: Iterable[tuple[int, int]], initial: int = 0) -> RunningSizes:
    """Return the running sums of `(index, tokens)` pairs, which must be in order of the indices."""
    indices: list[int] = []
    sums = [initial]
    for index, tokens in sizes:
        indices.append(index)
        sums.append(sums[-1] + tokens)
    return RunningSizes(indices, sums)


def _explain_user_message(
    user_index: int | None, head_end: int, tail_start: int
) -> str:
    """Return a sentence on where the latest user message is kept."""
    if user_index is None:
        return "There is no user message to keep."
    if user_index < head_end:
        return f"The latest user message ({user_index}) stays in the head."
    if user_index >= tail_start:
        return f"The latest user message ({user_index}) stays in the tail."
    return f"The latest user message ({user_index}) is older than the tail: it is kept word for word after the summary."
