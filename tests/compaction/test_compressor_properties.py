"""Properties of every history, window and number of compactions."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everthread.compaction.compressor import ContextCompressor
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.core.messages import Message
from everthread.core.secrets.redaction import find_secrets
from everthread.core.summary_marks import is_summary
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.core.turns import (
    find_call_groups,
    find_latest_user_index,
    split_into_spans,
    user_text,
)
from everthread.core.validation import validate_messages
from tests.compaction.histories import (
    assistant_message,
    make_engine,
    tool_turns,
    user_message,
)
from tests.core.strategies import histories
from tests.shared_data import ROOT

COUNTER = TokenCounter("gpt-4o")
WINDOWS = (4_000, 16_000, 64_000, 200_000)


def compressor(window: int) -> ContextCompressor:
    return make_engine(window, JournalWriter(COUNTER))


async def expect_compaction(window: int, messages: list[Message]) -> list[Message]:
    """Compact once, check every promise, and return the compacted messages."""
    before = copy.deepcopy(messages)
    result = await compressor(window).compress(messages)
    assert messages == before, "the input is never changed"
    if not result.changed:
        assert result.messages == messages
        assert result.reason
        return messages
    assert result.tokens_after < result.tokens_before
    threshold = Budget.for_window(window).threshold
    least = sum(map(COUNTER.message, messages[split_into_spans(messages)[-1].start :]))
    assert result.tokens_after < threshold or least > threshold // 3, (
        "only a giant latest group may not fit"
    )
    for api in ("openai", "anthropic"):
        problems = {
            problem.rule for problem in validate_messages(result.messages, api=api)
        }
        given = {problem.rule for problem in validate_messages(messages, api=api)}
        # Open calls at the end stay open; if nothing is summarised, the list keeps its beginning.
        assert problems <= {"missing-result", "foreign-block"} | (
            given if not result.covered else set()
        )
    # If only results shrink, the messages stay.
    summaries = sum(map(is_summary, messages)) if not result.covered else 1
    assert sum(map(is_summary, result.messages)) == summaries
    old = find_latest_user_index(messages)
    new = find_latest_user_index(result.messages)
    if old is not None and not any("user messages" in step for step in result.steps):
        assert new is not None
        assert user_text(result.messages[new]) == user_text(messages[old])
    assert not find_secrets(result.summary)
    covered = set(result.covered)
    for group in find_call_groups(messages):
        # The latest user message stays, even if it is next to a tool's result.
        results = [index for index in group.result_indexes if index != old]
        together = {
            group.assistant_index in covered,
            *(index in covered for index in results),
        }
        assert len(together) == 1, "a group is kept or covered as a whole"
    return result.messages


@settings(max_examples=25)
@given(histories(), st.sampled_from(WINDOWS))
async def test_any_history(messages: list[Message], window: int) -> None:
    await expect_compaction(window, messages)


@pytest.mark.parametrize("window", [4_000, 64_000])
async def test_ten_times_in_a_row_with_new_turns_between(window: int) -> None:
    conversation: list[Message] = [
        user_message("Start."),
        assistant_message("Yes?"),
        *tool_turns(0, 20),
        user_message("Go on."),
    ]
    sizes = []
    for round_ in range(10):
        conversation = await expect_compaction(window, conversation)
        sizes.append(sum(map(COUNTER.message, conversation)))
        conversation = [
            *conversation,
            assistant_message("Done."),
            user_message(f"Now step {round_}."),
            *tool_turns(100 * (round_ + 1), window // 700),
        ]
    assert max(sizes) < Budget.for_window(window).threshold


TRANSCRIPTS = sorted((ROOT / "transcripts").glob("*.json"))


@pytest.mark.skipif(
    not TRANSCRIPTS, reason=f"real material is absent: {ROOT} (set EVERTHREAD_DATA)"
)
@pytest.mark.parametrize("window", [4_000, 64_000])
async def test_real_conversations(window: int) -> None:
    for path in TRANSCRIPTS:
        messages = json.loads(path.read_text("utf-8"))["messages"]
        for _ in range(3):
            messages = await expect_compaction(window, messages)
            messages = [
                *messages,
                assistant_message("Done."),
                user_message("Go on."),
                *tool_turns(500, 5),
            ]


async def test_the_shipped_session() -> None:
    messages = json.loads(Path("examples/long_session.json").read_text("utf-8"))[
        "messages"
    ]
    text = json.dumps(await expect_compaction(200_000, messages), ensure_ascii=False)
    for fact in (
        "db-staging-07.internal",
        "6543",
        "never touch the migrations folder",
        "提交说明请用中文写",
    ):
        assert fact in text
