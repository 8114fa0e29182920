"""Gemini's own protocol through the gateway, over real HTTP: Google's SDK, and requests it would not send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from google import genai
from google.genai import types

from everthread.core.messages import text_of
from everthread.core.summary_marks import SUMMARY_START
from everthread.core.types import ModelReply, ModelRequest
from everthread.gateway.request.gemini_path import (
    add_path_fields,
    read_path_fields,
    remove_path_fields,
)
from everthread.lab.provider import ServedModel
from tests.chat_messages import function_call
from tests.gateway.gateway_setup import FILLER, Gateways, open_gateways_with_models
from tests.gateway.manager_setup import statuses_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:Inheritance class AiohttpClientSession:DeprecationWarning"
)
"""Google's SDK subclasses aiohttp's session."""

MODEL = "gemini-3-pro-preview"
PATH = f"/v1beta/models/{MODEL}:generateContent"
WINDOW = 16_000
TURNS = 14
READ = {
    "name": "read_file",
    "description": "Read a file.",
    "parametersJsonSchema": {
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
    },
}


def script(request: ModelRequest) -> Any:
    """Answer what the user says by a call first, then by words."""
    last = request.messages[-1]
    if last["role"] == "user" and "look" in text_of(last):
        call = function_call(
            "", "read_file", json.dumps({"path": f"ledger_{len(request.messages)}.txt"})
        )
        thoughts = "The file is named, so I read it."
        return ModelReply(
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": thoughts,
                "tool_calls": [call],
            }
        )
    return f"Noted. {FILLER * 2}"


@asynccontextmanager
async def open_gemini(
    folder: Path, answers: Any = script, window: int = WINDOW
) -> AsyncIterator[Gateways]:
    async with open_gateways_with_models(
        folder, [ServedModel(MODEL, window, shows="inputTokenLimit")], answers
    ) as gateways:
        yield gateways


async def client_of(gateways: Gateways) -> genai.Client:
    options = types.HttpOptions(base_url=await gateways.start())
    client = genai.Client(api_key=await gateways.create_key(), http_options=options)
    gateways.exit_stack.push_async_callback(client.aio.aclose)
    return client


class GeminiConversation:
    """A conversation that keeps its whole history, as an agent does."""

    def __init__(self, client: genai.Client, *, streams: bool) -> None:
        self._models = client.aio.models
        self._streams = streams
        self.contents: list[Any] = []
        self.headers: dict[str, str] = {}
        self._config = types.GenerateContentConfig(
            system_instruction="You keep the books of a shop.",
            tools=[types.Tool.model_validate({"functionDeclarations": [READ]})],
            automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
        )

    async def say(self, text: str) -> str:
        """Say something, answer the calls that follow, and return the last words."""
        self.contents.append(types.UserContent(text))
        while True:
            parts = await self._ask()
            self.contents.append(types.Content(role="model", parts=parts))
            calls = [part.function_call for part in parts if part.function_call]
            if not calls:
                return "".join(part.text or "" for part in parts if not part.thought)
            answers = [
                types.Part.from_function_response(
                    name=str(call.name),
                    response={"output": f"{call.args}: {FILLER * 100}"},
                )
                for call in calls
            ]
            self.contents.append(types.Content(role="user", parts=answers))

    async def _ask(self) -> list[types.Part]:
        options: Any = {
            "model": MODEL,
            "contents": self.contents,
            "config": self._config,
        }
        if not self._streams:
            reply: Any = await self._models.generate_content(**options)
            self._note(reply)
            return list(reply.candidates[0].content.parts or ())
        parts: list[types.Part] = []
        async for chunk in await self._models.generate_content_stream(**options):
            self._note(chunk)
            parts += (
                chunk.candidates
                and chunk.candidates[0].content
                and chunk.candidates[0].content.parts
            ) or ()
        return parts

    def _note(self, reply: Any) -> None:
        if reply.sdk_http_response is not None:
            self.headers |= {
                name.lower(): value
                for name, value in (reply.sdk_http_response.headers or {}).items()
            }


async def stored_history(gateways: Gateways, thread: str, count: int) -> Any:
    """Wait until the thread has this many messages: the last answer is stored after the client has it."""
    async with asyncio.timeout(30):
        while len(history := await gateways.store.load_history(thread)) < count:  # noqa: ASYNC110 - the store has no event for it
            await asyncio.sleep(0.02)
    return history


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
async def test_google_sdk_continues_past_the_window(tmp_path: Path, streams: bool) -> None:
    async with open_gemini(tmp_path) as gateways:
        conversation = GeminiConversation(await client_of(gateways), streams=streams)
        threads = set()
        for turn in range(TURNS):
            assert "Noted" in await conversation.say(f"Please look at ledger {turn}. {FILLER * 6}")
            threads.add(conversation.headers["x-everthread-thread"])
        log = gateways.provider.log
        statuses = {record.status for record in log}
        assert statuses == {200}, [record.error for record in log if record.error]
        assert len(threads) == 1
        assert int(conversation.headers["x-everthread-compactions"]) >= 2
        assert max(record.prompt_tokens for record in log) < WINDOW
        last = log[-1].body
        assert SUMMARY_START in json.dumps(last)
        signed = [
            part
            for content in last["contents"]
            for part in content["parts"]
            if "functionCall" in part
        ]
        assert signed
        assert all(part["thoughtSignature"].startswith("bGFi") for part in signed), (
            "signatures come back as they were"
        )
        history = await stored_history(gateways, threads.pop(), count=4 * TURNS)
        assert sum(message.body["role"] == "tool" for message in history) == TURNS
        used = await gateways.store.usage.list_usage(history[0].session)
        assert sum(item.usage.total_tokens for item in used if item.task == "main") == sum(
            record.canonical_usage.total_tokens for record in log
        )


async def test_forwards_a_short_request_unchanged(tmp_path: Path, http: httpx2.AsyncClient) -> None:
    raw = b'{ "contents" :[{"parts":[{"text":"Hello"}]}],"generationConfig":{"maxOutputTokens" : 99} }'
    async with open_gemini(tmp_path) as gateways:
        url = await gateways.start()
        headers = {"x-goog-api-key": await gateways.create_key()}
        answer = await http.post(
            url + PATH,
            content=raw,
            headers={**headers, "content-type": "application/json"},
        )
        assert answer.status_code == 200
        assert answer.json()["usageMetadata"]["promptTokenCount"] > 0
        body = gateways.provider.log[-1].body
        assert {key: value for key, value in body.items() if key != "model"} == json.loads(raw)
        assert gateways.provider.log[-1].headers["content-length"] == str(len(raw))
        assert gateways.provider.log[-1].headers["x-goog-api-key"].startswith("sk-upstream")


async def test_learns_an_unknown_window_from_one_refusal(
    tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    models = [ServedModel("gemini-unheard-of", 8_000)]
    async with open_gateways_with_models(tmp_path, models, lambda _: "Noted.") as gateways:
        url = await gateways.start()
        headers = {"x-goog-api-key": await gateways.create_key()}
        contents: list[Any] = []
        for turn in range(24):
            contents.append(
                {
                    "role": "user",
                    "parts": [{"text": f"Entry {turn}. {FILLER * 25}"}],
                }
            )
            path = f"{url}/v1beta/models/gemini-unheard-of:generateContent"
            answer = await http.post(path, json={"contents": contents}, headers=headers)
            assert answer.status_code == 200, answer.text
            contents.append(answer.json()["candidates"][0]["content"])
        assert statuses_of(gateways.provider).count(400) == 1
        [limit] = await gateways.store.limits.list_limits()
        assert limit.model == "gemini-unheard-of"
        assert limit.limit == 8_000


async def test_lowers_an_output_cap_over_the_models_maximum(
    tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    models = [ServedModel(MODEL, WINDOW, max_output=500)]
    async with open_gateways_with_models(tmp_path, models) as gateways:
        url = await gateways.start()
        headers = {"x-goog-api-key": await gateways.create_key()}
        for settings in (
            {"maxOutputTokens": 900, "topK": 4},
            {"max_output_tokens": 900},
        ):
            body = {
                "contents": [
                    {
                        "role": "user",
                        "parts": [{"text": "Hi"}],
                    }
                ],
                "generationConfig": settings,
            }
            response = await http.post(url + PATH, json=body, headers=headers)
            assert response.status_code == 200
        caps = [record.body["generationConfig"] for record in gateways.provider.log]
        assert caps[1] == {"maxOutputTokens": 500, "topK": 4}
        assert caps[2] == {"max_output_tokens": 500}, "it is remembered"


async def test_recall_is_answered_by_the_gateway(tmp_path: Path) -> None:
    def recalling(request: ModelRequest) -> Any:
        last = request.messages[-1]
        if last["role"] == "user" and text_of(last).endswith("What was the code word?"):
            call = function_call("", "recall", '{"query": "code word"}')
            return ModelReply(
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [call],
                }
            )
        if last["role"] == "tool":
            return "It was marigold." if "marigold" in text_of(last) else "I do not know."
        return f"Noted. {FILLER}"

    for streams in (False, True):
        folder = tmp_path / str(streams)
        folder.mkdir()
        async with open_gemini(folder, recalling, window=8_000) as gateways:
            conversation = GeminiConversation(await client_of(gateways), streams=streams)
            await conversation.say(f"The code word is marigold. {FILLER * 30}")
            for turn in range(14):
                await conversation.say(f"Entry {turn}. {FILLER * 25}")
            assert await conversation.say("What was the code word?") == "It was marigold."
            assert "recall" not in str(conversation.contents)
            await conversation.say("Thanks.")
            last = gateways.provider.log[-1].body
            declared = [tool["name"] for tool in last["tools"][0]["functionDeclarations"]]
            assert declared == ["read_file", "recall"]
            assert (
                sum(
                    "functionCall" in part
                    for content in last["contents"]
                    for part in content["parts"]
                )
                == 1
            )
            assert set(statuses_of(gateways.provider)) == {200}


async def test_unmanaged_paths_get_a_notice_header(
    tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    async with open_gemini(tmp_path) as gateways:
        url = await gateways.start()
        headers = {"x-goog-api-key": await gateways.create_key()}
        contents = [
            {
                "role": "user",
                "parts": [{"text": "Hi"}],
            }
        ]
        cached = await http.post(
            url + PATH,
            json={"contents": contents, "cachedContent": "c/1"},
            headers=headers,
        )
        assert cached.headers["x-everthread-notice"] == "passed on unmanaged: cachedContent"
        counted = await http.post(
            f"{url}/v1beta/models/{MODEL}:countTokens",
            json={"contents": contents},
            headers=headers,
        )
        assert counted.json()["totalTokens"] > 0
        vertex = "/v1/projects/p/locations/us/publishers/google/models/gemini-3-pro:generateContent"
        for path in (
            f"/v1beta/models/{MODEL}:countTokens",
            vertex,
            "/model/anthropic.claude/invoke",
        ):
            answer = await http.post(url + path, json={"contents": contents}, headers=headers)
            assert (
                answer.headers["x-everthread-notice"]
                == "passed on unmanaged: this path is not managed"
            )


async def test_gateway_errors_have_the_form_of_gemini(
    tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    async with open_gemini(tmp_path) as gateways:
        url = await gateways.start()
        answer = await http.post(url + PATH, json={}, headers={"x-goog-api-key": "et_no"})
        error = answer.json()["error"]
        assert answer.status_code == 401
        assert error["code"] == 401
        assert error["status"] == "UNAUTHENTICATED"


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (PATH, (MODEL, False)),
        ("/v1/models/x:streamGenerateContent", ("x", True)),
        ("/v1alpha/tunedModels/y:generateContent", ("y", False)),
        ("/v1beta/models/x:countTokens", None),
        ("/v1beta/models/x", None),
    ],
)
def test_reads_model_and_streaming_from_the_path(path: str, found: tuple[str, bool] | None) -> None:
    call = read_path_fields(path)
    assert (None if call is None else (call.model, call.wants_stream)) == found


def test_fields_added_from_the_path_are_removed_before_sending() -> None:
    body = b' {"contents":[]}'
    opened = add_path_fields(PATH, body)
    assert json.loads(opened) == {
        "model": MODEL,
        "stream": False,
        "contents": [],
    }
    assert remove_path_fields(PATH, opened) == body
    assert add_path_fields(PATH, b"[]") == b"[]"
    assert add_path_fields("/v1/other", body) == body
    assert remove_path_fields("/v1/other", body) == body
