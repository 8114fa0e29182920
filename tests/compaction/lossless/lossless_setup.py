"""A lossless engine over test doubles, a long history for it, and a view of its summaries."""

from __future__ import annotations

import re
from typing import Any

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.engine import Services
from everthread.compaction.lossless import LosslessEngine, LosslessOptions
from everthread.compaction.lossless.graph import VisibleNode, read_visible_nodes
from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.core.messages import Message
from everthread.core.tokens.budget import Budget
from tests.chat_messages import assistant_message, user_message
from tests.compaction.histories import COUNTER, JOURNAL, tool_turns

WINDOW = 16_000
THOUGHT = "The part was read with care, compared with its neighbours and found to be in order. " * 6
OPENING = [user_message("Turn 1: begin."), assistant_message("I have begun.")]
TURN = re.compile(r"Turn (\d+)")
NODE = re.compile(r"^\[node (n[0-9a-f]{12}): ", re.MULTILINE)


def make_services(
    summarizer: Summarizer | None = None, *, window: int = WINDOW, **more: Any
) -> Services:
    return Services(summarizer or JOURNAL, COUNTER, Budget.for_window(window), lambda: 0.0, **more)


def make_lossless_engine(
    summarizer: Summarizer | None = None, *, window: int = WINDOW, **options: Any
) -> LosslessEngine:
    return LosslessEngine(make_services(summarizer, window=window), LosslessOptions(**options))


def extend_history(messages: list[Message], *, window: int = WINDOW) -> list[Message]:
    """Return the history with as many turns more as it takes until it is time to compact."""
    messages = list(messages)
    turn = max(map(int, TURN.findall(str(messages))), default=0)
    while COUNTER.messages(messages) < Budget.for_window(window).threshold:
        turn += 1
        messages += [
            user_message(f"Turn {turn}: look at part {turn}."),
            *tool_turns(turn * 3, 3),
            assistant_message(f"Turn {turn} is done; its code is K-{turn}77. {THOUGHT}"),
        ]
    return messages


async def compact_lossless(
    messages: list[Message],
    *,
    summarizer: Summarizer | None = None,
    window: int = WINDOW,
    **options: Any,
) -> Compaction:
    """Compact a history with a new engine with these options."""
    engine = make_lossless_engine(summarizer, window=window, **options)
    return await engine.compress(messages)


async def compact_repeatedly(
    rounds: int, *, fresh: bool = False, window: int = WINDOW
) -> list[Compaction]:
    """Compact one history repeatedly, each time with new turns. `fresh`: each time with a new engine."""
    engine = make_lossless_engine(window=window)
    messages = OPENING
    results = []
    for _ in range(rounds):
        engine = make_lossless_engine(window=window) if fresh else engine
        result = await engine.compress(extend_history(messages, window=window))
        engine.on_compacted(result)
        results.append(result)
        messages = result.messages
    return results


def visible_nodes(result: Compaction) -> list[VisibleNode]:
    return read_visible_nodes(result.summary, first_turn=1, last_turn=1, message_count=1)
