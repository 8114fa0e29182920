"""Behaviour of every model, whatever its protocol: over real HTTP, through the official SDKs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from everthread.core.costs.canonical_usage import normalize_usage
from everthread.core.messages import Message, calls_of, text_of
from everthread.core.provider_errors.classification import classify_error
from everthread.core.types import Api, ModelReply, ModelRequest
from everthread.errors import ModelTimeoutError, ModelUnreachableError
from everthread.lab.provider.faults import Fault
from everthread.providers.clients import encode_json_body
from everthread.wire.codecs import CODECS
from everthread.wire.sse import encode_event
from tests.apis import APIS
from tests.chat_messages import function_call, result_message
from tests.providers.http_models import (
    NAME,
    both_ways,
    collect_pieces,
    connect_model,
    failure_at,
    failure_of,
    make_request,
    open_model,
    script_answer,
)
from tests.wire.recording import Scripted, json_reply, recording_server, sse_reply

pytestmark = pytest.mark.parametrize("api", APIS)

HTML = "text/html; charset=utf-8"
TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads a file.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
        },
    },
}
CALLS = ModelReply(
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            function_call("call_a", "read_file", '{"path":"a.py"}'),
            function_call("call_b", "read_file", '{"path":"ü.py"}'),
        ],
    },
    stop="tool_calls",
)
REASONING_REPLIES: dict[Api, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "reasoning_replies.json").read_text("utf-8")
)
"""A reply of each provider with reasoning, and with a field that is not known."""


async def test_completes_with_text_and_usage(api: Api) -> None:
    async with open_model(api, ["Hello, ünïcode 世界."]) as (model, provider):
        reply = await model.complete(make_request())
    assert text_of(reply.message) == "Hello, ünïcode 世界."
    assert reply.stop == "stop"
    [record] = provider.log
    assert record.request is not None
    assert record.request.system == "You help."
    assert not record.stream
    assert normalize_usage(reply.usage, api=api) == record.canonical_usage


async def test_streams_text_in_deltas_and_the_reply_last(api: Api) -> None:
    text = "One two three four five six seven. 世界 " * 20
    async with open_model(api, [text, text]) as (model, provider):
        deltas, [reply] = await collect_pieces(model, make_request())
        complete_reply = await model.complete(make_request())
    pieces = [delta.text for delta in deltas if delta.kind == "text"]
    assert len(pieces) > 1
    assert "".join(pieces) == text
    assert text_of(reply.message) == text
    assert text_of(complete_reply.message) == text
    assert reply.stop == "stop"
    assert normalize_usage(reply.usage, api=api) == provider.log[0].canonical_usage
    assert "usage" in {delta.kind for delta in deltas}


@both_ways
async def test_returns_calls_and_sends_their_results(api: Api, stream: bool) -> None:
    async with open_model(api, [CALLS, "Done."]) as (model, provider):
        first = ModelRequest(NAME, [{"role": "user", "content": "Read."}], tools=[TOOL])
        if stream:
            deltas, [reply] = await collect_pieces(model, first)
            fragments = [delta for delta in deltas if delta.kind == "call"]
            assert {delta.id for delta in fragments} - {""} == {"call_a", "call_b"}
            arguments = [delta.arguments for delta in fragments if delta.index == 1]
            assert json.loads("".join(arguments)) == {"path": "ü.py"}
        else:
            reply = await model.complete(first)
        assert reply.stop == "tool_calls"
        first_call, second_call = calls_of(reply.message)
        assert first_call.parsed == {"path": "a.py"}
        assert second_call.parsed == {"path": "ü.py"}
        history: list[Message] = [
            *first.messages,
            reply.message,
            result_message(first_call.id, "first"),
            result_message(second_call.id, "second"),
        ]
        last_reply = await model.complete(ModelRequest(NAME, history, tools=[TOOL]))
        assert text_of(last_reply.message) == "Done."
        record = provider.log[1]
        assert record.status == 200
        assert record.shared is not None
        assert record.shared.is_extension


@both_ways
async def test_sends_reasoning_and_unknown_fields_back_verbatim(api: Api, stream: bool) -> None:
    body = REASONING_REPLIES[api]
    events = [encode_event(event) for event in CODECS[api].encode_stream(body)]
    first_answer = sse_reply(events) if stream else json_reply(body)
    request = make_request()
    with recording_server([first_answer, json_reply(body)]) as server:
        async with connect_model(api, server.url) as model:
            if stream:
                deltas, [reply] = await collect_pieces(model, request)
                thoughts = [d.text for d in deltas if d.kind == "reasoning"]
                assert "".join(thoughts) == "Hm, 4."
            else:
                reply = await model.complete(request)
            question: Message = {"role": "user", "content": "And 3+3?"}
            history = [*request.messages, reply.message, question]
            await model.complete(ModelRequest(NAME, history))
    assert reply.usage is not None
    assert reply.usage["vendor_figure"] == 7
    sent = server.requests[1].body
    if api == "openai_responses":
        assert sent["input"][1:3] == body["output"]
    elif api == "openai_chat":
        assert sent["messages"][1] == body["choices"][0]["message"]
    else:
        answer = {"role": "assistant", "content": body["content"]}
        assert sent["messages"][1] == answer


@both_ways
async def test_sends_exactly_the_encoded_bytes(api: Api, stream: bool) -> None:
    request = make_request(
        "half a pair: \ud83d, 世界",
        zeta={
            "b": 1,
            "a": [None, 2.5],
        },
        max_tokens=77,
        store=True,
    )
    answer = ModelReply({"role": "assistant", "content": "ok"}, stop="stop")
    with recording_server([script_answer(api, answer, stream=stream)]) as server:
        async with connect_model(api, server.url) as model:
            if stream:
                await collect_pieces(model, request)
            else:
                await model.complete(request)
    expected_body = CODECS[api].encode_request(request)
    if stream:
        expected_body["stream"] = True
        if api == "openai_chat":
            expected_body["stream_options"] = {"include_usage": True}
    sent = server.requests[0]
    assert sent.raw == encode_json_body(expected_body)
    assert sent.headers["authorization"] == "Bearer sk-secret-0123456789"


@both_ways
async def test_reports_status_and_wait_of_a_rate_limit(api: Api, stream: bool) -> None:
    script = [Fault("rate_limit", retry_after=7)]
    async with open_model(api, script) as (model, provider):
        error = await failure_of(model, stream=stream)
    assert error.status == 429
    assert error.retry_after == 7.0
    assert classify_error(error).kind == "rate_limit"
    assert len(provider.log) == 1, "the SDK tried again by itself"


@both_ways
async def test_understands_an_overflow_with_its_limit(api: Api, stream: bool) -> None:
    async with open_model(api, models={NAME: 2_000}) as (model, provider):
        request = make_request("word " * 5_000, max_tokens=10)
        error = await failure_of(model, request, stream=stream)
    assert error.status == provider.log[0].status
    verdict = classify_error(error)
    assert verdict.kind == "prompt_too_long"
    assert verdict.context_limit in (None, 2_000)
    assert error.body is not None


@pytest.mark.parametrize("kind", ["stream_overflow", "stream_error"])
async def test_an_error_inside_a_stream_keeps_the_partial_answer(api: Api, kind: Any) -> None:
    async with open_model(api, [Fault(kind, after=6)]) as (model, _):
        error = await failure_of(model, stream=True)
    is_overflow = classify_error(error).kind == "prompt_too_long"
    assert is_overflow is (kind == "stream_overflow")
    assert NAME in str(error)
    assert error.body
    assert error.partial is not None
    assert text_of(error.partial.message)


@pytest.mark.parametrize("kind", ["truncated", "reset"])
async def test_a_broken_stream_keeps_the_partial_answer(api: Api, kind: Any) -> None:
    async with open_model(api, [Fault(kind, after=6)]) as (model, _):
        error = await failure_of(model, stream=True)
    assert isinstance(error, ModelUnreachableError)
    assert text_of(error.partial.message)
    assert error.partial.stop is None
    if api == "anthropic":  # the only one to report the prompt's usage at the start
        assert normalize_usage(error.partial.usage).prompt_tokens > 0
    assert classify_error(error).kind == "other"


@pytest.mark.parametrize("kind", ["truncated", "empty"])
async def test_raises_for_an_unreadable_answer(api: Api, kind: Any) -> None:
    async with open_model(api, [Fault(kind)]) as (model, _):
        if api != "openai_chat" and kind == "empty":
            reply = await model.complete(make_request())
            assert text_of(reply.message) == ""
        else:
            error = await failure_of(model, stream=False)
            assert NAME in str(error)


async def test_takes_a_stream_without_events_for_an_overflow(api: Api) -> None:
    with recording_server([sse_reply([])]) as server:
        error = await failure_at(api, server.url, stream=True)
    assert classify_error(error).kind == "prompt_too_long"


@both_ways
async def test_names_the_address_that_answers_with_a_web_page(api: Api, stream: bool) -> None:
    page = Scripted((b"<html><body>Please log in</body></html>",), content_type=HTML)
    with recording_server([page]) as server:
        error = await failure_at(api, server.url, stream=stream)
    assert server.url in str(error)
    assert "base_url" in str(error)
    assert classify_error(error).kind == "other"


@both_ways
async def test_names_the_variable_of_a_wrong_key_and_hides_the_key(api: Api, stream: bool) -> None:
    message = "Incorrect API key: sk-secret-0123456789"
    refusal = json_reply({"error": {"message": message}}, status=401)
    with recording_server([refusal]) as server:
        error = await failure_at(api, server.url, stream=stream)
    assert error.status == 401
    assert "TEST_KEY" in str(error)
    assert "sk-secret" not in str(error)


@both_ways
async def test_names_an_unreachable_address(api: Api, stream: bool) -> None:
    with recording_server([]) as server:
        url = server.url
    error = await failure_at(api, url, stream=stream)
    assert isinstance(error, ModelUnreachableError)
    assert url in str(error)


async def test_cancelling_a_stream_closes_its_connection(api: Api) -> None:
    arrived = asyncio.Event()
    over = asyncio.Event()

    def hang(_request: ModelRequest) -> Fault:
        arrived.set()
        return Fault("hang", seconds=60)

    async with open_model(api, [hang], listen=lambda _record: over.set()) as (
        model,
        provider,
    ):
        task = asyncio.create_task(collect_pieces(model, make_request()))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(30):
            await over.wait()
        assert provider.log[0].events == ["gone"]


async def test_answers_again_after_a_stream_was_closed_early(api: Api) -> None:
    async with open_model(api, ["word " * 2_000, "Again."]) as (model, _):
        stream = model.stream(make_request())
        await anext(stream)
        await stream.aclose()
        reply = await model.complete(make_request())
    assert text_of(reply.message) == "Again."


async def test_raises_a_timeout_after_silence(api: Api) -> None:
    script = [Fault("hang", seconds=60)]
    async with open_model(api, script, read_seconds=0.2) as (model, _):
        error = await failure_of(model, stream=True)
    assert isinstance(error, ModelTimeoutError)
    assert classify_error(error).kind == "other"


async def test_answers_again_after_it_was_closed(api: Api) -> None:
    async with open_model(api, ["One.", "Two."]) as (model, _):
        await model.complete(make_request())
        await model.aclose()
        reply = await model.complete(make_request())
    assert text_of(reply.message) == "Two."


async def test_sends_the_output_cap_in_the_field_of_the_protocol(api: Api) -> None:
    fields = {
        "openai_chat": "max_tokens",
        "openai_responses": "max_output_tokens",
        "anthropic": "max_tokens",
    }
    field = fields[api]
    async with open_model(api, ["a", "b"], max_tokens=123) as (model, provider):
        await model.complete(make_request())
        await model.complete(make_request("Hello?", **{field: 45}))
    first, second = provider.log
    assert first.body[field] == 123
    assert second.body[field] == 45
