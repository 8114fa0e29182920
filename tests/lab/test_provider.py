"""The provider as its clients meet it: the official SDKs over real HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from openai import OpenAI

from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, Reply, Request
from everthread.errors import InputError
from everthread.lab.provider import Fault, Provider, ServedModel
from tests.chat_messages import function_call
from tests.lab.official_clients import APIS, CLAUDE, GPT, open_clients

QUESTION: list[Any] = [{"role": "user", "content": "Hi"}]
ARGUMENTS = '{"path": "src/everthread/lab/provider.py", "lines": [1, 20]}'
CALL = Reply(
    {
        "role": "assistant",
        "content": "Let me look at it.",
        "reasoning_content": "The file is named in the question, so I read it first.",
        "tool_calls": [function_call("call_1", "read", ARGUMENTS)],
    }
)
TOOL = {
    "name": "read",
    "description": "Reads a file.",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_answers_with_the_scripted_text(api: Api, stream: bool) -> None:
    text = "Grüße, 世界! " * 30
    provider = Provider(script=[text, "Second."])

    async with open_clients(provider) as clients:
        assert ([await clients.ask(api, stream=stream) for _ in range(2)]) == [
            text,
            "Second.",
        ]
    assert [record.status for record in provider.log] == [200, 200]
    assert all(record.stream is stream for record in provider.log)


class TestChat:
    async def test_answers_with_calls_reasoning_and_usage(self) -> None:
        provider = Provider(script=[CALL])
        messages: Any = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is it?"},
        ]
        tools: Any = [{"type": "function", "function": TOOL}]

        async with open_clients(provider) as clients:
            reply = await clients.openai.chat.completions.create(
                model=GPT, messages=messages, tools=tools
            )
        [choice] = reply.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Let me look at it."
        assert choice.message.tool_calls[0].function.arguments == ARGUMENTS
        assert choice.message.reasoning_content == CALL.message["reasoning_content"]
        assert reply.usage.prompt_tokens == TokenCounter(GPT).request(
            messages[1:], system="Be brief.", tools=tools
        )
        assert reply.usage.completion_tokens_details.reasoning_tokens > 5
        assert (
            reply.usage.total_tokens
            == reply.usage.prompt_tokens + reply.usage.completion_tokens
        )

    @pytest.mark.parametrize("asks_for_usage", [False, True])
    async def test_streams_calls_in_chunks_and_usage_if_asked(
        self, asks_for_usage: bool
    ) -> None:
        options = {"stream_options": {"include_usage": True}} if asks_for_usage else {}
        async with open_clients(Provider(script=[CALL])) as clients:
            stream = await clients.openai.chat.completions.create(
                model=GPT, messages=QUESTION, stream=True, **options
            )
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
    async def test_answers_with_items_of_reasoning_text_and_call(
        self, stream: bool
    ) -> None:
        async with open_clients(Provider(script=[CALL])) as clients:
            responses = clients.openai.responses
            if stream:
                async with responses.stream(model=GPT, input="Hi") as events:
                    numbers = [event.sequence_number async for event in events]
                    reply = await events.get_final_response()
                assert numbers == sorted(set(numbers))
            else:
                reply = await responses.create(model=GPT, input="Hi")
        assert [item.type for item in reply.output] == [
            "reasoning",
            "message",
            "function_call",
        ]
        assert reply.output_text == "Let me look at it."
        assert reply.output[2].arguments == ARGUMENTS
        assert reply.usage.output_tokens_details.reasoning_tokens > 5

    async def test_accepts_its_answer_as_input(self) -> None:
        provider = Provider(script=[CALL, "Done."])

        async with open_clients(provider) as clients:
            first = await clients.openai.responses.create(
                model=GPT, input=[{"role": "user", "content": "Hi"}]
            )
            told: Any = [{"role": "user", "content": "Hi"}, *first.output]
            told.append(
                {
                    "type": "function_call_output",
                    "call_id": "call_1",
                    "output": "the file",
                }
            )
            assert (
                (
                    await clients.openai.responses.create(model=GPT, input=told)
                ).output_text
            ) == "Done."
        assert provider.log[1].shared
        assert provider.log[1].shared.is_extension

    async def test_refuses_reasoning_apart_from_its_item(self) -> None:
        provider = Provider(script=[CALL])

        async with open_clients(provider) as clients:
            first = await clients.openai.responses.create(model=GPT, input="Hi")
            thought, said, call = (
                item.model_dump(exclude_none=True) for item in first.output
            )
            result = {
                "type": "function_call_output",
                "call_id": "call_1",
                "output": "the file",
            }
            torn: list[tuple[list[Any], str]] = [
                (
                    [said, call, result],
                    "without its required 'reasoning' item: 'rs_resp_lab1'",
                ),
                (
                    [thought, {"role": "user", "content": "Go on."}],
                    "'reasoning' was provided without its required foll",
                ),
                (
                    [said, thought],
                    "'reasoning' was provided without its required following item",
                ),
            ]
            for items, words in torn:
                with pytest.raises(openai.BadRequestError, match=words):
                    await clients.openai.responses.create(model=GPT, input=items)
            with pytest.raises(
                openai.BadRequestError,
                match="Previous response with id 'resp_1' not found",
            ):
                await clients.openai.responses.create(
                    model=GPT, input="Hi", previous_response_id="resp_1"
                )


class TestAnthropic:
    async def test_answers_with_signed_thinking_and_usage(self) -> None:
        provider = Provider(script=lambda _request: CALL)
        messages: Any = [{"role": "user", "content": "What is it?"}]
        tools: Any = [
            {
                "name": "read",
                "description": "Reads.",
                "input_schema": TOOL["parameters"],
            }
        ]

        async with open_clients(provider) as clients:
            asked = {
                "model": CLAUDE,
                "messages": messages,
                "tools": tools,
                "system": "Be brief.",
            }
            whole = await clients.claude.messages.create(max_tokens=900, **asked)
            async with clients.claude.messages.stream(
                max_tokens=900, **asked
            ) as pieces:
                streamed = await pieces.get_final_message()
            counted = await clients.claude.messages.count_tokens(**asked)
        for reply in (whole, streamed):
            assert [block.type for block in reply.content] == [
                "thinking",
                "text",
                "tool_use",
            ]
            assert reply.content[0].signature
            assert reply.content[2].input == {
                "path": "src/everthread/lab/provider.py",
                "lines": [1, 20],
            }
            assert reply.stop_reason == "tool_use"
            assert reply.usage.input_tokens == counted.input_tokens

    async def test_warms_the_cache_without_output(self) -> None:
        async with open_clients(Provider(script=["Never said."])) as clients:
            system: Any = [
                {
                    "type": "text",
                    "text": "Be brief. " * 900,
                    "cache_control": {"type": "ephemeral"},
                }
            ]
            messages: Any = [{"role": "user", "content": "warmup"}]
            reply = await clients.claude.messages.create(
                model=CLAUDE, max_tokens=0, system=system, messages=messages
            )
        assert (reply.content, reply.stop_reason, reply.usage.output_tokens) == (
            [],
            "max_tokens",
            0,
        )
        assert reply.usage.cache_creation_input_tokens > 1024

    async def test_refuses_changed_thinking(self) -> None:
        provider = Provider(
            script=[
                Reply(
                    {
                        "role": "assistant",
                        "content": "Yes.",
                        "reasoning_content": "Sure?",
                    }
                ),
                "B",
            ]
        )

        async with open_clients(provider) as clients:
            asked: Any = [{"role": "user", "content": "Is it?"}]
            first = await clients.claude.messages.create(
                model=CLAUDE, max_tokens=900, messages=asked
            )
            blocks = [block.model_dump(exclude_none=True) for block in first.content]
            again: Any = [
                *asked,
                {"role": "assistant", "content": blocks},
                {"role": "user", "content": "Why?"},
            ]
            await clients.claude.messages.create(
                model=CLAUDE, max_tokens=900, messages=again
            )
            blocks[0]["thinking"] = "Perhaps."
            with pytest.raises(
                anthropic.BadRequestError,
                match=r"messages\.1\.content\.0: Invalid `signature`",
            ):
                await clients.claude.messages.create(
                    model=CLAUDE, max_tokens=900, messages=again
                )


class TestModels:
    async def test_lists_models_for_both_clients(self) -> None:
        async with open_clients(Provider({"a": 1000, "b/c": 2000})) as clients:
            one = [model.id async for model in clients.openai.models.list()]
            two = [model.id async for model in clients.claude.models.list()]
            assert (one, two, (await clients.openai.models.retrieve("b/c")).id) == (
                ["a", "b/c"],
                ["a", "b/c"],
                "b/c",
            )

    @pytest.mark.parametrize(
        "shows", ["max_model_len", "context_length", "context_window"]
    )
    async def test_lists_the_window_under_the_key_of_the_server(
        self, shows: Any
    ) -> None:
        provider = Provider(
            [
                ServedModel("a", 4096),
                ServedModel("b", 4096, shows="n_ctx_train"),
                ServedModel("c", 4096, shows=shows),
            ]
        )
        async with provider, httpx2.AsyncClient(timeout=60) as http:
            listing = (await http.get(f"{provider.url}/v1/models")).json()
        plain, llama, shown = listing["data"]
        assert 4096 not in plain.values()
        assert llama["meta"] == {"n_ctx_train": 4096}
        assert shown[shows] == 4096

    @pytest.mark.parametrize("api", APIS)
    async def test_refuses_an_unknown_model(self, api: Api) -> None:
        async with open_clients(Provider()) as clients:
            with pytest.raises(
                (openai.NotFoundError, anthropic.NotFoundError), match="gpt-9"
            ):
                await clients.ask(api, model="gpt-9")
            with pytest.raises(openai.NotFoundError):
                await clients.openai.models.retrieve("gpt-9")

    def test_refuses_invalid_models(self) -> None:
        with pytest.raises(InputError, match="at least one"):
            Provider({})
        with pytest.raises(InputError, match="dialect 'klingon'"):
            ServedModel("a", dialect="klingon")
        with pytest.raises(InputError, match="at least 1"):
            Provider({"a": 0})
        with pytest.raises(InputError, match="not running"):
            _ = Provider().url


class TestScripts:
    async def test_calls_an_async_function_with_the_request(self) -> None:
        arrived = asyncio.Event()
        gate = asyncio.Event()

        async def slow(request: Request) -> Reply | Fault | str:
            arrived.set()
            await gate.wait()
            return f"You use {request.model}."

        async with open_clients(Provider(script=slow)) as clients:
            waiting = asyncio.create_task(clients.ask("openai_chat"))
            await arrived.wait()
            assert clients.provider.log[0].status is None
            gate.set()
            assert ([await waiting, await clients.ask("anthropic")]) == [
                "You use gpt-5.",
                "You use claude-sonnet-5.",
            ]

    async def test_fails_when_the_script_is_used_up(self) -> None:
        async with open_clients(Provider(script=["only"])) as clients:
            await clients.ask("openai_chat")
            with pytest.raises(
                openai.InternalServerError, match="1 answers, and all were given"
            ):
                await clients.ask("openai_chat")

    async def test_raises_the_error_of_a_script_function_when_closed(self) -> None:
        def wrong(request: Request) -> str:
            assert request.model == "another", "it is not another"
            return "never"

        async def ask_provider(provider: Provider) -> None:
            async with open_clients(provider) as clients:
                with pytest.raises(
                    openai.InternalServerError,
                    match="The script failed: AssertionError: it is not",
                ):
                    await clients.ask("openai_chat")

        provider = Provider(script=wrong)
        with pytest.raises(AssertionError, match="it is not another"):
            await ask_provider(provider)
        assert provider.log[0].status == 500

    async def test_a_refused_request_does_not_consume_the_script(self) -> None:
        async with open_clients(Provider({GPT: 1000}, ["only"])) as clients:
            with pytest.raises(openai.BadRequestError):
                await clients.ask("openai_chat", "word " * 2000)
            assert (await clients.ask("openai_chat")) == "only"

    async def test_echoes_without_a_script(self) -> None:
        async with open_clients(Provider()) as clients:
            assert (
                await clients.ask("openai_responses", "Is anybody there?")
            ) == "You said: Is anybody there?"

    async def test_cuts_an_answer_at_the_requested_length(self) -> None:
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


async def test_answers_a_blocking_client_in_a_thread() -> None:
    async with Provider(script=["Hello."]) as provider:

        def ask() -> str | None:
            with OpenAI(api_key="sk-lab", base_url=f"{provider.url}/v1") as client:
                reply = client.chat.completions.create(
                    model=GPT, messages=[{"role": "user", "content": "Hi"}]
                )
                return reply.choices[0].message.content

        assert await asyncio.to_thread(ask) == "Hello."


async def test_continues_its_script_when_opened_again() -> None:
    provider = Provider(script=["one", "two"])
    for expected in ("one", "two"):
        async with open_clients(provider) as clients:
            assert await clients.ask("openai_chat") == expected
    assert len(provider.log) == 2


class TestLog:
    async def test_records_each_request(self) -> None:
        clock = iter(range(100, 200))
        provider = Provider(script=["A.", "B.", "C."], clock=lambda: float(next(clock)))

        async with open_clients(provider) as clients:
            told: Any = [{"role": "user", "content": "Hi"}]
            chat = clients.openai.chat.completions
            await chat.create(
                model=GPT,
                messages=told,
                extra_headers={"x-session-id": "s1"},
                temperature=0.3,
            )
            await clients.ask("openai_chat", "another session")
            told += [
                {"role": "assistant", "content": "A."},
                {"role": "user", "content": "More"},
            ]
            await chat.create(
                model=GPT, messages=told, extra_headers={"x-session-id": "s1"}
            )
            told[0] = {"role": "user", "content": "Ho"}
            with pytest.raises(openai.InternalServerError):
                await chat.create(
                    model=GPT, messages=told, extra_headers={"x-session-id": "s1"}
                )
        one, other, more, changed = provider.log
        assert (one.number, one.api, one.path, one.session) == (
            1,
            "openai_chat",
            "/v1/chat/completions",
            "s1",
        )
        assert one.request
        assert one.request.params["temperature"] == 0.3
        assert one.body["temperature"] == 0.3
        assert one.headers["authorization"] == "Bearer sk-lab"
        assert (one.shared, other.shared) == (None, None)
        assert more.shared
        assert more.shared.is_extension
        assert changed.shared
        assert (
            changed.shared.shared_messages,
            changed.shared.section,
            changed.shared.index,
        ) == (0, "messages", 0)
        assert (changed.status, changed.usage) == (500, None)
        assert (
            more.canonical_usage.prompt_tokens == more.prompt_tokens > one.prompt_tokens
        )
        assert more.reply
        assert more.reply.message["content"] == "C."
        assert (
            one.arrival_time
            < other.arrival_time
            < more.arrival_time
            < changed.arrival_time
        )
        assert more.summary()["prompt_tokens"] == more.prompt_tokens

    async def test_tells_the_listener_of_each_request(self) -> None:
        heard: list[int | None] = []
        provider = Provider(
            script=["A.", Fault("server_error")],
            listen=lambda record: heard.append(record.status),
        )

        async with open_clients(provider) as clients:
            await clients.ask("openai_chat")
            with pytest.raises(openai.InternalServerError):
                await clients.ask("openai_chat")
        assert heard == [200, 500]

    async def test_refuses_and_records_invalid_json(self) -> None:
        provider = Provider()

        async with (
            open_clients(provider) as clients,
            httpx2.AsyncClient(timeout=60) as http,
        ):
            for content in (
                b"{",
                b"[1]",
                b'{"model": 3}',
                b'{"model": "gpt-5", "messages": 3}',
            ):
                answer = await http.post(
                    f"{clients.provider.url}/v1/chat/completions", content=content
                )
                assert answer.status_code == 400
                assert answer.json()["error"]["message"]
        assert [record.request for record in provider.log] == [None] * 4
