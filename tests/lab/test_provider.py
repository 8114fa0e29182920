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
from tests.lab.official_clients import APIS, CLAUDE, GPT, Clients, open_clients

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
async def test_a_scripted_text_arrives_word_for_word(api: Api, stream: bool) -> None:
    text = "Grüße, 世界! " * 30
    provider = Provider(script=[text, "Second."])

    async def play(clients: Clients) -> list[str]:
        return [await clients.ask(api, stream=stream) for _ in range(2)]

    assert await open_clients(provider, play) == [text, "Second."]
    assert [record.status for record in provider.log] == [200, 200]
    assert all(record.stream is stream for record in provider.log)


class TestChat:
    async def test_calls_reasoning_and_usage(self) -> None:
        provider = Provider(script=[CALL])
        messages: Any = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is it?"},
        ]
        tools: Any = [{"type": "function", "function": TOOL}]

        async def play(clients: Clients) -> Any:
            return await clients.openai.chat.completions.create(
                model=GPT, messages=messages, tools=tools
            )

        reply = await open_clients(provider, play)
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

    async def test_a_stream_comes_in_pieces_with_usage_only_when_asked_for(
        self,
    ) -> None:
        provider = Provider(script=lambda _request: CALL)

        async def play(clients: Clients) -> list[list[Any]]:
            found = []
            asked: Any = {
                "model": GPT,
                "messages": [{"role": "user", "content": "Hi"}],
                "stream": True,
            }
            extras: list[Any] = [{}, {"stream_options": {"include_usage": True}}]
            for options in extras:
                pieces: Any = await clients.openai.chat.completions.create(
                    **asked, **options
                )
                found.append([piece async for piece in pieces])
            return found

        for chunks, has_usage in zip(
            await open_clients(provider, play), (False, True), strict=True
        ):
            calls = [
                call
                for chunk in chunks
                for choice in chunk.choices
                for call in choice.delta.tool_calls or []
            ]
            assert len(calls) > 2
            assert "".join(call.function.arguments for call in calls) == ARGUMENTS
            assert any(chunk.usage for chunk in chunks) is has_usage


class TestResponses:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_items_with_reasoning_and_calls(self, stream: bool) -> None:
        provider = Provider(script=[CALL])

        async def play(clients: Clients) -> Any:
            if not stream:
                return await clients.openai.responses.create(model=GPT, input="Hi")
            async with clients.openai.responses.stream(model=GPT, input="Hi") as events:
                numbers = [event.sequence_number async for event in events]
                assert numbers == sorted(set(numbers))
                return await events.get_final_response()

        reply = await open_clients(provider, play)
        assert [item.type for item in reply.output] == [
            "reasoning",
            "message",
            "function_call",
        ]
        assert reply.output_text == "Let me look at it."
        assert reply.output[2].arguments == ARGUMENTS
        assert reply.usage.output_tokens_details.reasoning_tokens > 5

    async def test_its_answer_goes_back_as_input(self) -> None:
        provider = Provider(script=[CALL, "Done."])

        async def play(clients: Clients) -> str:
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
            return (
                await clients.openai.responses.create(model=GPT, input=told)
            ).output_text

        assert await open_clients(provider, play) == "Done."
        assert provider.log[1].shared
        assert provider.log[1].shared.is_extension

    async def test_reasoning_and_what_it_led_to_stay_together(self) -> None:
        provider = Provider(script=[CALL])

        async def play(clients: Clients) -> None:
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

        await open_clients(provider, play)


