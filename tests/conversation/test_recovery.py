"""Recovery when a provider refuses a request for its size."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from everthread.compaction.compressor import ContextCompressor
from everthread.core.tokens import TokenCounter
from everthread.core.types import Request
from everthread.core.validation import validate_messages
from everthread.errors import ContextOverflowError, ModelError
from everthread.providers.resilience import FallbackModel
from everthread.testing import ScriptedModel
from everthread.thread.events import (
    CompactionFailed,
    CompactionStarted,
    Estimated,
    LimitLearnt,
    Recovery,
)
from everthread.thread.options import Route
from tests.conversation.conversation_setup import (
    ConversationSetup,
    call_reply,
    make_text,
    numbered_text,
    overflow_error,
    send_texts,
    tool_result,
)

PIXEL = "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUg" * 400


def refusing_model(limit: int, *, stated: bool = True) -> Any:
    """Return a model that takes only this many tokens, and states the limit or not."""
    counter = TokenCounter("gpt-4o")

    def answer(request: Request) -> Any:
        size = counter.request(
            request.messages, system=request.system, tools=request.tools
        )
        if size > limit:
            return overflow_error(limit if stated else None, size)
        return make_text(100, "answer")

    return answer


async def long_one(
    setup: ConversationSetup, model: ScriptedModel, turns: int = 20, **options: Any
) -> Any:
    conversation = await setup.open(model, **options)
    for index in range(turns):
        await conversation.prepare(numbered_text(index, 600, "subject"))
        await conversation.record(
            {
                "choices": [
                    {
                        "message": {"role": "assistant", "content": "ok"},
                        "finish_reason": "stop",
                    }
                ]
            }
        )
    return conversation


async def test_a_stated_limit_is_learnt_and_kept(setup: ConversationSetup) -> None:
    model = ScriptedModel(refusing_model(8_000))
    conversation = await long_one(setup, model)
    answer = await conversation.send("Go on.")
    assert answer.text
    assert conversation.window == 8_000
    (learnt,) = setup.events(LimitLearnt)
    assert learnt.stored
    assert (await setup.store.limits())[0].limit == 8_000
    assert setup.compactions[0].reason == "overflow"
    assert str(model.requests[-1].messages[-1]["content"]) == "Go on."
    again = await setup.open(ScriptedModel(["ok"]), resume=conversation.id)
    assert again.window == 8_000, "another process knows it too"


async def test_a_recovery_lets_the_next_compaction_come_when_it_is_due(
    setup: ConversationSetup,
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
    conversation = await setup.open(model, engine=SometimesBroken, economics=False)
    turns = itertools.count()
    while not setup.events(CompactionFailed):
        await conversation.send(numbered_text(next(turns), 250, "topic"))
    SometimesBroken.is_broken = False
    refusals.append(overflow_error(16_000, 16_100))
    await conversation.send("Go on.")
    [recovery] = setup.compactions
    assert recovery.reason == "overflow"
    while len(setup.compactions) == 1:
        await conversation.send(numbered_text(next(turns), 250, "topic"))
    assert 8_000 <= setup.compactions[-1].tokens_before < 8_600


async def test_without_a_stated_limit_a_usual_one_is_tried_in_memory(
    setup: ConversationSetup,
) -> None:
    conversation = await long_one(
        setup, ScriptedModel(refusing_model(9_000, stated=False), window=200_000)
    )
    assert (await conversation.send("Go on.")).text
    assert conversation.window < 200_000
    assert not any(item.stored for item in setup.events(LimitLearnt))
    assert await setup.store.limits() == []


async def test_a_learnt_limit_dies_at_the_first_success_above_it(
    setup: ConversationSetup,
) -> None:
    model = ScriptedModel(lambda _: "fine")
    await setup.store.learn_limit(model.base_url, model.name, 4_000, source="an error")
    conversation = await setup.open(model, enabled=False)
    assert conversation.window == 4_000
    await conversation.send(make_text(4_500))
    assert conversation.window == 128_000
    assert await setup.store.limits() == []


async def test_each_attempt_is_stronger_and_after_three_it_is_over(
    setup: ConversationSetup,
) -> None:
    model = ScriptedModel(lambda _: overflow_error(None))
    conversation = await long_one(setup, model)
    with pytest.raises(ContextOverflowError, match="/new") as caught:
        await conversation.send("My question.")
    assert "/compress" in str(caught.value)
    actions = [item.action for item in setup.events(Recovery)]
    assert len(actions) == 3
    assert len(set(actions)) == 3
    sizes = [sum(len(str(m)) for m in request.messages) for request in model.requests]
    assert sizes == sorted(sizes, reverse=True)
    assert str(conversation.messages[-1]["content"]) == "My question."
    assert len(await setup.store.history(conversation.id)) == 41


async def test_an_output_cap_too_large_is_lowered_for_this_call_and_nothing_else(
    setup: ConversationSetup,
) -> None:
    said = "max_tokens is too large: 4096. This model supports at most 1500 completion tokens, you gave 4096."
    refusal = ModelError(said, status=400, body={"error": {"message": said}})
    model = ScriptedModel([refusal, "short", "again"])
    conversation = await setup.open(model, max_tokens=4_096)
    assert (await conversation.send("Hi")).text == "short"
    assert [request.params["max_tokens"] for request in model.requests] == [
        4_096,
        1_500,
    ]
    assert conversation.window == 128_000
    assert not setup.events(CompactionStarted)
    await conversation.send("More")
    assert model.requests[-1].params["max_tokens"] == 1_500, (
        "it is remembered for the model"
    )


async def test_with_under_256_tokens_left_it_is_the_prompt_that_is_too_long(
    setup: ConversationSetup,
) -> None:
    said = (
        "input length and `max_tokens` exceed context limit: 127900 + 4096 > 128000, decrease input length or "
        "`max_tokens` and try again"
    )
    refusal = ModelError(said, status=400, body={"error": {"message": said}})
    model = ScriptedModel([refusal, "fine"])
    conversation = await long_one(setup, model, max_tokens=4_096)
    assert (await conversation.send("Go on.")).text == "fine"
    assert setup.compactions


async def test_too_many_bytes_first_cost_images_and_big_results(
    setup: ConversationSetup,
) -> None:
    big = make_text(5_000, "line")
    refusal = ModelError(
        "Request Entity Too Large", status=413, body="Request Entity Too Large"
    )
    model = ScriptedModel([call_reply("cat", "{}"), "seen", refusal, "fine"])
    conversation = await setup.open(model)
    image = {"type": "image_url", "image_url": {"url": PIXEL}}
    await conversation.send([{"type": "text", "text": "What is this?"}, image])
    await conversation.add_results([tool_result(big)])
    await conversation.send()
    assert (await conversation.send("Thanks. Next.")).text == "fine"
    sent = model.requests[-1].messages
    assert "base64" not in str(sent)
    assert "output:" in str(sent)
    assert not validate_messages(sent, api="openai")
    assert "What is this?" in str(sent)
    assert big in str(await setup.store.history(conversation.id))


@pytest.mark.parametrize("status", [429, 500, 401])
async def test_errors_other_than_size_are_raised_unchanged(
    setup: ConversationSetup, status: int
) -> None:
    said = "Rate limit reached for gpt-4o: Limit 30000 tokens per min, Used 29000, Requested 9000."
    refusal = ModelError(
        said if status == 429 else "no",
        status=status,
        body={"error": {"message": said}},
    )
    conversation = await setup.open(ScriptedModel([refusal]))
    with pytest.raises(ModelError) as caught:
        await conversation.send("Hi")
    assert caught.value is refusal
    assert not setup.events(CompactionStarted)
    assert len(conversation.messages) == 1


async def test_disabled_means_reported_not_repaired(setup: ConversationSetup) -> None:
    conversation = await long_one(
        setup, ScriptedModel([overflow_error(8_000, 9_000)]), enabled=False
    )
    with pytest.raises(ContextOverflowError, match="disabled"):
        await conversation.send("Go on.")
    assert not setup.events(CompactionStarted)
    assert len(conversation.messages) == 41


async def test_with_a_loop_of_ones_own(setup: ConversationSetup) -> None:
    conversation = await long_one(setup, ScriptedModel())
    first = await conversation.prepare("Go on.")
    second = await conversation.recover(overflow_error(8_000, first.tokens))
    assert second.tokens < first.tokens
    assert second.body["messages"][-1]["content"] == "Go on."
    assert second.body["model"] == "gpt-4o"


async def test_the_limit_of_a_model_that_stepped_in_is_not_the_first_ones(
    setup: ConversationSetup,
) -> None:
    def other(request: Request) -> Any:
        return (
            overflow_error(9_000, 12_000)
            if len(request.messages) > 9
            else "I stepped in."
        )

    out = ModelError("it is down", status=503)
    script: Any = iter([f"Noted. {make_text(200)}"] * 8)
    first = ScriptedModel(lambda _: next(script, out))
    both = FallbackModel([first, ScriptedModel(other, name="gpt-4o-mini")])
    conversation = await setup.open(both, protect_last_n=2)
    await send_texts(conversation, 8, 300, "account")
    assert (await conversation.send("And now?")).text == "I stepped in."
    assert conversation.window == first.window
    assert (await setup.store.load_limits(first.base_url, first.name)).window is None
    assert not setup.events(LimitLearnt)


async def test_a_switch_forgets_what_the_other_server_reported(
    setup: ConversationSetup,
) -> None:
    conversation = await setup.open(ScriptedModel(["Noted."]))
    await conversation.send("Hello")
    await conversation.use_model(
        Route("gpt-4o", "openai_chat", 64_000, base_url="http://elsewhere.test/v1")
    )
    await conversation.prepare("Again")
    assert [event.reported for event in setup.events(Estimated)] == [False, False]
