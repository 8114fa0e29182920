"""A model writes the summary: conversations larger than its window, and failures."""

from __future__ import annotations

import asyncio
import json
import re
from itertools import pairwise

import pytest

from everthread.compaction.summarizers.conversation_record import (
    CLOSE,
    OPEN,
    to_inert_text,
)
from everthread.compaction.summarizers.llm_summarizer import LlmSummarizer
from everthread.compaction.summary.sections import render_sections
from everthread.core.turns import user_text
from everthread.core.types import ModelReply, ModelRequest
from everthread.errors import SummaryError
from tests.compaction.summarizers.model_doubles import (
    COUNTER,
    GOOD,
    GOOD_TEXT,
    FunctionModel,
    last_message_text,
    make_history,
    make_message,
    make_reply,
    model_that_says,
    summarize,
    summary_request,
)
from tests.shared_data import shared_path


def recording_model(seed: int, *, words: int = 150, **options: int) -> FunctionModel:
    """Return a model that notes which questions it saw; the seed decides the order of its answers."""

    async def answer(request: ModelRequest) -> ModelReply:
        for _ in range((len(model.requests) + seed) * 7 % 5):
            await asyncio.sleep(0)
        seen = " ".join(
            dict.fromkeys(re.findall(r"Question \d+|Q\d+", last_message_text(request)))
        ).replace("Question ", "Q")
        return make_reply(
            render_sections(
                {**GOOD, "Completed Actions": seen, "Critical Context": "fact " * words}
            )
        )

    model = FunctionModel(answer, **options)  # type: ignore[arg-type] # a window
    return model


def question_numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\bQ(\d+)", text)]


async def test_parts_are_summarised_and_joined_in_order() -> None:
    model = recording_model(1, window=8000, words=500)
    draft = await summarize(model, summary_request(make_history(200), budget=2000))
    assert question_numbers(draft.sections["Completed Actions"]) == list(range(200))
    assert all(COUNTER.request(each.messages, system=each.system) < 8000 for each in model.requests)
    merges = [each for each in model.requests if f"{OPEN}notes{CLOSE}" in last_message_text(each)]
    assert len(merges) > 2, "joined in rounds"
    for merge in merges:
        assert question_numbers(last_message_text(merge)) == sorted(
            question_numbers(last_message_text(merge))
        )
    assert len(draft.usage) == len(model.requests)


async def test_prefers_one_call_with_a_shorter_answer_to_two() -> None:
    model = model_that_says(GOOD_TEXT, window=8000)
    messages = make_history(32)
    assert COUNTER.messages(messages) > 4000
    await summarize(model, summary_request(messages, budget=2000))
    assert len(model.requests) == 1
    target = re.search(r"Aim at (\d+) tokens", last_message_text(model.requests[0]))
    assert target
    prompt = COUNTER.request(model.requests[0].messages, system=model.requests[0].system)
    assert prompt + 1.5 * int(target[1]) <= 8000
    assert 500 < int(target[1]) < 2000


async def test_the_order_of_the_answers_does_not_matter() -> None:
    runs = []
    for seed in range(3):
        model = recording_model(seed, window=8000)
        draft = await summarize(model, summary_request(make_history(120), budget=2000), parallel=3)
        runs.append((draft, sorted(last_message_text(each) for each in model.requests)))
    assert all(one == other for one, other in pairwise(runs))


async def test_concurrent_calls_are_limited() -> None:
    running = most = 0

    async def answer(_request: ModelRequest) -> ModelReply:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return make_reply(GOOD_TEXT)

    await summarize(
        FunctionModel(answer, window=6000),
        summary_request(make_history(200)),
        parallel=3,
    )
    assert most == 3


async def test_context_length_bounds_a_call_below_the_models_window() -> None:
    model = recording_model(0)
    await summarize(model, summary_request(make_history(120), budget=2000), context_length=6000)
    assert len(model.requests) > 3
    assert all(
        COUNTER.request(each.messages, system=each.system) <= 6000 for each in model.requests
    )
    model = recording_model(0, window=6000)
    await summarize(model, summary_request(make_history(120), budget=2000), context_length=500_000)
    assert all(
        COUNTER.request(each.messages, system=each.system) <= 6000 for each in model.requests
    )


