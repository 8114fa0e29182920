"""A lossless engine over test doubles, a long history for it, and a view of its summaries."""

from __future__ import annotations

import re
from typing import Any

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.engine import Services
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.compaction.lossless import LosslessEngine, LosslessOptions
from everthread.compaction.lossless.graph import VisibleNode, read_visible_nodes
from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.core.messages import Message
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from tests.compaction.histories import assistant_message, tool_turns, user_message

COUNTER = TokenCounter("gpt-4o")
WINDOW = 16_000
THOUGHT = (
    "The part was read with care, compared with its neighbours and found to be in order. "
    * 6
)
NODE = re.compile(r"^\[node (n[0-9a-f]{12}): ", re.MULTILINE)


def make_services(
    summarizer: Summarizer | None = None, *, window: int = WINDOW, **more: Any
) -> Services:
    writer = summarizer or JournalWriter(COUNTER)
    return Services(writer, COUNTER, Budget.for_window(window), lambda: 0.0, **more)


def make_lossless_engine(
    summarizer: Summarizer | None = None, *, window: int = WINDOW, **options: Any
) -> LosslessEngine:
    return LosslessEngine(
        make_services(summarizer, window=window), LosslessOptions(**options)
    )


def extend_history(
    conversation: list[Message], turn: int, *, window: int = WINDOW
) -> tuple[list[Message], int]:
    """Extend the history until it is time to compact; return it and its number of turns."""
    conversation = list(conversation)
    while COUNTER.messages(conversation) < Budget.for_window(window).threshold:
        turn += 1
        asked = user_message(f"Turn {turn}: look at part {turn}.")
        conversation += [
            asked,
            *tool_turns(turn * 3, 3),
            assistant_message(
                f"Turn {turn} is done; its code is K-{turn}77. {THOUGHT}"
            ),
        ]
    return conversation, turn


async def compact_repeatedly(
    rounds: int, *, fresh: bool = False, window: int = WINDOW, **options: Any
) -> list[Compaction]:
    """Compact one history repeatedly: each time the last result and new turns."""
    engine = make_lossless_engine(window=window, **options)
    conversation, turn = extend_history(
        [user_message("Turn 1: begin."), assistant_message("I have begun.")],
        1,
        window=window,
    )
    done = []
    for _ in range(rounds):
        engine = make_lossless_engine(window=window, **options) if fresh else engine
        result = await engine.compress(conversation)
        engine.on_compacted(result)
        done.append(result)
        conversation, turn = extend_history(result.messages, turn, window=window)
    return done


def visible_nodes(result: Compaction) -> list[VisibleNode]:
    return read_visible_nodes(
        result.summary, first_turn=1, last_turn=1, message_count=1
    )
