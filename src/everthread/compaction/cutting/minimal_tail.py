"""The minimal tail of a history: calls that are not answered yet with their results, or the latest message."""

from __future__ import annotations

from everthread.compaction.history.compaction_history import CompactionHistory
from everthread.core.message_repair import STUB_RESULT
from everthread.core.summary_marks import without_summary


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
    return any(facts.is_user for facts in following) and all(text == STUB_RESULT for text in texts)