class TestAnthropic:
    async def test_blocks_with_a_signature_and_usage(self) -> None:
        provider = Provider(script=lambda _request: CALL)
        messages: Any = [{"role": "user", "content": "What is it?"}]
        tools: Any = [
            {
                "name": "read",
                "description": "Reads.",
                "input_schema": TOOL["parameters"],
            }
        ]

        async def play(clients: Clients) -> tuple[Any, Any, int]:
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
            return whole, streamed, counted.input_tokens

        whole, streamed, counted = await open_clients(provider, play)
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
            assert reply.usage.input_tokens == counted

    async def test_a_request_without_output_only_warms_the_cache(self) -> None:
        async def play(clients: Clients) -> Any:
            system: Any = [
                {
                    "type": "text",
                    "text": "Be brief. " * 900,
                    "cache_control": {"type": "ephemeral"},
                }
            ]
            messages: Any = [{"role": "user", "content": "warmup"}]
            return await clients.claude.messages.create(
                model=CLAUDE, max_tokens=0, system=system, messages=messages
            )

        reply = await open_clients(Provider(script=["Never said."]), play)
        assert (reply.content, reply.stop_reason, reply.usage.output_tokens) == (
            [],
            "max_tokens",
            0,
        )
        assert reply.usage.cache_creation_input_tokens > 1024

    async def test_thoughts_go_back_unchanged_or_are_refused(self) -> None:
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

        async def play(clients: Clients) -> str:
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
            return "done"

        assert await open_clients(provider, play) == "done"


class TestModels:
    async def test_both_kinds_of_client_list_them(self) -> None:
        async def play(clients: Clients) -> tuple[list[str], list[str], str]:
            one = [model.id async for model in clients.openai.models.list()]
            two = [model.id async for model in clients.claude.models.list()]
            return one, two, (await clients.openai.models.retrieve("b/c")).id

        assert await open_clients(Provider({"a": 1000, "b/c": 2000}), play) == (
            ["a", "b/c"],
            ["a", "b/c"],
            "b/c",
        )

    @pytest.mark.parametrize(
        "shows", ["max_model_len", "context_length", "context_window"]
    )
    async def test_a_window_is_shown_as_the_server_does(self, shows: Any) -> None:
        async def play(clients: Clients) -> Any:
            async with httpx2.AsyncClient(timeout=60) as http:
                return (await http.get(f"{clients.provider.url}/v1/models")).json()[
                    "data"
                ]

        [plain, llama, shown] = await open_clients(
            Provider(
                [
                    ServedModel("a", 4096),
                    ServedModel("b", 4096, shows="n_ctx_train"),
                    ServedModel("c", 4096, shows=shows),
                ]
            ),
            play,
        )
        assert 4096 not in plain.values()
        assert llama["meta"] == {"n_ctx_train": 4096}
        assert shown[shows] == 4096

    @pytest.mark.parametrize("api", APIS)
    async def test_an_unknown_one_is_not_found(self, api: Api) -> None:
        async def play(clients: Clients) -> None:
            with pytest.raises(
                (openai.NotFoundError, anthropic.NotFoundError), match="gpt-9"
            ):
                await clients.ask(api, model="gpt-9")
            with pytest.raises(openai.NotFoundError):
                await clients.openai.models.retrieve("gpt-9")

        await open_clients(Provider(), play)

    def test_nothing_to_serve_and_nonsense_are_refused(self) -> None:
        with pytest.raises(InputError, match="at least one"):
            Provider({})
        with pytest.raises(InputError, match="dialect 'klingon'"):
            ServedModel("a", dialect="klingon")
        with pytest.raises(InputError, match="at least 1"):
            Provider({"a": 0})
        with pytest.raises(InputError, match="not running"):
            _ = Provider().url


