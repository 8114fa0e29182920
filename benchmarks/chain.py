"""Real sessions compacted ten times in a row, as bare lists: does every word of the user still stand in the context?

A user message counts as there when its text, redacted, is in the context word for word; quoting at the start of a
line is allowed for, since a heading or a number inside a message must not be taken for one of the summary. Where all
that the user said is more than the room for it (a quarter of the threshold), nothing is promised and none is asked.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from benchmarks.retained.finding import text_of
from benchmarks.retained.labelled import pieces
from benchmarks.retained.race import OURS, Contexts
from benchmarks.retained.recordings import CHAT, THREADS, thread
from benchmarks.shared import shared
from benchmarks.table import Row, absent
from everthread import redact, validate_messages
from everthread.core.messages import Message

WINDOWS = (32_000, 64_000, 128_000, 200_000)
COMPACTIONS = 10
MIN_PROMISED_WINDOW = 128_000
"""From this window on every user message of an agent's session stays."""
USER_WORDS_SHARE = 0.25
MAX_RESULT_SHARE = 0.60
APIS = ("openai", "openai_responses", "anthropic")
_QUOTING = re.compile(r"^[ \t]*(?:[>\\|][ \t]?)+|^[ \t]+|[ \t]+$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ChainResult:
    """The context of a thread after ten compactions."""

    user_messages: int
    """Number of different user messages."""
    kept_messages: int
    """Number of those that are in the context."""
    is_in_order: bool
    words_share: float
    """Tokens of all user messages, as a share of the room for them."""
    largest_share: float
    """The largest result, as a share of the threshold."""
    invalid_results: int
    """Number of results that an API refuses."""


def run() -> list[Row]:
    if shared("transcripts") is None:
        return [absent("real sessions")]
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
    is_promised = (
        window >= MIN_PROMISED_WINDOW and kind != CHAT and result.words_share <= 1
    )
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
    for chunk in pieces(thread(kind, half)):
        messages = [recorded.message for recorded in chunk]
        user_texts.update(
            redact(text) for message in messages if (text := _user_text(message))
        )
        if not contexts.append(messages) or not contexts.compact():
            continue
        sizes.append(contexts.size / contexts.threshold)
        result = contexts.current[OURS].messages
        # Calls still to be answered: no API is asked yet.
        is_open = bool(result[-1].get("tool_calls"))
        invalid += not is_open and any(
            validate_messages(result, api=api) for api in APIS
        )
        if len(sizes) == COMPACTIONS:
            break
    context = remove_quoting("\n".join(map(text_of, contexts.current[OURS].messages)))
    user_tokens = sum(map(contexts.counter.text, user_texts))
    return ChainResult(
        len(user_texts),
        sum(remove_quoting(text) in context for text in user_texts),
        are_in_order(
            [text for text, times in user_texts.items() if times == 1], context
        ),
        user_tokens / (USER_WORDS_SHARE * contexts.threshold),
        max(sizes),
        invalid,
    )


def _user_text(message: Message) -> str:
    return text_of(message).strip() if message["role"] == "user" else ""


def are_in_order(texts: Sequence[str], context: str) -> bool:
    """Return whether the texts that occur exactly once are in order."""
    positions = [
        context.index(text)
        for text in map(remove_quoting, texts)
        if context.count(text) == 1
    ]
    return positions == sorted(positions)


def remove_quoting(text: str) -> str:
    return _QUOTING.sub("", text)
