"""Recovery when a provider refuses a request for its size."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from everthread.compaction.compressor import ContextCompressor
from everthread.core.tokens import TokenCounter
from everthread.core.types import ModelRequest
from everthread.core.validation import validate_messages
from everthread.errors import ContextOverflowError, ModelError
from everthread.factory import fit_request
from everthread.providers.resilience import FallbackModel
from everthread.store.records import LimitKey
from everthread.testing import ScriptedModel
from everthread.thread.events import (
    CompactionFailed,
    CompactionStarted,
    Estimated,
    LimitLearnt,
    Recovery,
)
from everthread.thread.route import Route
from tests.chat_messages import call_reply
from tests.conversation.conversation_setup import (
    Conversations,
    make_text,
    numbered_text,
    overflow_error,
    send_texts,
    tool_result,
)

IMAGE_URL = "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUg" * 400


def refusing_model(limit: int, *, stated: bool = True) -> Any:
    """Return a model that takes only this many tokens, and states the limit or not."""
    counter = TokenCounter("gpt-4o")

    def answer(request: ModelRequest) -> Any:
        size = counter.request(request.messages, system=request.system, tools=request.tools)
        if size > limit:
            return overflow_error(limit if stated else None, size)
        return make_text(100, "answer")

    return answer


async def open_long_conversation(
    conversations: Conversations, model: ScriptedModel, turns: int = 20, **options: Any
) -> Any:
    conversation = await conversations.open(model, **options)
    for index in range(turns):
        await conversation.prepare(numbered_text(index, 600, "subject"))
        await conversation.record(
            {
                "choices": [
                    {
                        "message": {
                            "role": "assistant",
                            "content": "ok",
                        },
                        "finish_reason": "stop",
                    }
                ]
            }
        )
    return conversation


async def test_a_stated_limit_is_learnt_and_kept(conversations: Conversations) -> None:
    model = ScriptedModel(refusing_model(8_000))
    conversation = await open_long_conversation(conversations, model)
    answer = await conversation.send("Go on.")
    assert answer.text
    assert conversation.window == 8_000
    (learnt,) = conversations.events(LimitLearnt)
    assert learnt.is_stored
    assert (await conversations.store.limits.list_limits())[0].limit == 8_000
    assert conversations.compactions[0].reason == "overflow"
    assert str(model.requests[-1].messages[-1]["content"]) == "Go on."
    again = await conversations.open(ScriptedModel(["ok"]), resume=conversation.id)
    assert again.window == 8_000, "another process knows it too"


async def test_a_recovery_ends_the_wait_after_a_failed_compaction(
    conversations: Conversations,
) -> None:
    """The compaction that failed before had made the next one wait until the prompt had grown by a tenth."""

    class SometimesBroken(ContextCompressor):
        is_broken = True

        async def compress(self, *args: Any, **kwargs: Any) -> Any:
            if self.is_broken:
                raise RuntimeError("out of ideas")
            return await super().compress(*args, **kwargs)

    refusals: list[Any] = []
    model = ScriptedModel(
        lambda _: refusals.pop() if refusals else make_text(200, "answer"),
        window=16_000,
    )
    conversation = await conversations.open(model, engine=SometimesBroken, economics=False)
    turns = itertools.count()
    while not conversations.events(CompactionFailed):
        await conversation.send(numbered_text(next(turns), 250, "topic"))
    SometimesBroken.is_broken = False
    refusals.append(overflow_error(16_000, 16_100))
    await conversation.send("Go on.")
    [recovery] = conversations.compactions
    assert recovery.reason == "overflow"
    while len(conversations.compactions) == 1:
        await conversation.send(numbered_text(next(turns), 250, "topic"))
    assert 8_000 <= conversations.compactions[-1].tokens_before < 8_600


async def test_guesses_a_usual_window_if_no_limit_is_stated(
    conversations: Conversations,
) -> None:
    conversation = await open_long_conversation(
        conversations, ScriptedModel(refusing_model(9_000, stated=False), window=200_000)
    )
    assert (await conversation.send("Go on.")).text
    assert conversation.window < 200_000
    assert not any(item.is_stored for item in conversations.events(LimitLearnt))
    assert await conversations.store.limits.list_limits() == []


async def test_drops_a_learnt_limit_after_a_success_above_it(
    conversations: Conversations,
) -> None:
    model = ScriptedModel(lambda _: "fine")
    await conversations.store.limits.learn_limit(
        LimitKey(model.base_url, model.name), 4_000, source="an error"
    )
    conversation = await conversations.open(model, enabled=False)
    assert conversation.window == 4_000
    await conversation.send(make_text(4_500))
    assert conversation.window == 128_000
    assert await conversations.store.limits.list_limits() == []


async def test_gives_up_after_three_stronger_attempts(
    conversations: Conversations,
) -> None:
    model = ScriptedModel(lambda _: overflow_error(None))
    conversation = await open_long_conversation(conversations, model)
    with pytest.raises(ContextOverflowError, match="/new") as caught:
        await conversation.send("My question.")
    assert "/compress" in str(caught.value)
    actions = [item.action for item in conversations.events(Recovery)]
    assert len(actions) == 3
    assert len(set(actions)) == 3
    sizes = [sum(len(str(m)) for m in request.messages) for request in model.requests]
    assert sizes == sorted(sizes, reverse=True)
    assert str(conversation.messages[-1]["content"]) == "My question."
    assert len(await conversations.store.load_history(conversation.id)) == 41


async def test_compacts_if_fewer_than_256_tokens_are_left_for_the_answer(
    conversations: Conversations,
) -> None:
    message = (
        "input length and `max_tokens` exceed context limit: 127900 + 4096 > 128000, decrease input length or "
        "`max_tokens` and try again"
    )
    refusal = ModelError(message, status=400, body={"error": {"message": message}})
    model = ScriptedModel([refusal, "fine"])
    conversation = await open_long_conversation(conversations, model, max_tokens=4_096)
    assert (await conversation.send("Go on.")).text == "fine"
    assert conversations.compactions


async def test_drops_images_and_large_results_if_a_request_has_too_many_bytes(
    conversations: Conversations,
) -> None:
    big = make_text(5_000, "line")
    refusal = ModelError("Request Entity Too Large", status=413, body="Request Entity Too Large")
    model = ScriptedModel([call_reply(("cat", "{}")), "seen", refusal, "fine"])
    conversation = await conversations.open(model)
    image = {
        "type": "image_url",
        "image_url": {"url": IMAGE_URL},
    }
    await conversation.send(
        [
            {
                "type": "text",
                "text": "What is this?",
            },
            image,
        ]
    )
    await conversation.add_results([tool_result(big)])
    await conversation.send()
    assert (await conversation.send("Thanks. Next.")).text == "fine"
    sent = model.requests[-1].messages
    assert "base64" not in str(sent)
    assert "output:" in str(sent)
    assert not validate_messages(sent, api="openai")
    assert "What is this?" in str(sent)
    assert big in str(await conversations.store.load_history(conversation.id))


@pytest.mark.parametrize("status", [429, 500, 401])
async def test_errors_other_than_size_are_raised_unchanged(
    conversations: Conversations, status: int
) -> None:
    message = (
        "Rate limit reached for gpt-4o: Limit 30000 tokens per min, Used 29000, Requested 9000."
    )
    refusal = ModelError(
        message if status == 429 else "no",
        status=status,
        body={"error": {"message": message}},
    )
    conversation = await conversations.open(ScriptedModel([refusal]))
    with pytest.raises(ModelError) as caught:
        await conversation.send("Hi")
    assert caught.value is refusal
    assert not conversations.events(CompactionStarted)
    assert len(conversation.messages) == 1


async def test_disabled_compression_raises_an_overflow(
    conversations: Conversations,
) -> None:
    conversation = await open_long_conversation(
        conversations, ScriptedModel([overflow_error(8_000, 9_000)]), enabled=False
    )
    with pytest.raises(ContextOverflowError, match="disabled"):
        await conversation.send("Go on.")
    assert not conversations.events(CompactionStarted)
    assert len(conversation.messages) == 41


async def test_recover_returns_a_smaller_request(conversations: Conversations) -> None:
    conversation = await open_long_conversation(conversations, ScriptedModel())
    first = await conversation.prepare("Go on.")
    second = await conversation.recover(overflow_error(8_000, first.tokens))
    assert second.tokens < first.tokens
    assert second.body["messages"][-1]["content"] == "Go on."
    assert second.body["model"] == "gpt-4o"


async def test_does_not_apply_the_limit_of_a_fallback_model(
    conversations: Conversations,
) -> None:
    def other(request: ModelRequest) -> Any:
        return overflow_error(9_000, 12_000) if len(request.messages) > 9 else "I stepped in."

    outage = ModelError("it is down", status=503)
    script: Any = iter([f"Noted. {make_text(200)}"] * 8)
    first = ScriptedModel(lambda _: next(script, outage))
    fallback_model = FallbackModel(
        [first, ScriptedModel(other, name="gpt-4o-mini")], fit_request=fit_request
    )
    conversation = await conversations.open(fallback_model, protect_last_n=2)
    await send_texts(conversation, 8, 300, "account")
    assert (await conversation.send("And now?")).text == "I stepped in."
    assert conversation.window == first.window
    assert (
        await conversations.store.limits.load_limits(LimitKey(first.base_url, first.name))
    ).window is None
    assert not conversations.events(LimitLearnt)


async def test_a_model_switch_forgets_the_counts_of_the_other_server(
    conversations: Conversations,
) -> None:
    conversation = await conversations.open(ScriptedModel(["Noted."]))
    await conversation.send("Hello")
    await conversation.use_model(
        Route("gpt-4o", "openai_chat", 64_000, base_url="http://elsewhere.test/v1")
    )
    await conversation.prepare("Again")
    assert [event.is_reported for event in conversations.events(Estimated)] == [False, False]
