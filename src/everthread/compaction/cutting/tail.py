"""Choose the tail of a history: the messages at the end that are kept.

Within its token budget the newest results stay, an oversized one cut to its share. Older results become one line each,
and are restored while tokens are left: reads of files first, then the newest.
"""

from __future__ import annotations

from collections.abc import Sequence

from everthread.compaction.cutting.cut import Tail, TokenLimits
from everthread.compaction.cutting.kept_messages import KeptMessages
from everthread.compaction.cutting.shortening import MIN_RESULT_TOKENS
from everthread.compaction.history.effect_kinds import find_named_files
from everthread.core.text import count_noun

RECENT_TAIL_DIVISOR = 2
"""The newest messages, which stay unchanged, get the tail budget divided by this; older messages get the rest."""
RESTORED_READS_DIVISOR = 4
"""All restored reads of files together take at most the tail budget divided by this."""
_MIN_CUT_TOKENS = 256
"""Cut one more result to fit only if at least this many tokens of the tail budget are left."""


def choose_tail(kept: KeptMessages, limits: TokenLimits) -> Tail:
    """Choose the largest tail that these limits allow. It holds at least the smallest tail."""
    tail = _collect_tail(kept, limits, reserved_tokens=0)
    read_indices = _find_newest_reads(kept, tail)
    read_tokens = sum(_count_tokens_to_restore(kept, limits, index) for index in read_indices)
    if read_tokens:
        reserved_tokens = min(read_tokens, limits.tail_tokens // RESTORED_READS_DIVISOR)
        tail = _collect_tail(kept, limits, reserved_tokens=reserved_tokens)
    _restore_results(kept, limits, tail, read_indices)
    return tail


def make_smallest_tail(kept: KeptMessages, limits: TokenLimits) -> Tail:
    """Return the tail that always stays: the unanswered group, or the latest message."""
    tokens = kept.min_tail_tokens
    # It takes half of the budget at most, so that it does not push small recent messages out.
    used_budget = min(tokens, limits.tail_tokens // RECENT_TAIL_DIVISOR)
    return Tail(kept.min_tail_start, tokens, used_budget=used_budget)


def explain_cut(kept: KeptMessages, limits: TokenLimits, tail: Tail) -> tuple[str, ...]:
    """Return sentences on the head, the tail and the latest user message."""
    return (
        f"The head is {count_noun(kept.head_end, 'message')}.",
        _explain_tail(kept, limits, tail),
        _explain_user_message(kept.latest_user_index, kept.head_end, tail.start),
    )


def _collect_tail(kept: KeptMessages, limits: TokenLimits, *, reserved_tokens: int) -> Tail:
    """Collect the tail from the end backwards until its budget, less `reserved_tokens`, is used."""
    recent_budget = limits.tail_tokens // RECENT_TAIL_DIVISOR
    tail = make_smallest_tail(kept, limits)
    is_recent = True
    for group in reversed(kept.history.groups):
        if group.end > tail.start:
            continue
        if group.start < kept.head_end or kept.holds_summary(group):
            break
        indices = range(group.start, group.end)
        size = 0
        if is_recent:
            size = sum(kept.count_in_tail(index, limits.max_result_tokens) for index in indices)
            is_recent = tail.used_budget + size <= recent_budget
        if not is_recent:
            size = sum(map(kept.count_pruned, indices))
        if tail.used_budget + size > limits.tail_tokens - reserved_tokens:
            if len(kept.messages) - tail.start >= limits.protect_last_n:
                break
            request_tokens = kept.count_request(limits, group.start, tail.tokens + size)
            if request_tokens > limits.target_tokens:
                break
            tail.is_widened = True
        tail.start = group.start
        tail.tokens += size
        tail.used_budget += size
        if is_recent:
            for index in indices:
                if kept.sizes[index] > limits.max_result_tokens:
                    tail.result_limits[index] = limits.max_result_tokens
        else:
            tail.pruned_indices.update(indices)
    return tail


def _restore_results(
    kept: KeptMessages, limits: TokenLimits, tail: Tail, read_indices: Sequence[int]
) -> None:
    """Spend the rest of the tail budget on full results: reads of files first, then the newest."""
    remaining = min(
        limits.tail_tokens - tail.used_budget,
        limits.target_tokens - kept.count_request(limits, tail.start, tail.tokens),
    )
    pruned_reads = [index for index in read_indices if index in tail.pruned_indices]
    other_indices = sorted(tail.pruned_indices.difference(read_indices), reverse=True)
    for index in (*pruned_reads, *other_indices):
        if remaining <= 0:
            break
        max_tokens = limits.max_result_tokens
        added_tokens = _count_tokens_to_restore(kept, limits, index)
        if added_tokens > remaining >= _MIN_CUT_TOKENS:
            pruned_tokens = kept.count_pruned(index)
            max_tokens = max(pruned_tokens + remaining - MIN_RESULT_TOKENS, MIN_RESULT_TOKENS)
            _, cut_size = kept.cut_results_to(index, max_tokens)
            added_tokens = cut_size - pruned_tokens
        if 0 < added_tokens <= remaining:
            remaining -= added_tokens
            tail.tokens += added_tokens
            tail.used_budget += added_tokens
            tail.pruned_indices.discard(index)
            if kept.sizes[index] > max_tokens:
                tail.result_limits[index] = max_tokens


def _count_tokens_to_restore(kept: KeptMessages, limits: TokenLimits, index: int) -> int:
    """Return how many tokens the full results of a message add to their one-line forms."""
    return kept.count_in_tail(index, limits.max_result_tokens) - kept.count_pruned(index)


def _find_newest_reads(kept: KeptMessages, tail: Tail) -> list[int]:
    """Return the tail messages with the newest read of a file that was not changed since, newest first."""
    seen_paths: set[str] = set()
    read_indices: list[int] = []
    for index in range(len(kept.messages) - 1, tail.start - 1, -1):
        result_count = len(kept.history.facts[index].results)
        for number in range(result_count - 1, -1, -1):
            call = kept.history.find_answered_call(index, number)
            files = find_named_files(call) if call else None
            if files is None:
                continue
            is_newest_read = not files.is_change and not seen_paths.issuperset(files.paths)
            if is_newest_read and index in tail.pruned_indices:
                read_indices.append(index)
            seen_paths.update(files.paths)
    return list(dict.fromkeys(read_indices))


def _explain_tail(kept: KeptMessages, limits: TokenLimits, tail: Tail) -> str:
    """Return a sentence on the size of the tail and the reason for it."""
    if tail.start == len(kept.messages):
        return "There is no tail."
    message_count = count_noun(len(kept.messages) - tail.start, "message")
    size_text = f"The tail is {message_count}, {tail.tokens:,} tokens of {limits.tail_tokens:,}"
    if tail.start == kept.min_tail_start:
        return f"{size_text}: the latest group or message, which always stays."
    if tail.is_widened:
        return (
            f"{size_text}: widened towards the last {limits.protect_last_n} messages, "
            f"up to {limits.target_tokens:,} tokens in all."
        )
    if tail.tokens > limits.tail_tokens:
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
