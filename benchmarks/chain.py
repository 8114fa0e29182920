"""Real sessions compacted ten times in a row, as bare lists: does every word of the user still stand in the context?

A user message counts as there when its text, redacted, stands in the context word for word; quoting at the start of a
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
PROMISED = 128_000
"""From this window on every user message of an agent's session stays."""
USER_WORDS = 0.25
LARGEST = 0.60
APIS = ("openai", "openai_responses", "anthropic")
_QUOTING = re.compile(r"^[ \t]*(?:[>\\|][ \t]?)+|^[ \t]+|[ \t]+$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Chained:
    """What ten compactions left of a thread."""

    said: int
    """User messages that differ from each other."""
    there: int
    in_order: bool
    share: float
    """All that the user said, in parts of the room for it."""
    largest: float
    """The largest result, in parts of the threshold."""
    invalid: int
    """Results that an API refuses."""


def run() -> list[Row]:
    if shared("transcripts") is None:
        return [absent("real sessions")]
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
        work = {
            (window, kind, half): pool.submit(chain, kind, half, window)
            for window in WINDOWS
            for kind, half in THREADS
        }
        return [
            row
            for (window, kind, half), done in work.items()
            for row in _rows(window, kind, half, done.result())
        ]


def _rows(window: int, kind: str, half: str, found: Chained) -> list[Row]:
    name = f"{window // 1000}K, {kind} ({half})"
    promised = window >= PROMISED and kind != CHAT and found.share <= 1
    figure = f"{found.there} of {found.said}"
    if found.there == found.said:
        figure += ", in order" if found.in_order else ", out of order"
    room = f"the user's words are {found.share:.2f} of their room"
    whole = found.there == found.said and found.in_order
    goal, met = ("all", whole) if promised else ("", None)
    return [
        Row(f"{name}: user messages word for word", f"{figure}; {room}", goal, met),
        Row(
            f"{name}: largest result",
            f"{found.largest:.0%} of T",
            f"≤ {LARGEST:.0%}",
            found.largest <= LARGEST,
        ),
        Row(
            f"{name}: results an API refuses",
            str(found.invalid),
            "0",
            found.invalid == 0,
        ),
    ]


def chain(kind: str, half: str, window: int) -> Chained:
    contexts = Contexts(window, (), ())
    said: Counter[str] = Counter()
    sizes: list[float] = []
    invalid = 0
    for piece in pieces(thread(kind, half)):
        messages = [recorded.message for recorded in piece]
        said.update(redact(text) for message in messages if (text := _said(message)))
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
    context = _unquoted("\n".join(map(text_of, contexts.current[OURS].messages)))
    words = sum(map(contexts.counter.text, said))
    return Chained(
        len(said),
        sum(_unquoted(text) in context for text in said),
        _in_order([text for text, times in said.items() if times == 1], context),
        words / (USER_WORDS * contexts.threshold),
        max(sizes),
        invalid,
    )


def _said(message: Message) -> str:
    return text_of(message).strip() if message["role"] == "user" else ""


def _in_order(texts: Sequence[str], context: str) -> bool:
    """Of texts that stand there exactly once; of what was said twice one place must do."""
    places = [
        context.index(text)
        for text in map(_unquoted, texts)
        if context.count(text) == 1
    ]
    return places == sorted(places)


def _unquoted(text: str) -> str:
    return _QUOTING.sub("", text)
