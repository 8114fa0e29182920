"""Notices to the user about compactions."""

from __future__ import annotations

MIN_REPEATED_COMPACTIONS = 2
"""From this compaction of a thread on, warn the user that detail may fade."""


def make_repeated_compaction_notice(
    compaction_count: int, advice: str = "A new conversation starts afresh"
) -> str:
    return (
        f"This conversation was compacted {compaction_count} times; older detail may fade. {advice}; "
        "keep what must last in the system prompt or a memory."
    )


def make_fixed_size_notice(fixed_tokens: int, window: int, advice: str) -> str:
    """Return the notice that system prompt and tools raise the threshold."""
    share = round(100 * fixed_tokens / window)
    return (
        f"System prompt and tools alone take {fixed_tokens:,} tokens ({share} % of the window), as much as the "
        f"threshold: the history is compacted at 85 % of the window only. {advice}"
    )


def make_pause_notice(tokens: int) -> str:
    return (
        f"Automatic compaction is paused: two in a row hardly made the prompt smaller ({tokens:,} tokens). It resumes "
        "when the history has grown by a tenth or after five minutes."
    )
