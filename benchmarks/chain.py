"""Compact real sessions ten times in a row, as bare lists, and look for every word of the user in the context.

A user message counts as kept if its redacted text is in the context word for word. Quote marks at the start of a line
are ignored, because headings and numbers inside a message are quoted. If the user's words exceed their share (a
quarter of the threshold), nothing is promised.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from benchmarks.retained.contender_contexts import OURS, Contexts
from benchmarks.retained.context_facts import whole_text
from benchmarks.retained.labelled_threads import group_messages
from benchmarks.retained.recordings import CHAT, THREADS, load_thread
from benchmarks.shared import find_shared
from benchmarks.table import Row, make_absent_row
from everthread import redact, validate_messages
from everthread.core.messages import Message

WINDOWS = (32_000, 64_000, 128_000, 200_000)
COMPACTIONS = 10
MIN_PROMISED_WINDOW = 128_000
"""From this window on, every user message of an agent's session is kept."""
USER_WORDS_SHARE = 0.25
MAX_RESULT_SHARE = 0.60
APIS = ("openai", "openai_responses", "anthropic")
_QUOTING = re.compile(r"^[ \t]*(?:[>\\|][ \t]?)+|^[ \t]+|[ \t]+$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ChainResult:
    """The context of a thread after ten compactions."""

    user_messages: int
    """Number of distinct user messages."""
    kept_messages: int
    """Number of those that are in the context."""
    is_in_order: bool
    words_share: float
    """Tokens of all user messages, as a share of their limit."""
    largest_share: float
    """The largest result, as a share of the threshold."""
    invalid_results: int
    """Number of results that an API refuses."""


def run() -> list[Row]:
    if find_shared("transcripts") is None:
        return [make_absent_row("real sessions")]
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
        work = {
            (window, kind, half): pool.submit(measure_chain, kind, half, window)
            for window in WINDOWS
            for kind, half in THREADS
        }
        return [
            row
            for (window, kind, half), future in work.items()
            for row in _rows(window, kind, half, future.result())
        ]


def _rows(window: int, kind: str, half: str, result: ChainResult) -> list[Row]:
    name = f"{window // 1000}K, {kind} ({half})"
    is_promised = window >= MIN_PROMISED_WINDOW and kind != CHAT and result.words_share <= 1
    figure = f"{result.kept_messages} of {result.user_messages}"
    if result.kept_messages == result.user_messages:
        figure += ", in order" if result.is_in_order else ", out of order"
    words_share = f"the user's words are {result.words_share:.2f} of their room"
    is_complete = result.kept_messages == result.user_messages and result.is_in_order
    goal, is_met = ("all", is_complete) if is_promised else ("", None)
    return [
        Row(
            f"{name}: user messages word for word",
            f"{figure}; {words_share}",
            goal,
            is_met,
        ),
        Row(
            f"{name}: largest result",
            f"{result.largest_share:.0%} of T",
            f"≤ {MAX_RESULT_SHARE:.0%}",
            result.largest_share <= MAX_RESULT_SHARE,
        ),
        Row(
            f"{name}: results an API refuses",
            str(result.invalid_results),
            "0",
            result.invalid_results == 0,
        ),
    ]


def measure_chain(kind: str, half: str, window: int) -> ChainResult:
    contexts = Contexts(window, (), ())
    user_texts: Counter[str] = Counter()
    sizes: list[float] = []
    invalid = 0
    for chunk in group_messages(load_thread(kind, half)):
        messages = [recorded.message for recorded in chunk]
        user_texts.update(redact(text) for message in messages if (text := _user_text(message)))
        if not contexts.append(messages) or not contexts.compact():
            continue
        sizes.append(contexts.size / contexts.threshold)
        result = contexts.current[OURS].messages
        # Calls still to be answered: no API is asked yet.
        is_open = bool(result[-1].get("tool_calls"))
        invalid += not is_open and any(validate_messages(result, api=api) for api in APIS)
        if len(sizes) == COMPACTIONS:
            break
    context = remove_quoting("\n".join(map(whole_text, contexts.current[OURS].messages)))
    user_tokens = sum(map(contexts.counter.text, user_texts))
    return ChainResult(
        len(user_texts),
        sum(remove_quoting(text) in context for text in user_texts),
        are_in_order([text for text, times in user_texts.items() if times == 1], context),
        user_tokens / (USER_WORDS_SHARE * contexts.threshold),
        max(sizes),
        invalid,
    )


def _user_text(message: Message) -> str:
    return whole_text(message).strip() if message["role"] == "user" else ""


def are_in_order(texts: Sequence[str], context: str) -> bool:
    """Return whether the texts that occur exactly once are in order."""
    positions = [
        context.index(text) for text in map(remove_quoting, texts) if context.count(text) == 1
    ]
    return positions == sorted(positions)


def remove_quoting(text: str) -> str:
    return _QUOTING.sub("", text)
