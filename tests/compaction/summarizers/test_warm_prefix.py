"""The warm route: the last request, byte for byte, with one message appended."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from everthread.compaction.summarizers import answer_judging
from everthread.compaction.summarizers.chain import SummarizerChain
from everthread.compaction.summarizers.summarizer import SummaryDraft, SummaryRequest
from everthread.compaction.summarizers.warm_prefix import WarmPrefixSummarizer
from everthread.core.caching.claude_cache_marks import apply_cache_control
from everthread.core.messages import Message
from everthread.core.types import ModelRequest
from everthread.errors import SummaryError
from everthread.testing import ScriptedSummarizer
from everthread.wire import openai_chat
from tests.compaction.summarizers.http_model import USAGE, completion_reply, serve_model
from tests.compaction.summarizers.model_doubles import (
    COUNTER,
    GOOD,
    GOOD_TEXT,
    last_message_text,
    make_history,
    make_message,
    model_that_says,
    summary_request,
)

TOOLS = [
    {
        "type": "function",
        "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}},
    }
]
MESSAGES = make_history(20)
LIVE = ModelRequest(
    "gpt-4o", MESSAGES, "You help.", TOOLS, {"temperature": 0.2, "tool_choice": "auto"}
)
MIDDLE = summary_request(MESSAGES[2:30])
CALL = {"id": "c", "type": "function", "function": {"name": "ls", "arguments": "{}"}}


async def summarize(
    live: ModelRequest | None, request: SummaryRequest = MIDDLE, **options: Any
) -> tuple[SummaryDraft, ModelRequest]:
    model = model_that_says(GOOD_TEXT, **options)
    draft = await WarmPrefixSummarizer(model, COUNTER, lambda: live).summarize(request)
    return draft, model.requests[0]


async def test_the_request_extends_the_last_one_byte_for_byte() -> None:
    async with serve_model(completion_reply(GOOD_TEXT)) as (model, server):
        draft = await WarmPrefixSummarizer(model, COUNTER, lambda: LIVE).summarize(MIDDLE)
        assert draft.sections == GOOD
        assert draft.author == "gpt-4o"
        assert draft.usage == ({**USAGE, "model": "gpt-4o-2024"},)
        sent = server.requests[0].body
        before = openai_chat.encode_request(LIVE)
        ours = sent["messages"].pop()
        assert json.dumps(sent) == json.dumps(before), "system, tools, messages and parameters"
        assert ours["role"] == "user"


async def test_the_appended_message_asks_for_a_summary() -> None:
    _, request = await summarize(
        LIVE, summary_request(MESSAGES[2:30], focus="the tokenizer", budget=700)
    )
    text = last_message_text(request)
    assert "assistant: Answer 14:" in text, "the last message covered"
    assert "## Critical Context" in text
    assert "700 tokens" in text
    assert '"the tokenizer"' in text
    assert "call no tool" in text


async def test_only_the_given_range_is_asked_for() -> None:
    _, request = await summarize(LIVE, summary_request(MESSAGES[10:20], is_stretch=True))
    text = last_message_text(request)
    first = text.index("user: Question 5:")
    last = text.index("assistant: Answer 9:")
    assert text.index("nothing else") < first < last
    assert "yours replaces it" not in text, "earlier summaries stay"


async def test_notes_are_left_to_the_next_summarizer() -> None:
    warm = WarmPrefixSummarizer(model_that_says(GOOD_TEXT), COUNTER, lambda: LIVE)
    assert warm.suits(MIDDLE)
    notes = summary_request([], notes=[GOOD, GOOD])
    assert not warm.suits(notes)
    plain = ScriptedSummarizer(GOOD)
    chain = SummarizerChain([warm, plain], clock=lambda: 0.0)
    assert await chain.summarize(notes) == SummaryDraft(GOOD, "scripted", route="scripted"), (
        "no warning: nothing failed"
    )


async def test_an_answer_with_calls_is_requested_again_with_the_same_tools() -> None:
    calling = completion_reply(None, stop="tool_calls", tool_calls=[CALL])
    async with serve_model(calling, completion_reply(GOOD_TEXT)) as (model, server):
        draft = await WarmPrefixSummarizer(model, COUNTER, lambda: LIVE).summarize(MIDDLE)
        assert draft.sections == GOOD
        assert len(draft.usage) == 2
        first, second = (request.body for request in server.requests)
        assert first["tools"] == second["tools"] == TOOLS
        assert first["messages"][:-1] == second["messages"][:-1]
        assert answer_judging.FAULT_CALLED_TOOLS in second["messages"][-1]["content"]
    async with serve_model(calling, calling) as (model, _):
        with pytest.raises(SummaryError, match=answer_judging.FAULT_CALLED_TOOLS) as caught:
            await WarmPrefixSummarizer(model, COUNTER, lambda: LIVE).summarize(MIDDLE)
        assert len(caught.value.usage) == 2


async def test_a_request_with_cache_markers_holds_the_same_messages() -> None:
    marked = apply_cache_control(MESSAGES, native_anthropic=True)
    assert marked[-1] is not MESSAGES[-1]
    draft, request = await summarize(
        ModelRequest("gpt-4o", marked, "You help."), summary_request(MESSAGES)
    )
    assert draft.sections == GOOD
    assert request.messages[:-1] == marked


@pytest.mark.parametrize(
    "live", [None, ModelRequest("gpt-4o", MESSAGES[:20])], ids=["nothing sent", "too old"]
)
async def test_messages_missing_in_the_request_cannot_be_summarised(
    live: ModelRequest | None,
) -> None:
    with pytest.raises(SummaryError, match="does not hold"):
        await summarize(live)


async def test_refuses_a_window_without_room_for_the_answer() -> None:
    with pytest.raises(SummaryError, match="no room left"):
        await summarize(LIVE, window=COUNTER.request(LIVE.messages) + 500)


async def test_the_last_message_may_be_calls_or_missing() -> None:
    call = cast("Message", {"role": "assistant", "content": None, "tool_calls": [CALL]})
    messages = [
        *MESSAGES,
        call,
        cast("Message", {"role": "tool", "tool_call_id": "c", "content": "a"}),
    ]
    _, request = await summarize(
        ModelRequest("gpt-4o", messages), summary_request([*MESSAGES, call])
    )
    assert "assistant: ls {}" in last_message_text(request)
    _, request = await summarize(ModelRequest("gpt-4o", messages), summary_request([]))
    assert "last message covered" in last_message_text(request)


def test_the_route_has_a_name_of_its_own() -> None:
    model = model_that_says(GOOD_TEXT, name="claude")
    assert WarmPrefixSummarizer(model, COUNTER, lambda: None).name == "claude on its warm prefix"


async def test_the_live_request_is_not_changed() -> None:
    before = repr(LIVE)
    await summarize(LIVE)
    assert repr(LIVE) == before
    assert LIVE.messages[-1] == make_message("assistant", str(MESSAGES[-1]["content"]))
