"""Whole conversations over HTTP, from a message to the compacted context and on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everthread.core.messages import text_of
from everthread.core.summary_marks import is_summary, recognize_summaries
from everthread.core.types import Api, Reply
from everthread.factory.stores import SUMMARY_KEY
from everthread.lab.provider import Fault
from everthread.store.records import NewSession
from everthread.thread.events import (
    CompactionProgress,
    CompactionStarted,
    LimitLearnt,
    OutputStored,
    UsageRecorded,
)
from tests.chat_messages import calls_reply, function_call, result_message
from tests.conversation.conversation_setup import make_text, numbered_text, send_texts
from tests.conversation.http_setup import (
    KEY,
    NAMES,
    TOOL,
    answer_script,
    call_reply,
    is_summary_call,
    make_summary_text,
    open_http_setup,
    served_model,
)

SYSTEM = "You keep the books of a shop. " + make_text(300, "account")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "sk-lab")


async def until_compacted(
    place: Any, conversation: Any, size: int = 400, most: int = 80
) -> None:
    before = len(place.compactions)
    for turn in range(most):
        if len(place.compactions) > before:
            return
        await conversation.send(numbered_text(turn, size, "subject"))
    raise AssertionError("it was never compacted")


@pytest.mark.parametrize("api", list(NAMES))
async def test_a_conversation_passes_its_window_several_times(
    tmp_path: Path, api: Api
) -> None:
    script = answer_script(lambda _: make_text(150, "answer"))
    async with open_http_setup(
        tmp_path, [served_model(NAMES[api], 16_000)], script
    ) as setup:
        conversation = await setup.open(
            NAMES[api], api=api, system=SYSTEM, extra="compression: {background: false}"
        )
        for turn in range(36):
            pieces = [
                piece
                async for piece in conversation.stream(
                    numbered_text(turn, 400, "topic")
                )
            ]
            assert pieces[-1].text
        assert len(setup.compactions) >= 2
        assert {record.status for record in setup.provider.log} == {200}, (
            "nothing ever overflowed"
        )
        assert len(await setup.store.history(conversation.id)) == 72
        spent = await setup.store.usage(conversation.id)
        told = [record.canonical_usage.total_tokens for record in setup.provider.log]
        assert sum(item.usage.total_tokens for item in spent) == sum(told), (
            "every token is accounted for"
        )
        assert {item.task for item in spent} == {"main", "auxiliary"}


async def test_preflight_on_a_smaller_model(tmp_path: Path) -> None:
    served = [served_model("gpt-4o", 128_000), served_model("gpt-4o-mini", 8_000)]
    async with open_http_setup(
        tmp_path, served, answer_script(lambda _: make_text(200))
    ) as setup:
        conversation = await setup.open("gpt-4o")
        await send_texts(conversation, 12, 1_200, "page")
        small = await setup.open(
            "gpt-4o-mini", resume=conversation.id, summarizer="journal"
        )
        assert small.window == 8_000
        await small.send("Now with the small one.")
        assert setup.compactions[0].reason == "preflight"
        assert setup.provider.log[-1].prompt_tokens < 4_000
        assert setup.provider.log[-1].status == 200


@pytest.mark.parametrize("dialect", ["openai", "vllm", "llama.cpp", "openrouter"])
async def test_overflow_with_a_stated_limit(tmp_path: Path, dialect: str) -> None:
    async with open_http_setup(
        tmp_path,
        [served_model("big-unknown", 8_000, dialect=dialect, shows=None)],
        answer_script(lambda _: "ok"),
    ) as setup:
        conversation = await setup.open("big-unknown", summarizer="journal")
        assert conversation.window == 128_000
        await send_texts(conversation, 14, 900, "page")
        assert any(record.status != 200 for record in setup.provider.log)
        assert conversation.window <= 8_000
        assert setup.events(LimitLearnt)[0].stored
        assert len(await setup.store.history(conversation.id)) == 28


async def test_overflow_inside_a_stream(tmp_path: Path) -> None:
    script = [*["ok"] * 6, Fault("stream_overflow", after=1), "after all"]
    async with open_http_setup(
        tmp_path, [served_model("gpt-4o", 128_000)], script
    ) as setup:
        conversation = await setup.open("gpt-4o", summarizer="journal")
        await send_texts(conversation, 6, 900, "page")
        pieces = [piece async for piece in conversation.stream("And now?")]
        assert pieces[-1].text == "after all"
        assert setup.compactions[0].reason == "overflow"


@pytest.mark.parametrize("api", ["openai_chat", "anthropic"])
async def test_an_output_cap_too_large_costs_no_history(
    tmp_path: Path, api: Api
) -> None:
    served = [served_model(NAMES[api], 16_000, max_output=2_000)]
    async with open_http_setup(
        tmp_path, served, answer_script(lambda _: "ok")
    ) as setup:
        conversation = await setup.open(NAMES[api], api=api)
        answer = await conversation.send("Hi", max_tokens=8_000)
        assert answer.text == "ok"
        assert not setup.events(CompactionStarted)
        assert [record.status for record in setup.provider.log] == [400, 200]


@pytest.mark.parametrize("dialect", ["openai", "vllm", "sglang"])
async def test_a_cap_that_did_not_fit_is_refused_once_and_not_lowered_for_good(
    tmp_path: Path, dialect: str
) -> None:
    served = [served_model("big-unknown", 8_000, dialect=dialect, shows=None)]
    async with open_http_setup(
        tmp_path, served, answer_script(lambda _: "ok")
    ) as setup:
        conversation = await setup.open("big-unknown", summarizer="journal")
        for turn in range(16):
            await conversation.send(numbered_text(turn, 150, "page"), max_tokens=7_900)
        statuses = [record.status for record in setup.provider.log]
        assert statuses.count(400) == 1
        for record in setup.provider.log[1:]:
            assert record.body["max_tokens"] >= 0.8 * (8_000 - record.prompt_tokens)


async def test_one_big_result_and_many_middling_ones(tmp_path: Path) -> None:
    script = [
        call_reply("cat big.log", "c1"),
        "read it",
        *[_many_calls(25)],
        "read them all",
    ]
    async with open_http_setup(
        tmp_path, [served_model("gpt-4o", 128_000)], script
    ) as setup:
        conversation = await setup.open("gpt-4o", tools=[TOOL])
        await conversation.send("Read the log.")
        await conversation.add_results([_result("c1", make_text(150_000, "log line"))])
        await conversation.send()
        assert len(setup.events(OutputStored)) == 1
        answer = await conversation.send("Now all of them.")
        parts = [
            _result(call.id, make_text(6_000, f"part {call.id}"))
            for call in answer.calls
        ]
        await conversation.add_results(parts)
        await conversation.send()
        sizes = [
            len(str(item.get("content")))
            for item in setup.main_calls()[-1].request.messages[-25:]
        ]
        assert sum(sizes) <= 200_000
        assert 1 < len(setup.events(OutputStored)) < 26, (
            "the largest are stored, not all"
        )
        assert setup.provider.log[-1].status == 200


async def test_kept_messages_and_the_place_of_the_summary(tmp_path: Path) -> None:
    async with open_http_setup(
        tmp_path,
        [served_model("gpt-4o", 16_000)],
        answer_script(lambda _: make_text(150)),
    ) as setup:
        conversation = await setup.open(
            "gpt-4o", system=SYSTEM, extra="compression: {economics: false}"
        )
        await conversation.send("First of all: the shop is called Kestrel.")
        await until_compacted(setup, conversation)
        sent = setup.main_calls()[-1].request.messages
        assert text_of(sent[0]).startswith("First of all")
        key = await setup.store.shared_secret(SUMMARY_KEY)
        at = next(
            index
            for index, message in enumerate(recognize_summaries(sent, key))
            if is_summary(message)
        )
        assert at <= 2
        assert "[EVERTHREAD SUMMARY" in text_of(sent[at])
        assert (
            text_of(sent[at])
            .rstrip()
            .split("\n")[-1]
            .startswith("[END OF EVERTHREAD SUMMARY")
        )
        assert "Settle the books." in text_of(sent[at])
        assert sent[-1] == conversation.messages[-2], "the latest message word for word"


async def test_a_later_summary_is_an_update_of_the_one_before(tmp_path: Path) -> None:
    def summarise(request: Any) -> str:
        told = str(request.messages)
        return make_summary_text(
            "Second goal." if "First goal." in told else "First goal."
        )

    async with open_http_setup(
        tmp_path,
        [served_model("gpt-4o", 16_000)],
        answer_script(lambda _: make_text(150), summarise),
    ) as setup:
        conversation = await setup.open("gpt-4o")
        await until_compacted(setup, conversation)
        await conversation.close()
        again = await setup.open("gpt-4o", resume=conversation.id)
        await until_compacted(setup, again)
        calls = setup.summary_calls()
        assert "⟦earlier checkpoint⟧" in str(calls[-1].messages)
        assert " goal." in str(calls[-1].messages)
        shown = next(text_of(item) for item in again.messages if is_summary(item))
        assert " goal." in shown


async def test_the_tip_among_subagents_and_branches(tmp_path: Path) -> None:
    async with open_http_setup(
        tmp_path,
        [served_model("gpt-4o", 16_000)],
        answer_script(lambda _: make_text(150)),
    ) as setup:
        conversation = await setup.open("gpt-4o", summarizer="journal")
        first = await conversation.send("Begin.")
        child = await setup.open(
            "gpt-4o",
            session=NewSession(kind="subagent", parent=conversation.id),
            summarizer="journal",
        )
        await child.send("Look into it.")
        branch = await conversation.branch(first.id)
        await until_compacted(setup, conversation)
        await until_compacted(setup, conversation)
        tip = await setup.store.get_compression_tip(conversation.id)
        assert tip == conversation.session.id
        assert await setup.store.get_compression_tip(child.id) == child.session.id
        assert await setup.store.get_compression_tip(branch.id) == branch.session.id
        middle = (await setup.store.session(tip)).parent
        assert middle is not None
        again = await setup.open("gpt-4o", resume=middle, summarizer="journal")
        assert again.session.id == tip


async def test_a_failing_summariser_pauses_and_the_journal_is_used(
    tmp_path: Path,
) -> None:
    def fails(_request: Any) -> Fault:
        return Fault("server_error")

    async with open_http_setup(
        tmp_path,
        [served_model("gpt-4o", 16_000)],
        answer_script(lambda _: make_text(150), fails),
    ) as setup:
        conversation = await setup.open(
            "gpt-4o", extra="compression: {background: false}"
        )
        await until_compacted(setup, conversation)
        (done,) = setup.compactions
        assert done.author == "journal"
        assert any("wrote no summary" in warning for warning in done.warnings)
        asked = len(setup.summary_calls())
        await until_compacted(setup, conversation)
        assert len(setup.summary_calls()) == asked, "it rests"
        assert any(
            "rests" in item.text or "skipped" in item.text
            for item in setup.events(CompactionProgress)
        )
        await send_texts(conversation, 6, 300, "page")
        made = await conversation.compress()
        assert len(setup.summary_calls()) > asked, "a person's wish does not wait"
        assert any("wrote no summary" in warning for warning in made.warnings)


async def test_an_auxiliary_model_with_a_tiny_window_sees_everything(
    tmp_path: Path,
) -> None:
    served = [
        served_model("gpt-4o", 64_000),
        served_model("tiny", 4_096, dialect="vllm"),
    ]
    async with open_http_setup(
        tmp_path, served, answer_script(lambda _: make_text(200))
    ) as setup:
        extra = (
            f"auxiliary: {{compression: {{model: tiny, provider: custom, base_url: '{setup.provider.url}/v1', "
            f"api_key_env: {KEY}, context_length: 4096}}}}\ncompression: {{background: false}}"
        )
        conversation = await setup.open("gpt-4o", extra=extra)
        for turn in range(40):
            if setup.compactions:
                break
            await conversation.send(
                f"Fact number {turn} is F{turn:03}. {make_text(900, f'page {turn}')}"
            )
        (done,) = setup.compactions
        assert done.author == "tiny"
        given = " ".join(
            str(call.messages) for call in setup.summary_calls() if call.model == "tiny"
        )
        covered = (await setup.store.compactions(conversation.id))[0].record.covered
        for message_id in covered:
            body = (await setup.store.message(message_id)).body
            if body["role"] == "user":
                assert text_of(body)[:30].split(".")[0] in given
        assert all(
            item.status == 200 for item in setup.provider.log if item.model == "tiny"
        )


async def test_thinking_models_that_report_huge_reasoning(tmp_path: Path) -> None:
    script = answer_script(lambda _: Fault("huge_reasoning", reply="ok", tokens=90_000))
    async with open_http_setup(
        tmp_path, [served_model("gpt-5", 16_000)], script
    ) as setup:
        conversation = await setup.open("gpt-5")
        for turn in range(8):
            await conversation.send(f"Step {turn}.")
        assert not setup.events(CompactionStarted)
        assert setup.events(UsageRecorded)[0].usage.reasoning_tokens > 0


async def test_claude_reads_its_cache_again_after_a_compaction(tmp_path: Path) -> None:
    served = [served_model("claude-sonnet-4-5", 32_000)]
    async with open_http_setup(
        tmp_path, served, answer_script(lambda _: make_text(150))
    ) as setup:
        conversation = await setup.open(
            "claude-sonnet-4-5",
            provider="anthropic",
            system=SYSTEM + make_text(1_500, "rule"),
            tools=[TOOL],
            summarizer="journal",
            extra="compression: {background: false}",
        )
        await until_compacted(setup, conversation)
        await conversation.send("And on.")
        log = setup.main_calls()
        turning = next(
            at
            for at, item in enumerate(log)
            if item.shared and not item.shared.is_extension
        )
        before = log[turning - 1]
        first = log[turning]
        second = log[turning + 1]
        assert before.cached_tokens > 0.8 * log[turning - 2].prompt_tokens
        assert first.cached_tokens > 1_500, "tools and system prompt are still warm"
        assert second.cached_tokens >= first.prompt_tokens - 60, "all but the new"


async def test_a_summary_on_the_warm_prefix_reads_the_cache(tmp_path: Path) -> None:
    served = [served_model("claude-sonnet-4-5", 64_000)]
    async with open_http_setup(
        tmp_path, served, answer_script(lambda _: make_text(150))
    ) as setup:
        conversation = await setup.open(
            "claude-sonnet-4-5",
            provider="anthropic",
            system=SYSTEM,
            extra="compression: {background: false}",
        )
        await send_texts(conversation, 12, 900, "page")
        await conversation.compress()
        (asked,) = [
            item
            for item in setup.provider.log
            if item.request and is_summary_call(item.request)
        ]
        assert asked.cached_tokens > 0.8 * asked.prompt_tokens
        assert setup.compactions[0].author == "claude-sonnet-4-5"


async def test_passing_failures_are_asked_again(tmp_path: Path) -> None:
    script = [Fault("rate_limit", retry_after=0.01), Fault("overloaded"), "at last"]
    async with open_http_setup(
        tmp_path, [served_model("gpt-4o", 16_000)], script
    ) as setup:
        conversation = await setup.open("gpt-4o")
        assert (await conversation.send("Hi")).text == "at last"
        assert len(conversation.messages) == 2


def _many_calls(count: int) -> Reply:
    wanted: Any = [
        function_call(f"m{index}", "terminal", '{"command": "x"}')
        for index in range(count)
    ]
    return calls_reply(*wanted)


def _result(call_id: str, text: str) -> Any:
    return result_message(call_id, text)


@pytest.mark.parametrize("before", [0, 1, 3])
async def test_a_message_larger_than_the_window_is_cut_and_the_rest_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    monkeypatch.setenv("EVERTHREAD_LAB_KEY", "a key for the lab")
    async with open_http_setup(
        tmp_path, [served_model("gpt-4o", 16_000)], answer_script(lambda _: "Counted.")
    ) as setup:
        conversation = await setup.open("gpt-4o")
        for turn in range(before):
            await conversation.send(f"Turn {turn}: {make_text(400)}")
        large = f"Count these. {make_text(40_000)} That was all."
        assert (await conversation.send(large)).text == "Counted."
        assert setup.compactions
        shown = next(
            said
            for said in map(text_of, conversation.messages)
            if said.startswith("Count these.")
        )
        assert shown.endswith("That was all.")
        kept = setup.events(OutputStored)[-1]
        assert kept.output in shown
        assert (await setup.store.output(kept.output))[:200] in large
        history = await setup.store.history(conversation.id)
        assert text_of(history[2 * before].body) == large
        assert (await conversation.send("And now?")).text == "Counted."