class TestScripts:
    async def test_functions_may_wait_and_see_the_request(self) -> None:
        arrived = asyncio.Event()
        gate = asyncio.Event()

        async def slow(request: Request) -> Reply | Fault | str:
            arrived.set()
            await gate.wait()
            return f"You use {request.model}."

        async def play(clients: Clients) -> list[str]:
            waiting = asyncio.create_task(clients.ask("openai_chat"))
            await arrived.wait()
            assert clients.provider.log[0].status is None
            gate.set()
            return [await waiting, await clients.ask("anthropic")]

        assert await open_clients(Provider(script=slow), play) == [
            "You use gpt-5.",
            "You use claude-sonnet-5.",
        ]

    async def test_a_script_that_is_used_up_says_so(self) -> None:
        async def play(clients: Clients) -> None:
            await clients.ask("openai_chat")
            with pytest.raises(
                openai.InternalServerError, match="1 answers, and all were given"
            ):
                await clients.ask("openai_chat")

        await open_clients(Provider(script=["only"]), play)

    async def test_a_function_that_fails_fails_the_test(self) -> None:
        def wrong(request: Request) -> str:
            assert request.model == "another", "it is not another"
            return "never"

        async def play(clients: Clients) -> None:
            with pytest.raises(
                openai.InternalServerError,
                match="The script failed: AssertionError: it is not",
            ):
                await clients.ask("openai_chat")

        provider = Provider(script=wrong)
        with pytest.raises(AssertionError, match="it is not another"):
            await open_clients(provider, play)
        assert provider.log[0].status == 500

    async def test_a_refused_request_uses_no_answer(self) -> None:
        async def play(clients: Clients) -> str:
            with pytest.raises(openai.BadRequestError):
                await clients.ask("openai_chat", "word " * 2000)
            return await clients.ask("openai_chat")

        assert await open_clients(Provider({GPT: 1000}, ["only"]), play) == "only"

    async def test_without_one_it_echoes(self) -> None:
        async def play(clients: Clients) -> str:
            return await clients.ask("openai_responses", "Is anybody there?")

        assert await open_clients(Provider(), play) == "You said: Is anybody there?"

    @pytest.mark.parametrize("api", APIS)
    async def test_an_answer_longer_than_was_asked_for_is_cut(self, api: Api) -> None:
        model: Any = {"openai_chat": GPT, "openai_responses": GPT, "anthropic": CLAUDE}[
            api
        ]

        async def play(clients: Clients) -> tuple[str, str]:
            if api == "anthropic":
                messages: Any = [{"role": "user", "content": "Hi"}]
                said: Any = await clients.claude.messages.create(
                    model=model, max_tokens=20, messages=messages
                )
                return said.content[0].text, said.stop_reason
            if api == "openai_chat":
                chat = await clients.openai.chat.completions.create(
                    model=model,
                    max_completion_tokens=20,
                    messages=[{"role": "user", "content": "Hi"}],
                )
                return str(chat.choices[0].message.content), chat.choices[
                    0
                ].finish_reason
            response = await clients.openai.responses.create(
                model=model, max_output_tokens=20, input="Hi"
            )
            assert response.incomplete_details
            return response.output_text, str(response.incomplete_details.reason)

        text, reason = await open_clients(
            Provider(script=["one two three four five " * 50]), play
        )
        assert 15 <= TokenCounter(model).text(text) <= 20
        assert reason in ("max_tokens", "length", "max_output_tokens")


async def test_a_client_that_blocks_runs_in_a_thread() -> None:
    async def run() -> str | None:
        async with Provider(script=["Hello."]) as provider:

            def ask() -> str | None:
                with OpenAI(api_key="sk-lab", base_url=f"{provider.url}/v1") as client:
                    said = client.chat.completions.create(
                        model=GPT, messages=[{"role": "user", "content": "Hi"}]
                    )
                    return said.choices[0].message.content

            return await asyncio.to_thread(ask)

    assert await run() == "Hello."


async def test_a_provider_may_be_opened_again() -> None:
    provider = Provider(script=["one", "two"])

    async def play(clients: Clients) -> str:
        return await clients.ask("openai_chat")

    assert [await open_clients(provider, play), await open_clients(provider, play)] == [
        "one",
        "two",
    ]
    assert len(provider.log) == 2


class TestLog:
    async def test_every_request_with_all_that_belongs_to_it(self) -> None:
        clock = iter(range(100, 200))
        provider = Provider(script=["A.", "B.", "C."], clock=lambda: float(next(clock)))

        async def play(clients: Clients) -> None:
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

        await open_clients(provider, play)
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

    async def test_who_listens_hears_of_each(self) -> None:
        heard: list[int | None] = []
        provider = Provider(
            script=["A.", Fault("server_error")],
            listen=lambda record: heard.append(record.status),
        )

        async def play(clients: Clients) -> None:
            await clients.ask("openai_chat")
            with pytest.raises(openai.InternalServerError):
                await clients.ask("openai_chat")

        await open_clients(provider, play)
        assert heard == [200, 500]

    async def test_what_is_no_json_is_refused_and_logged(self) -> None:
        provider = Provider()

        async def play(clients: Clients) -> None:
            async with httpx2.AsyncClient(timeout=60) as http:
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

        await open_clients(provider, play)
        assert [record.request for record in provider.log] == [None] * 4
