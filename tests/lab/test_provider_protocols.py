"""Answers of the simulated provider in each protocol, read by the official clients over HTTP."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, ModelReply
from everthread.lab.provider import Provider
from tests.apis import APIS
from tests.chat_messages import assistant_message, function_call, user_message
from tests.lab.official_clients import CLAUDE, GPT, open_clients

ARGUMENTS = '{"path": "src/everthread/lab/provider.py", "lines": [1, 20]}'
CALL = ModelReply(
    {
        "role": "assistant",
        "content": "Let me look at it.",
        "reasoning_content": "The file is named in the question, so I read it first.",
        "tool_calls": [function_call("call_1", "read", ARGUMENTS)],
    }
)
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}}
RESULT_ITEM = {"type": "function_call_output", "call_id": "call_1", "output": "a file"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_answers_with_the_scripted_text(api: Api, stream: bool) -> None:
    text = "Grüße, 世界! " * 30
    provider = Provider(script=[text, "Second."])
    async with open_clients(provider) as clients:
        assert await clients.ask(api, stream=stream) == text
        assert await clients.ask(api, stream=stream) == "Second."
    assert [record.status for record in provider.log] == [200, 200]
    assert all(record.stream is stream for record in provider.log)


async def test_cuts_an_answer_at_the_requested_length() -> None:
    script = ["one two three four five " * 50] * len(APIS)
    async with open_clients(Provider(script=script)) as clients:
        message = await clients.request("anthropic", max_tokens=20)
        chat = await clients.request("openai_chat", max_completion_tokens=20)
        response = await clients.request("openai_responses", max_output_tokens=20)
    assert 15 <= TokenCounter(CLAUDE).text(message.content[0].text) <= 20
    assert message.stop_reason == "max_tokens"
    assert 15 <= TokenCounter(GPT).text(chat.choices[0].message.content) <= 20
    assert chat.choices[0].finish_reason == "length"
    assert 15 <= TokenCounter(GPT).text(response.output_text) <= 20
    assert response.incomplete_details.reason == "max_output_tokens"


class TestChat:
    async def test_answers_with_calls_reasoning_and_usage(self) -> None:
        question = user_message("What is it?")
        tool = {
            "name": "read",
            "description": "Reads a file.",
            "parameters": PARAMETERS,
        }
        tools = [{"type": "function", "function": tool}]
        async with open_clients(Provider(script=[CALL])) as clients:
            reply = await clients.openai.chat.completions.create(
                model=GPT,
                messages=[{"role": "system", "content": "Be brief."}, question],
                tools=tools,
            )
        [choice] = reply.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Let me look at it."
        assert choice.message.tool_calls[0].function.arguments == ARGUMENTS
        assert choice.message.reasoning_content == CALL.message["reasoning_content"]
        usage = reply.usage
        prompt = TokenCounter(GPT).request([question], system="Be brief.", tools=tools)
        assert usage.prompt_tokens == prompt
        assert usage.completion_tokens_details.reasoning_tokens > 5
        assert usage.total_tokens == prompt + usage.completion_tokens

    @pytest.mark.parametrize("asks_for_usage", [False, True])
    async def test_streams_calls_in_chunks_and_usage_if_asked(self, asks_for_usage: bool) -> None:
        options: dict[str, Any] = (
            {"stream_options": {"include_usage": True}} if asks_for_usage else {}
        )
        async with open_clients(Provider(script=[CALL])) as clients:
            stream = await clients.request("openai_chat", stream=True, **options)
            chunks = [chunk async for chunk in stream]
        calls = [
            call
            for chunk in chunks
            for choice in chunk.choices
            for call in choice.delta.tool_calls or []
        ]
        assert len(calls) > 2
        assert "".join(call.function.arguments for call in calls) == ARGUMENTS
        assert any(chunk.usage for chunk in chunks) is asks_for_usage


class TestResponses:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_answers_with_items_of_reasoning_text_and_call(self, stream: bool) -> None:
        async with open_clients(Provider(script=[CALL])) as clients:
            if stream:
                async with clients.openai.responses.stream(model=GPT, input="Hi") as events:
                    numbers = [event.sequence_number async for event in events]
                    reply = await events.get_final_response()
                assert numbers == sorted(set(numbers))
            else:
                reply = await clients.request("openai_responses")
        kinds = ["reasoning", "message", "function_call"]
        assert [item.type for item in reply.output] == kinds
        assert reply.output_text == "Let me look at it."
        assert reply.output[2].arguments == ARGUMENTS
        assert reply.usage.output_tokens_details.reasoning_tokens > 5

    async def test_accepts_its_answer_as_input(self) -> None:
        provider = Provider(script=[CALL, "Done."])
        async with open_clients(provider) as clients:
            responses = clients.openai.responses
            items = [user_message("Hi")]
            first = await responses.create(model=GPT, input=items)
            items += [*first.output, RESULT_ITEM]
            second = await responses.create(model=GPT, input=items)
        assert second.output_text == "Done."
        assert provider.log[1].shared
        assert provider.log[1].shared.is_extension

    @pytest.mark.parametrize(
        ("order", "reason"),
        [
            (
                ("text", "call", "result"),
                "without its required 'reasoning' item: 'rs_resp_lab1'",
            ),
            (
                ("reasoning", "question"),
                "'reasoning' was provided without its required following item",
            ),
            (
                ("text", "reasoning"),
                "'reasoning' was provided without its required following item",
            ),
        ],
    )
    async def test_refuses_reasoning_apart_from_its_item(
        self, order: tuple[str, ...], reason: str
    ) -> None:
        async with open_clients(Provider(script=[CALL])) as clients:
            first = await clients.request("openai_responses")
            names = ("reasoning", "text", "call")
            items: dict[str, Any] = {
                name: item.model_dump(exclude_none=True)
                for name, item in zip(names, first.output, strict=True)
            }
            items |= {"result": RESULT_ITEM, "question": user_message("Go on.")}
            with pytest.raises(openai.BadRequestError, match=reason):
                await clients.openai.responses.create(
                    model=GPT, input=[items[name] for name in order]
                )

    async def test_refuses_an_unknown_previous_response(self) -> None:
        async with open_clients(Provider()) as clients:
            with pytest.raises(
                openai.BadRequestError,
                match="Previous response with id 'resp_1' not found",
            ):
                await clients.request("openai_responses", previous_response_id="resp_1")


class TestAnthropic:
    async def test_answers_with_signed_thinking_and_usage(self) -> None:
        tool = {"name": "read", "description": "Reads.", "input_schema": PARAMETERS}
        request = {
            "model": CLAUDE,
            "messages": [user_message("What is it?")],
            "tools": [tool],
            "system": "Be brief.",
        }
        async with open_clients(Provider(script=[CALL, CALL])) as clients:
            messages = clients.claude.messages
            whole = await messages.create(max_tokens=900, **request)
            async with messages.stream(max_tokens=900, **request) as stream:
                streamed = await stream.get_final_message()
            counted = await messages.count_tokens(**request)
        for reply in (whole, streamed):
            kinds = ["thinking", "text", "tool_use"]
            assert [block.type for block in reply.content] == kinds
            assert reply.content[0].signature
            assert reply.content[2].input == {
                "path": "src/everthread/lab/provider.py",
                "lines": [1, 20],
            }
            assert reply.stop_reason == "tool_use"
            assert reply.usage.input_tokens == counted.input_tokens

    async def test_warms_the_cache_without_output(self) -> None:
        mark = {"cache_control": {"type": "ephemeral"}}
        system = [{"type": "text", "text": "Be brief. " * 900, **mark}]
        async with open_clients(Provider(script=["Never said."])) as clients:
            reply = await clients.request("anthropic", max_tokens=0, system=system)
        assert (reply.content, reply.stop_reason) == ([], "max_tokens")
        assert reply.usage.output_tokens == 0
        assert reply.usage.cache_creation_input_tokens > 1024

    async def test_refuses_changed_thinking(self) -> None:
        answer = assistant_message("Yes.") | {"reasoning_content": "Sure?"}
        async with open_clients(Provider(script=[ModelReply(answer), "B"])) as clients:
            first = await clients.request("anthropic", "Is it?")
            blocks = [block.model_dump(exclude_none=True) for block in first.content]
            messages = [
                user_message("Is it?"),
                assistant_message(blocks),
                user_message("Why?"),
            ]
            request = {"model": CLAUDE, "max_tokens": 900, "messages": messages}
            await clients.claude.messages.create(**request)
            blocks[0]["thinking"] = "Perhaps."
            with pytest.raises(
                anthropic.BadRequestError,
                match=r"messages\.1\.content\.0: Invalid `signature`",
            ):
                await clients.claude.messages.create(**request)
