"""Choose the tail of a history: the messages at the end that are kept.

Within its token budget the newest results stay, an oversized one cut to its share. Older results become one line each,
and are restored while tokens are left: reads of files first, then the newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from everthread.compaction.cutting.cut import Cut, RunningSizes, TokenLimits
from everthread.compaction.cutting.kept_messages import KeptMessages
from everthread.compaction.cutting.shortening import MIN_RESULT_TOKENS
from everthread.core.messages import count_noun

RECENT_TAIL_DIVISOR = 2
"""The newest messages, which stay unchanged, get the tail budget divided by this; older messages get the rest."""
RESULT_DIVISOR = 4
"""One result takes at most the tail budget divided by this; so do all restored reads of files together."""
_MIN_CUT_TOKENS = 256
"""Cut one more result to fit only if at least this many tokens of the tail budget are left."""


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
class TailChooser:
    """A chooser for the tail under given token limits."""

    kept: KeptMessages
    user_words_sizes: RunningSizes
    """Sizes of the user's messages outside the head."""
    limits: TokenLimits

    def choose(self, earliest_start: int) -> tuple[Tail, Cut]:
        """Choose the tail, and return it with its cut.

        The tail starts at `earliest_start` or later, but always holds the smallest tail.
        """
        tail = self._collect_tail(earliest_start, reserved_tokens=0)
        read_indices = self._find_newest_reads(tail)
        read_tokens = sum(self._count_tokens_to_restore(index) for index in read_indices)
        if read_tokens:
            tail = self._collect_tail(
                earliest_start,
                reserved_tokens=min(read_tokens, self.limits.tail_tokens // RESULT_DIVISOR),
            )
        self._restore_results(tail, read_indices)
        return tail, self.make_cut(tail)

    def _collect_tail(self, earliest_start: int, *, reserved_tokens: int) -> Tail:
        """Collect the tail from the end backwards until its budget, less `reserved_tokens`, is used."""
        limits = self.limits
        tokens = self.kept.min_tail_tokens
        # The latest group takes half of the tail at most, so that it does not push small recent messages out.
        tail = Tail(
            self.kept.min_tail_start,
            tokens,
            used_budget=min(tokens, limits.tail_tokens // RECENT_TAIL_DIVISOR),
        )
        is_recent = True
        for group in reversed(self.kept.history.groups):
            if group.end > tail.start:
                continue
            if group.start < max(self.kept.head_end, earliest_start) or self.kept.holds_summary(
                group
            ):
                break
            indices = range(group.start, group.end)
            size = sum(map(self._size_in_tail, indices)) if is_recent else 0
            is_recent = (
                is_recent and tail.used_budget + size <= limits.tail_tokens // RECENT_TAIL_DIVISOR
            )
            if not is_recent:
                size = sum(map(self.kept.pruned_size, indices))
            if tail.used_budget + size > limits.tail_tokens - reserved_tokens:
                is_below_min_count = len(self.kept.messages) - tail.start < limits.protect_last_n
                if (
                    not is_below_min_count
                    or self.count_request(group.start, tail.tokens + size) > limits.target_tokens
                ):
                    break
                tail.is_widened = True
            self._prepend_to_tail(tail, indices, size, is_pruned=not is_recent)
        return tail

    def _prepend_to_tail(self, tail: Tail, indices: range, size: int, *, is_pruned: bool) -> None:
        """Add a group of messages at the start of the tail."""
        tail.start = indices.start
        tail.tokens += size
        tail.used_budget += size
        if is_pruned:
            tail.pruned_indices.update(indices)
        else:
            max_tokens = self._max_result_tokens
            tail.result_limits.update(
                (index, max_tokens) for index in indices if self.kept.sizes[index] > max_tokens
            )

    def _restore_results(self, tail: Tail, read_indices: Sequence[int]) -> None:
        """Spend the rest of the tail budget on full results: reads of files first, then the newest."""
        remaining = min(
            self.limits.tail_tokens - tail.used_budget,
            self.limits.target_tokens - self.count_request(tail.start, tail.tokens),
        )
        other_indices = sorted(tail.pruned_indices.difference(read_indices), reverse=True)
        for index in (
            *(read_index for read_index in read_indices if read_index in tail.pruned_indices),
            *other_indices,
        ):
            if remaining <= 0:
                break
            max_tokens = self._max_result_tokens
            added_tokens = self._count_tokens_to_restore(index)
            if added_tokens > remaining >= _MIN_CUT_TOKENS:
                max_tokens = max(
                    self.kept.pruned_size(index) + remaining - MIN_RESULT_TOKENS,
                    MIN_RESULT_TOKENS,
                )
                _, cut_size = self.kept.cut_results_to(index, max_tokens)
                added_tokens = cut_size - self.kept.pruned_size(index)
            if 0 < added_tokens <= remaining:
                remaining -= added_tokens
                tail.tokens += added_tokens
                tail.used_budget += added_tokens
                tail.pruned_indices.discard(index)
                if self.kept.sizes[index] > max_tokens:
                    tail.result_limits[index] = max_tokens

    def _find_newest_reads(self, tail: Tail) -> list[int]:
        """Return the tail messages with the newest read of a file that was not changed since, newest first."""
        seen_paths: set[str] = set()
        read_indices: list[int] = []
        for index in range(len(self.kept.messages) - 1, tail.start - 1, -1):
            calls = self.kept.history.answered_calls.get(index, ())
            for files in self.kept.history.facts[index].find_named_files(calls):
                if (
                    not files.is_change
                    and index in tail.pruned_indices
                    and not seen_paths.issuperset(files.paths)
                ):
                    read_indices.append(index)
                seen_paths.update(files.paths)
        return list(dict.fromkeys(read_indices))

    def make_cut(self, tail: Tail) -> Cut:
        """Return the cut for this tail, with its size and the reasons."""
        user_index = self.kept.find_user_before_tail(tail.start)
        facts = self.kept.history.facts
        excluded_indices = self.kept.permanent.standalone_indices | {user_index}
        middle_facts = (
            facts[index]
            for index in range(self.kept.head_end, tail.start)
            if index not in excluded_indices
        )
        reasons = (
            f"The head is {count_noun(self.kept.head_end, 'message')}.",
            self._explain_tail(tail),
            _explain_user_message(self.kept.latest_user_index, self.kept.head_end, tail.start),
        )
        return Cut(
            head_end=self.kept.head_end,
            tail_start=tail.start,
            pruned_indices=frozenset(tail.pruned_indices),
            kept_user_index=user_index,
            has_middle=any(
                message_facts.without_summary is not None for message_facts in middle_facts
            ),
            tokens=self.count_request(tail.start, tail.tokens),
            reasons=reasons,
        )

    def count_request(self, tail_start: int, tail_tokens: int) -> int:
        """Return the tokens of the compacted request with this tail."""
        words_tokens = min(
            self.limits.user_words_tokens, self.user_words_sizes.sum_before(tail_start)
        )
        return (
            self.limits.fixed_tokens
            + self.kept.count_outside_tail(tail_start)
            + self.limits.summary_tokens
            + words_tokens
            + tail_tokens
        )

    @property
    def _max_result_tokens(self) -> int:
        """The maximum tokens of one result in the tail."""
        return max(self.limits.tail_tokens // RESULT_DIVISOR, MIN_RESULT_TOKENS)

    def recount(self, tail: Tail, cut: Cut) -> Cut:
        """Return the cut with its size counted again, after messages of the tail changed."""
        older_tokens = sum(
            self._kept_size(tail, index) for index in range(tail.start, self.kept.min_tail_start)
        )
        tail.tokens = older_tokens + sum(
            self.kept.sizes[max(tail.start, self.kept.min_tail_start) :]
        )
        return replace(cut, tokens=self.count_request(tail.start, tail.tokens))

    def _kept_size(self, tail: Tail, index: int) -> int:
        """Return the tokens of a message as the tail keeps it: pruned, cut or whole."""
        if index in tail.pruned_indices:
            return self.kept.pruned_size(index)
        return (
            self.kept.cut_results_to(index, tail.result_limits[index])[1]
            if index in tail.result_limits
            else self.kept.sizes[index]
        )

    def _size_in_tail(self, index: int) -> int:
        """Return the tokens of a message with its results cut to the maximum."""
        if (
            self.kept.sizes[index] <= self._max_result_tokens
            or not self.kept.history.facts[index].results
        ):
            return self.kept.sizes[index]
        return self.kept.cut_results_to(index, self._max_result_tokens)[1]

    def _count_tokens_to_restore(self, index: int) -> int:
        """Return how many tokens the full results of a message add to their one-line forms."""
        return self._size_in_tail(index) - self.kept.pruned_size(index)

    def _explain_tail(self, tail: Tail) -> str:
        """Return a sentence on the size of the tail and the reason for it."""
        message_count = count_noun(len(self.kept.messages) - tail.start, "message")
        size_text = (
            f"The tail is {message_count}, {tail.tokens:,} tokens of {self.limits.tail_tokens:,}"
        )
        if tail.start == self.kept.min_tail_start:
            return f"{size_text}: the latest group or message, which always stays."
        if tail.is_widened:
            minimum = self.limits.protect_last_n
            target_tokens = self.limits.target_tokens
            return f"{size_text}: widened towards the last {minimum} messages, up to {target_tokens:,} tokens in all."
        if tail.tokens > self.limits.tail_tokens:
            return f"{size_text}: the latest group is larger than its share."
        return f"{size_text}."


def _explain_user_message(user_index: int | None, head_end: int, tail_start: int) -> str:
    """Return a sentence that says in which part the latest user message is kept."""
    if user_index is None:
        return "There is no user message to keep."
    if user_index < head_end:
        return f"The latest user message ({user_index}) stays in the head."
    if user_index >= tail_start:
        return f"The latest user message ({user_index}) stays in the tail."
    return f"The latest user message ({user_index}) is older than the tail: it is kept word for word after the summary."