async def test_a_message_larger_than_the_window_is_seen_whole() -> None:
    giant = "\n".join(f"Question {number}: why is line {number} there?" for number in range(3000))
    model = recording_model(0, window=8000, words=10)
    await summarize(model, summary_request([make_message("user", giant)], budget=1000))
    seen = "\n".join(last_message_text(each) for each in model.requests)
    assert {int(number) for number in re.findall(r"Question (\d+):", seen)} == set(range(3000))


async def test_a_previous_summary_is_joined_before_the_new_parts() -> None:
    model = recording_model(0, window=8000)
    previous = {
        "Goal": "Q900 was first.",
        "Critical Context": "\n".join(f"Value {n} is {n * n}." for n in range(900)),
    }
    draft = await summarize(
        model, summary_request(make_history(120), budget=2000, previous=previous)
    )
    assert question_numbers(draft.sections["Completed Actions"]) == [900, *range(120)]
    seen = "\n".join(last_message_text(each) for each in model.requests)
    assert all(f"Value {n} is {n * n}." in seen for n in range(900))
    parts = [
        last_message_text(each)
        for each in model.requests
        if f"{OPEN}record{CLOSE}" in last_message_text(each)
    ]
    assert not any("earlier checkpoint" in part for part in parts)


async def test_joining_long_notes_ends() -> None:
    model = recording_model(0, window=6000, words=900)
    draft = await summarize(model, summary_request(make_history(150), budget=2000))
    assert draft.warnings
    assert len(model.requests) < 100


async def test_summarises_an_empty_conversation() -> None:
    assert (
        await summarize(model_that_says(GOOD_TEXT), summary_request([], budget=100))
    ).author == "gpt-4o"


async def test_refuses_a_window_that_is_too_small() -> None:
    model = model_that_says(GOOD_TEXT, window=1500)
    with pytest.raises(SummaryError, match="1500 tokens is too small"):
        await summarize(model, summary_request())
    assert model.requests == []


async def test_one_failed_part_stops_the_others() -> None:
    started = 0

    async def answer(_request: ModelRequest) -> ModelReply:
        nonlocal started
        started += 1
        if started == 1:
            return make_reply(GOOD_TEXT)
        if started == 3:
            raise ConnectionError("gone")
        await asyncio.sleep(60)
        raise AssertionError

    before = asyncio.all_tasks()
    summarizer = LlmSummarizer(FunctionModel(answer, window=6000), COUNTER)
    with pytest.raises(SummaryError) as caught:
        await summarizer.summarize(summary_request(make_history(200)))
    assert asyncio.all_tasks() == before
    assert caught.value.is_transient
    assert len(caught.value.usage) == 1, "what was answered was paid for"
    assert started <= 5


async def test_cancelling_stops_all_calls() -> None:
    busy = asyncio.Event()

    async def answer(_request: ModelRequest) -> ModelReply:
        if len(model.requests) == 4:
            busy.set()
        await asyncio.sleep(60)
        raise AssertionError

    model = FunctionModel(answer, window=6000)
    before = asyncio.all_tasks()
    running = asyncio.create_task(
        LlmSummarizer(model, COUNTER).summarize(summary_request(make_history(200)))
    )
    await busy.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.all_tasks() == before
    assert len(model.requests) == 4


async def test_a_summary_error_of_a_model_is_raised_unchanged() -> None:
    async def answer(_request: ModelRequest) -> ModelReply:
        raise SummaryError("no provider is configured", has_no_provider=True)

    with pytest.raises(SummaryError, match=r"^no provider is configured$") as caught:
        await summarize(FunctionModel(answer), summary_request())
    assert caught.value.has_no_provider


async def test_the_input_is_not_changed() -> None:
    messages = make_history(60)
    before = repr(messages)
    await summarize(recording_model(0, window=6000), summary_request(messages, previous=GOOD))
    assert repr(messages) == before
    assert GOOD["Goal"] == "A parser that survives bad input."


async def test_every_user_message_of_a_real_conversation_is_seen() -> None:
    for path in sorted(shared_path("transcripts").glob("*.json")):
        messages = json.loads(path.read_text("utf-8"))["messages"]
        model = recording_model(0, window=8000)
        await summarize(model, summary_request(messages, budget=2000))
        seen = "\n".join(last_message_text(each) for each in model.requests)
        assert [
            text for text in map(user_text, messages) if to_inert_text(text).strip() not in seen
        ] == [], path.name
        assert all(
            COUNTER.request(each.messages, system=each.system) <= 8000 for each in model.requests
        )
