"""Whole conversations over HTTP, from a message to the compacted context and on."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.core.messages import text_of
from everthread.core.summary_marks import is_summary, recognize_summaries
from everthread.core.types import Api
from everthread.factory.stores import SUMMARY_KEY
from everthread.lab.provider import Fault
from everthread.store.records import NewSession
from everthread.thread.events import (
    CompactionStarted,
    OutputStored,
    UsageRecorded,
)
from tests.conversation.conversation_setup import make_text, numbered_text, send_texts
from tests.conversation.http_setup import (
    KEY,
    NAMES,
    TOOL,
    OpenHttp,
    answer_script,
    is_summary_call,
    make_answers,
    make_summary_text,
    served_model,
)

SYSTEM = "You keep the books of a shop. " + make_text(300, "account")


async def until_compacted(
    conversations: Any, conversation: Any, tokens: int = 400, max_turns: int = 80
) -> None:
    count = len(conversations.compactions)
    for turn in range(max_turns):
        if len(conversations.compactions) > count:
            return
        await conversation.send(numbered_text(turn, tokens, "subject"))
    raise AssertionError("it was never compacted")


@pytest.mark.parametrize("api", list(NAMES))
async def test_a_conversation_passes_its_window_several_times(
    open_http: OpenHttp, api: Api
) -> None:
    script = answer_script(lambda _: make_text(150, "answer"))
    conversations = await open_http([served_model(NAMES[api], 16_000)], script)
    conversation = await conversations.open(
        NAMES[api], api=api, system=SYSTEM, extra="compression: {background: false}"
    )
    for turn in range(36):
        pieces = [piece async for piece in conversation.stream(numbered_text(turn, 400, "topic"))]
        assert pieces[-1].text
        assert conversation.tokens < 16_000
    key = await conversations.store.keys.load_shared_secret(SUMMARY_KEY)
    sent = conversations.main_calls()[-1].request.messages
    assert sum(map(is_summary, recognize_summaries(sent, key))) == 1
    assert len(conversations.compactions) >= 2
    assert conversations.compactions[-1].count == len(conversations.compactions)
    assert all(item.tokens_after < item.tokens_before for item in conversations.compactions)
    assert {record.status for record in conversations.provider.log} == {200}, (
        "nothing ever overflowed"
    )
    assert len(await conversations.store.load_history(conversation.id)) == 72
    usage = await conversations.store.usage.list_usage(conversation.id)
    reported_tokens = [record.canonical_usage.total_tokens for record in conversations.provider.log]
    assert sum(item.usage.total_tokens for item in usage) == sum(reported_tokens), (
        "every token is accounted for"
    )
    assert {item.task for item in usage} == {"main", "auxiliary"}


async def test_retries_an_overflow_inside_a_stream(open_http: OpenHttp) -> None:
    script = [*["ok"] * 6, Fault("stream_overflow", after=1), "after all"]
    conversations = await open_http([served_model("gpt-4o", 128_000)], script)
    conversation = await conversations.open("gpt-4o", summarizer="journal")
    await send_texts(conversation, 6, 900, "page")
    pieces = [piece async for piece in conversation.stream("And now?")]
    assert pieces[-1].text == "after all"
    assert conversations.compactions[0].reason == "overflow"


@pytest.mark.parametrize("api", ["openai_chat", "anthropic"])
async def test_lowers_an_output_cap_that_is_too_large(open_http: OpenHttp, api: Api) -> None:
    served = [served_model(NAMES[api], 16_000, max_output=2_000)]
    conversations = await open_http(served, answer_script(lambda _: "ok"))
    conversation = await conversations.open(NAMES[api], api=api)
    answer = await conversation.send("Hi", max_tokens=8_000)
    assert answer.text == "ok"
    await conversation.send("More", max_tokens=8_000)
    statuses = [record.status for record in conversations.provider.log]
    assert statuses == [400, 200, 200], "the model's maximum is remembered"
    assert conversation.window == 16_000
    assert not conversations.events(CompactionStarted)


@pytest.mark.parametrize("dialect", ["openai", "vllm", "sglang"])
async def test_learns_the_window_from_an_output_cap_that_did_not_fit(
    open_http: OpenHttp, dialect: str
) -> None:
    served = [served_model("big-unknown", 8_000, dialect=dialect, shows=None)]
    conversations = await open_http(served, answer_script(lambda _: "ok"))
    conversation = await conversations.open("big-unknown", summarizer="journal")
    for turn in range(16):
        await conversation.send(numbered_text(turn, 150, "page"), max_tokens=7_900)
    statuses = [record.status for record in conversations.provider.log]
    assert statuses.count(400) == 1
    for record in conversations.provider.log[1:]:
        assert record.body["max_tokens"] >= 0.8 * (8_000 - record.prompt_tokens)


async def test_a_later_summary_updates_the_previous_one(open_http: OpenHttp) -> None:
    def summarise(request: Any) -> str:
        messages = str(request.messages)
        return make_summary_text("Second goal." if "First goal." in messages else "First goal.")

    conversations = await open_http(
        [served_model("gpt-4o", 16_000)],
        answer_script(lambda _: make_text(150), summarise),
    )
    conversation = await conversations.open("gpt-4o")
    await until_compacted(conversations, conversation)
    await conversation.close()
    again = await conversations.open("gpt-4o", resume=conversation.id)
    await until_compacted(conversations, again)
    calls = conversations.summary_calls()
    assert "⟦earlier checkpoint⟧" in str(calls[-1].messages)
    assert "First goal." in str(calls[-1].messages)
    [summary] = [text_of(item) for item in again.messages if is_summary(item)]
    assert "Second goal." in summary


async def test_resumes_the_tip_beside_subagents_and_branches(
    open_http: OpenHttp,
) -> None:
    conversations = await open_http([served_model("gpt-4o", 16_000)], make_answers(150))
    conversation = await conversations.open("gpt-4o", summarizer="journal")
    first = await conversation.send("Begin.")
    child = await conversations.open(
        "gpt-4o",
        session=NewSession(kind="subagent", parent=conversation.id),
        summarizer="journal",
    )
    await child.send("Look into it.")
    branch = await conversation.branch(first.id)
    await until_compacted(conversations, conversation)
    await until_compacted(conversations, conversation)
    tip = await conversations.store.get_compression_tip(conversation.id)
    assert tip == conversation.session.id
    assert await conversations.store.get_compression_tip(child.id) == child.session.id
    assert await conversations.store.get_compression_tip(branch.id) == branch.session.id
    middle = (await conversations.store.load_session(tip)).parent
    assert middle is not None
    again = await conversations.open("gpt-4o", resume=middle, summarizer="journal")
    assert again.session.id == tip


async def test_an_auxiliary_model_with_a_tiny_window_sees_everything(
    open_http: OpenHttp,
) -> None:
    served = [
        served_model("gpt-4o", 64_000),
        served_model("tiny", 4_096, dialect="vllm"),
    ]
    conversations = await open_http(served, make_answers(200))
    extra = (
        f"auxiliary: {{compression: {{model: tiny, provider: custom, base_url: '{conversations.provider.url}/v1', "
        f"api_key_env: {KEY}, context_length: 4096}}}}\ncompression: {{background: false}}"
    )
    conversation = await conversations.open("gpt-4o", extra=extra)
    for turn in range(40):
        if conversations.compactions:
            break
        await conversation.send(
            f"Fact number {turn} is F{turn:03}. {make_text(900, f'page {turn}')}"
        )
    (done,) = conversations.compactions
    assert done.author == "tiny"
    summarised_text = " ".join(
        str(call.messages) for call in conversations.summary_calls() if call.model == "tiny"
    )
    covered = (await conversations.store.list_compactions(conversation.id))[0].record.covered
    for message_id in covered:
        body = (await conversations.store.load_message(message_id)).body
        if body["role"] == "user":
            assert text_of(body)[:30].split(".")[0] in summarised_text
    assert all(item.status == 200 for item in conversations.provider.log if item.model == "tiny")


async def test_reasoning_tokens_trigger_no_compaction(open_http: OpenHttp) -> None:
    script = answer_script(lambda _: Fault("huge_reasoning", reply="ok", tokens=90_000))
    conversations = await open_http([served_model("gpt-5", 16_000)], script)
    conversation = await conversations.open("gpt-5")
    for turn in range(8):
        await conversation.send(f"Step {turn}.")
    assert not conversations.events(CompactionStarted)
    assert conversations.events(UsageRecorded)[0].usage.reasoning_tokens > 0


async def test_claude_reads_its_cache_again_after_a_compaction(
    open_http: OpenHttp,
) -> None:
    served = [served_model("claude-sonnet-4-5", 32_000)]
    conversations = await open_http(served, make_answers(150))
    conversation = await conversations.open(
        "claude-sonnet-4-5",
        provider="anthropic",
        system=SYSTEM + make_text(1_500, "rule"),
        tools=[TOOL],
        summarizer="journal",
        extra="compression: {background: false}",
    )
    await until_compacted(conversations, conversation)
    await conversation.send("And on.")
    log = conversations.main_calls()
    compaction_index = next(
        index for index, item in enumerate(log) if item.shared and not item.shared.is_extension
    )
    before = log[compaction_index - 1]
    first = log[compaction_index]
    second = log[compaction_index + 1]
    assert before.cached_tokens > 0.8 * log[compaction_index - 2].prompt_tokens
    assert first.cached_tokens > 1_500, "tools and system prompt are still warm"
    assert second.cached_tokens >= first.prompt_tokens - 60, "all but the new"


async def test_a_summary_on_the_warm_prefix_reads_the_cache(
    open_http: OpenHttp,
) -> None:
    served = [served_model("claude-sonnet-4-5", 64_000)]
    conversations = await open_http(served, make_answers(150))
    conversation = await conversations.open(
        "claude-sonnet-4-5",
        provider="anthropic",
        system=SYSTEM,
        extra="compression: {background: false}",
    )
    await send_texts(conversation, 12, 900, "page")
    await conversation.compress()
    (summary_call,) = [
        item
        for item in conversations.provider.log
        if item.request and is_summary_call(item.request)
    ]
    assert summary_call.cached_tokens > 0.8 * summary_call.prompt_tokens
    assert conversations.compactions[0].author == "claude-sonnet-4-5"


async def test_retries_temporary_failures(open_http: OpenHttp) -> None:
    script = [
        Fault("rate_limit", retry_after=0.01),
        Fault("overloaded"),
        "at last",
    ]
    conversations = await open_http([served_model("gpt-4o", 16_000)], script)
    conversation = await conversations.open("gpt-4o")
    assert (await conversation.send("Hi")).text == "at last"
    assert len(conversation.messages) == 2


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_a_message_larger_than_the_window_is_cut_and_the_rest_kept(
    open_http: OpenHttp, turns: int
) -> None:
    conversations = await open_http(
        [served_model("gpt-4o", 16_000)], answer_script(lambda _: "Counted.")
    )
    conversation = await conversations.open("gpt-4o")
    for turn in range(turns):
        await conversation.send(f"Turn {turn}: {make_text(400)}")
    large = f"Count these. {make_text(40_000)} That was all."
    assert (await conversation.send(large)).text == "Counted."
    assert conversations.compactions
    shortened_text = next(
        text for text in map(text_of, conversation.messages) if text.startswith("Count these.")
    )
    assert shortened_text.endswith("That was all.")
    stored_output = conversations.events(OutputStored)[-1]
    assert stored_output.output in shortened_text
    assert (await conversations.store.outputs.load_output(stored_output.output))[:200] in large
    history = await conversations.store.load_history(conversation.id)
    assert text_of(history[2 * turns].body) == large
    assert (await conversation.send("And now?")).text == "Counted."
