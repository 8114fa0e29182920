"""A compaction that was prepared, and the messages since then."""

from __future__ import annotations

import pytest

from everthread.compaction.lossless.lossless_engine import LosslessEngine
from everthread.compaction.summary.sections import GOAL
from everthread.core.messages import Message, text_of
from everthread.core.summary_marks import is_summary, summary_text
from everthread.core.validation import validate_messages
from everthread.testing import ScriptedSummarizer
from tests.chat_messages import assistant_message, user_message
from tests.compaction.histories import (
    JOURNAL,
    flatten,
    make_engine,
    make_services,
    max_compacted_tokens,
    tool_turns,
)

CONVERSATION = [
    user_message("Tidy up."),
    assistant_message("I will."),
    *tool_turns(0, 60),
    assistant_message("Done."),
    user_message("Now the tests."),
    *tool_turns(60, 4),
]
LIMIT = max_compacted_tokens(32_000)


async def prepare(since: list[Message]) -> tuple[list[Message], str, str, int]:
    """Prepare a summary and use it after these messages; return the result, both summaries, and its size."""
    writer = ScriptedSummarizer({GOAL: "Tidy modules."})
    engine = make_engine(32_000, writer)
    prepared = await engine.compress(CONVERSATION)
    state = engine.dump_state()
    refitted = await engine.refit(prepared, since, start=len(CONVERSATION))
    assert len(writer.requests) == 1, "no model is asked again"
    assert engine.dump_state() == state
    whole = [*CONVERSATION, *since]
    for message, index in zip(refitted.messages, refitted.kept, strict=True):
        assert index is None or message["role"] == whole[index]["role"]
    kept = {index for index in refitted.kept if index is not None}
    assert kept.isdisjoint(refitted.covered)
    assert validate_messages(refitted.messages) == []
    assert sum(map(is_summary, refitted.messages)) == 1
    return refitted.messages, prepared.summary, refitted.summary, refitted.tokens_after


async def test_new_messages_that_fit_are_appended() -> None:
    since = [assistant_message("All tidy."), user_message("Thanks!")]
    messages, before, after, _ = await prepare(since)
    assert messages[-2:] == since
    assert after == before


async def test_new_results_become_lines() -> None:
    since = tool_turns(100, 24)
    messages, before, after, tokens = await prepare(since)
    assert after == before, "the model's summary stays"
    assert tokens <= LIMIT
    assert messages[-1] == since[-1]
    assert len(messages) > len(since), "each of them is there"
    assert text_of(messages[-len(since) + 1]).startswith("[read_file] read src/module_100.py")


async def test_new_texts_are_covered_by_the_journal() -> None:
    since = flatten(
        (
            user_message(f"Point {number}."),
            assistant_message(f"Answer {number}. " * 150),
        )
        for number in range(30)
    )
    messages, _, after, tokens = await prepare(since)
    assert tokens <= LIMIT
    assert "Tidy modules." in after, "what the model understood is carried on"
    assert "Point 3." in after
    assert summary_text(next(message for message in messages if is_summary(message))) == after


@pytest.mark.parametrize("count", [4, 40])
async def test_the_lossless_engine_refits_too(count: int) -> None:
    lossless = LosslessEngine(make_services(32_000, JOURNAL))
    prepared = await lossless.compress(CONVERSATION)
    refitted = await lossless.refit(prepared, tool_turns(100, count), start=len(CONVERSATION))
    assert refitted.tokens_after <= LIMIT
    assert validate_messages(refitted.messages) == []
