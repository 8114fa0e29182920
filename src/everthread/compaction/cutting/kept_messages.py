"""The messages of a history as a cut keeps them: whole, pruned, or shortened, with their sizes."""

from __future__ import annotations

from everthread.compaction.cutting.cut import (
    RunningSizes,
    Tail,
    TokenLimits,
    make_running_sizes,
    without_tool_results,
)
from everthread.compaction.cutting.permanent_messages import PermanentMessages
from everthread.compaction.cutting.pruning import Pruner
from everthread.compaction.cutting.shortening import ShortenedMessage, cut_results
from everthread.compaction.history.compaction_history import CompactionHistory
from everthread.core.message_repair import STUB_RESULT
from everthread.core.messages import Message
from everthread.core.summary_marks import without_summary
from everthread.core.tokens import TokenCounter
from everthread.core.tool_outputs import OutputToStore
from everthread.core.turns import Span


class KeptMessages:
    """The messages of a history, each of which a cut may keep whole, prune or shorten."""

    def __init__(
        self,
        pruner: Pruner,
        counter: TokenCounter,
        permanent: PermanentMessages,
        *,
        user_words_sizes: RunningSizes,
    ) -> None:
        """Begin with the unchanged messages.

        `permanent`: messages outside the conversation, which always stay. `user_words_sizes`: sizes of the user's
        messages outside the head.
        """
        history = pruner.history
        self.history = history
        self.pruner = pruner
        self.counter = counter
        self.permanent = permanent
        self.user_words_sizes = user_words_sizes
        indices_after_head = permanent.list_indices_between(history.head_end, len(history.messages))
        self._permanent_sizes = make_running_sizes(
            (index, counter.message(permanent.messages[index])) for index in indices_after_head
        )
        self.outputs_to_store: dict[int, tuple[OutputToStore, ...]] = {}
        """Texts to store for each shortened message, by its index."""
        self.messages = list(history.messages)
        """A copy of the input, in which messages are replaced by shortened ones."""
        self.sizes = list(history.sizes)
        """Tokens of each message, without an earlier summary in it."""
        for index in history.summary_indices:
            self.sizes[index] = self._count_without_summary(history.messages[index])
        self.head_end = history.head_end
        self.latest_user_index = history.latest_user_index
        latest_start, self.has_unanswered_calls = find_minimal_tail(history)
        self.min_tail_start = max(latest_start, self.head_end)
        """Start of the smallest tail: the unanswered group, or the latest message."""
        self._has_separate_summary = any(
            history.facts[index].without_summary is None for index in history.summary_indices
        )
        """Whether an earlier summary is a separate message."""
        self._tool_names = {call.id: call.name for facts in history.facts for call in facts.calls}
        self._shortened: dict[tuple[int, int], tuple[ShortenedMessage, int]] = {}
        """Messages with shortened results and their sizes, by index and maximum tokens per result."""

    @property
    def min_tail_tokens(self) -> int:
        """Tokens of the smallest tail."""
        return sum(self.sizes[self.min_tail_start :])

    def replace_message(self, index: int, shortened: ShortenedMessage) -> None:
        """Replace the message at this index with a shortened one."""
        self.messages[index] = shortened.message
        if shortened.outputs_to_store:
            self.outputs_to_store[index] = shortened.outputs_to_store
        self.sizes[index] = self._count_without_summary(shortened.message)

    def cut_results_to(self, index: int, max_tokens: int) -> tuple[ShortenedMessage, int]:
        """Return a message with each of its results cut to `max_tokens`, and its size."""
        result = self._shortened.get((index, max_tokens))
        if result is None:
            shortened = self.cut_original_results(index, max_tokens)
            size = self._count_without_summary(shortened.message)
            result = self._shortened[index, max_tokens] = (shortened, size)
        return result

    def cut_original_results(
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

    def count_pruned(self, index: int) -> int:
        """Return the tokens of a message after each of its results is shortened to one line."""
        if not self.history.facts[index].is_summary:
            return self.pruner.count_tokens(index, self.counter)
        return self._count_without_summary(self.pruner.prune_message(index))

    def _count_without_summary(self, message: Message) -> int:
        """Return the tokens of a message without an earlier summary in it."""
        remainder = without_summary(message)
        return 0 if remainder is None else self.counter.message(remainder)

    def holds_summary(self, group: Span) -> bool:
        """Return whether a group holds an earlier summary as a separate message."""
        return self._has_separate_summary and any(
            facts.without_summary is None for facts in self.history.facts[group.start : group.end]
        )

    def find_user_before_tail(self, tail_start: int) -> int | None:
        """Return the index of the latest user message if it is between the head and a tail that starts here."""
        index = self.latest_user_index
        return index if index is not None and self.head_end <= index < tail_start else None

    def count_outside_tail(self, tail_start: int) -> int:
        """Return the tokens of the messages kept outside the tail."""
        tokens = sum(self.sizes[: self.head_end]) + self._permanent_sizes.sum_before(tail_start)
        user_index = self.find_user_before_tail(tail_start)
        if user_index is not None:
            tokens += self.counter.message(without_tool_results(self.messages[user_index]))
        return tokens

    def count_user_words(self, limits: TokenLimits, tail_start: int) -> int:
        """Return the tokens of the user's words in the summary."""
        return min(limits.user_words_tokens, self.user_words_sizes.sum_before(tail_start))

    def count_request(self, limits: TokenLimits, tail_start: int, tail_tokens: int) -> int:
        """Return the tokens of the compacted request with this tail."""
        return (
            limits.fixed_tokens
            + self.count_outside_tail(tail_start)
            + limits.summary_tokens
            + self.count_user_words(limits, tail_start)
            + tail_tokens
        )

    def count_in_tail(self, index: int, max_result_tokens: int) -> int:
        """Return the tokens of a message with its results cut to the maximum."""
        if self.sizes[index] <= max_result_tokens or not self.history.facts[index].results:
            return self.sizes[index]
        return self.cut_results_to(index, max_result_tokens)[1]

    def count_tail(self, tail: Tail) -> int:
        """Return the tokens of the messages as a tail keeps them: pruned, cut or whole."""
        tokens = sum(self.sizes[max(tail.start, self.min_tail_start) :])
        for index in range(tail.start, self.min_tail_start):
            if index in tail.pruned_indices:
                tokens += self.count_pruned(index)
            elif index in tail.result_limits:
                tokens += self.cut_results_to(index, tail.result_limits[index])[1]
            else:
                tokens += self.sizes[index]
        return tokens


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
    last_answer = history.last_assistant_index
    if last_answer is None or not history.facts[last_answer].calls:
        return start, False
    if _is_interrupted(history, last_answer):
        return start, False
    group_start = next(group.start for group in groups if group.end > last_answer)
    return min(start, group_start), True


def _is_interrupted(history: CompactionHistory, index: int) -> bool:
    """Return whether the user wrote a message after these calls before any of them had a result."""
    following = history.facts[index + 1 :]
    texts = [output.text for facts in following for output in facts.outputs]
    return any(facts.is_user for facts in following) and all(text == STUB_RESULT for text in texts)
