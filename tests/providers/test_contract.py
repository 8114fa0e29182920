"""What every model does, whichever protocol it is reached by: over real HTTP, through the official SDKs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from everthread.core.costs.canonical_usage import normalize_usage
from everthread.core.messages import text_of
from everthread.core.provider_errors.classification import classify_error
from everthread.core.types import Api, Reply, Request
from everthread.errors import ModelError, ModelUnreachableError
from everthread.lab.provider.faults import Fault
from everthread.providers.clients import encode_json_body
from tests.chat_messages import function_call, result_message
from tests.providers.http_models import (
    APIS,
    NAME,
    collect_pieces,
    decode_wire,
    failure_at,
    failure_of,
    make_request,
    model_at,
    open_model,
    wire_reply,
    wire_request,
    wire_stream,
)
from tests.wire.recording import Scripted, json_reply, recording_server, sse_reply

pytestmark = pytest.mark.parametrize("api", APIS)
both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])

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
CALLS = Reply(
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
REASONED: dict[Api, dict[str, Any]] = {
    "openai_chat": {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "served",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {
                    "role": "assistant",
                    "reasoning_content": "Hm, 4.",
                    "content": "Four.",
                },
            }
        ],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 3,
            "total_tokens": 12,
            "vendor_figure": 7,
        },
    },
    "openai_responses": {
        "id": "r1",
        "object": "response",
        "created_at": 1,
        "model": "served",
        "status": "completed",
        "output": [
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "Hm, 4."}],
                "encrypted_content": "gAAAA+signed",
            },
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [
                    {"type": "output_text", "text": "Four.", "annotations": []}
                ],
            },
        ],
        "usage": {
            "input_tokens": 9,
            "output_tokens": 3,
            "total_tokens": 12,
            "vendor_figure": 7,
        },
    },
    "anthropic": {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "served",
        "content": [
            {"type": "thinking", "thinking": "Hm, 4.", "signature": "signed=="},
            {"type": "text", "text": "Four."},
        ],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 3, "vendor_figure": 7},
    },
}


async def test_a_whole_answer_has_words_reason_and_usage(api: Api) -> None:
    async def run() -> Reply:
        async with open_model(api, ["Hello, ünïcode 世界."]) as (model, provider):
            reply = await model.complete(make_request())
            assert provider.log[0].request is not None
            assert provider.log[0].request.system == "You help."
            assert not provider.log[0].stream
            assert (
                normalize_usage(reply.usage, api=api) == provider.log[0].canonical_usage
            )
            return reply

    reply = await run()
    assert text_of(reply.message) == "Hello, ünïcode 世界."
    assert reply.stop == "stop"


async def test_a_stream_gives_the_words_piece_by_piece_and_the_whole_once_and_last(
    api: Api,
) -> None:
    said = "One two three four five six seven. 世界 " * 20
    async with open_model(api, [said, said]) as (model, provider):
        deltas, replies = await collect_pieces(model, make_request())
        whole = await model.complete(make_request())
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == said
    assert sum(delta.kind == "text" for delta in deltas) > 1
    [reply] = replies
    assert text_of(reply.message) == text_of(whole.message) == said
    assert reply.stop == "stop"
    assert normalize_usage(reply.usage, api=api) == provider.log[0].canonical_usage
    assert any(delta.kind == "usage" for delta in deltas)


@both_ways
async def test_calls_come_whole_and_their_results_go_back(
    api: Api, stream: bool
) -> None:
    async with open_model(api, [CALLS, "Done."]) as (model, provider):
        first = Request(NAME, [{"role": "user", "content": "Read."}], tools=[TOOL])
        if stream:
            deltas, [reply] = await collect_pieces(model, first)
            fragments = [delta for delta in deltas if delta.kind == "call"]
            assert {delta.id for delta in fragments} - {""} == {"call_a", "call_b"}
            assert json.loads(
                "".join(d.arguments for d in fragments if d.index == 1)
            ) == {"path": "ü.py"}
        else:
            reply = await model.complete(first)
        assert reply.stop == "tool_calls"
        calls = reply.message["tool_calls"]
        assert [json.loads(call["function"]["arguments"]) for call in calls] == [
            {"path": "a.py"},
            {"path": "ü.py"},
        ]
        results: list[Any] = [result_message(c["id"], c["id"]) for c in calls]
        again = Request(NAME, [*first.messages, reply.message, *results], tools=[TOOL])
        assert text_of((await model.complete(again)).message) == "Done."
        assert provider.log[1].status == 200
        assert provider.log[1].shared is not None
        assert provider.log[1].shared.is_extension


@both_ways
async def test_reasoning_and_unknown_fields_survive_and_return_verbatim(
    api: Api, stream: bool
) -> None:
    body = REASONED[api]
    scripted = (
        sse_reply(wire_stream(api, decode_wire(api, body)))
        if stream
        else json_reply(body)
    )

    async def run(url: str) -> tuple[Reply, list[str]]:
        model = model_at(api, url)
        said: list[str] = []
        if stream:
            deltas, [reply] = await collect_pieces(model, make_request())
            said = [delta.text for delta in deltas if delta.kind == "reasoning"]
        else:
            reply = await model.complete(make_request())
        await model.complete(
            Request(
                NAME,
                [
                    *make_request().messages,
                    reply.message,
                    {"role": "user", "content": "And 3+3?"},
                ],
            )
        )
        await model.aclose()
        return reply, said

    with recording_server([scripted, json_reply(body)]) as server:
        reply, said = await run(server.url)
    if stream:
        assert "".join(said) == "Hm, 4."
    assert reply.usage is not None
    assert reply.usage["vendor_figure"] == 7
    sent = server.requests[1].body
    turn = sent["input"][1:3] if api == "openai_responses" else [sent["messages"][1]]
    assert turn == spoken(api, body)


def spoken(api: Api, body: dict[str, Any]) -> list[Any]:
    """The assistant's message as a request must repeat it."""
    if api == "openai_chat":
        return [body["choices"][0]["message"]]
    return (
        list(body["output"])
        if api == "openai_responses"
        else [{"role": "assistant", "content": body["content"]}]
    )


@both_ways
async def test_the_body_arrives_byte_for_byte_as_it_was_encoded(
    api: Api, stream: bool
) -> None:
    request = make_request(
        "half a pair: \ud83d, 世界",
        zeta={"b": 1, "a": [None, 2.5]},
        max_tokens=77,
        store=True,
    )
    answer = Reply({"role": "assistant", "content": "ok"}, stop="stop")
    scripted = (
        sse_reply(wire_stream(api, answer))
        if stream
        else json_reply(wire_reply(api, answer))
    )

    async def run(url: str) -> None:
        model = model_at(api, url)
        await (collect_pieces(model, request) if stream else model.complete(request))
        await model.aclose()

    with recording_server([scripted]) as server:
        await run(server.url)
    wanted = wire_request(api, request)
    if stream:
        wanted |= {"stream": True}
        wanted |= (
            {"stream_options": {"include_usage": True}} if api == "openai_chat" else {}
        )
    assert server.requests[0].raw == encode_json_body(wanted)
    assert server.requests[0].headers["authorization"] == "Bearer sk-secret-0123456789"


@both_ways
async def test_a_refusal_for_now_tells_status_and_wait(api: Api, stream: bool) -> None:
    async with open_model(api, [Fault("rate_limit", retry_after=7)]) as (
        model,
        provider,
    ):
        error = await failure_of(model, make_request(), stream=stream)
    assert (error.status, error.retry_after) == (429, 7.0)
    assert classify_error(error).kind == "rate_limit"
    assert len(provider.log) == 1, "the SDK tried again by itself"


@both_ways
async def test_a_prompt_too_long_is_understood_with_its_limit(
    api: Api, stream: bool
) -> None:
    async with open_model(api, models={NAME: 2_000}) as (model, provider):
        error = await failure_of(
            model, make_request("word " * 5_000, max_tokens=10), stream=stream
        )
    assert error.status == provider.log[0].status
    verdict = classify_error(error)
    assert verdict.kind == "prompt_too_long"
    assert verdict.context_limit in (None, 2_000)
    assert error.body is not None


@pytest.mark.parametrize("kind", ["stream_overflow", "stream_error"])
async def test_an_error_inside_a_stream_is_an_error_with_what_was_said(
    api: Api, kind: Any
) -> None:
    async with open_model(api, [Fault(kind, after=6)]) as (model, _):
        error = await failure_of(model, make_request(), stream=True)
    assert (classify_error(error).kind == "prompt_too_long") is (
        kind == "stream_overflow"
    )
    assert NAME in str(error)
    assert error.body
    assert error.partial is not None
    assert text_of(error.partial.message)


@pytest.mark.parametrize("kind", ["truncated", "reset"])
async def test_a_stream_that_breaks_off_keeps_what_was_said(
    api: Api, kind: Any
) -> None:
    async with open_model(api, [Fault(kind, after=6)]) as (model, _):
        error = await failure_of(model, make_request(), stream=True)
    assert isinstance(error, ModelUnreachableError)
    assert text_of(error.partial.message)
    assert error.partial.stop is None
    if api == "anthropic":  # the only one to report the prompt's usage at the start
        assert normalize_usage(error.partial.usage).prompt_tokens > 0
    assert classify_error(error).kind == "other"


@pytest.mark.parametrize("kind", ["truncated", "empty"])
async def test_an_answer_that_cannot_be_read_is_an_error(api: Api, kind: Any) -> None:
    async with open_model(api, [Fault(kind)]) as (model, _):
        if api != "openai_chat" and kind == "empty":
            reply = await model.complete(make_request())
            assert text_of(reply.message) == ""
        else:
            error = await failure_of(model, make_request(), stream=False)
            assert NAME in str(error)


async def test_a_stream_without_an_event_means_a_prompt_too_long(api: Api) -> None:
    with recording_server([sse_reply([])]) as server:
        error = await failure_at(api, server.url, stream=True)
    assert classify_error(error).kind == "prompt_too_long"


async def test_a_page_that_is_no_answer_is_told_with_the_address(api: Api) -> None:
    page = Scripted(
        (b"<html><body>Please log in</body></html>",), content_type="text/html"
    )
    with recording_server([page]) as server:
        error = await failure_at(api, server.url, stream=False)
    assert server.url in str(error)
    assert "base_url" in str(error)
    assert classify_error(error).kind == "other"


@both_ways
async def test_a_wrong_key_names_the_variable_and_never_the_key(
    api: Api, stream: bool
) -> None:
    refusal = json_reply(
        {"error": {"message": "Incorrect API key: sk-secret-0123456789"}}, status=401
    )
    with recording_server([refusal]) as server:
        error = await failure_at(api, server.url, stream=stream)
    assert error.status == 401
    assert "TEST_KEY" in str(error)
    assert "sk-secret" not in str(error)


@both_ways
async def test_nobody_there_is_told_with_the_address(api: Api, stream: bool) -> None:
    with recording_server([]) as server:
        url = server.url
    error = await failure_at(api, url, stream=stream)
    assert isinstance(error, ModelUnreachableError)
    assert url in str(error)


async def test_a_cancelled_stream_closes_its_connection(api: Api) -> None:
    asked = asyncio.Event()
    over = asyncio.Event()

    def hang(_request: Request) -> Fault:
        asked.set()
        return Fault("hang", seconds=60)

    async with open_model(api, [hang], listen=lambda _record: over.set()) as (
        model,
        provider,
    ):
        task = asyncio.create_task(collect_pieces(model, make_request()))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(30):
            await over.wait()
        assert provider.log[0].events == ["gone"]


async def test_a_stream_left_early_closes_its_connection_and_the_model_goes_on(
    api: Api,
) -> None:
    async with open_model(api, ["word " * 2_000, "Again."]) as (model, _):
        stream = model.stream(make_request())
        await anext(stream)
        await stream.aclose()
        assert text_of((await model.complete(make_request())).message) == "Again."


async def test_silence_longer_than_the_limit_is_a_timeout(api: Api) -> None:
    async def run() -> ModelError:
        async with open_model(api, [Fault("hang", seconds=60)], read_seconds=0.2) as (
            model,
            _,
        ):
            return await failure_of(model, make_request(), stream=True)

    error = await run()
    assert type(error).__name__ == "ModelTimeoutError"
    assert classify_error(error).kind == "other"


async def test_the_model_works_again_after_it_was_closed(api: Api) -> None:
    async with open_model(api, ["One.", "Two."]) as (model, _):
        await model.complete(make_request())
        await model.aclose()
        assert text_of((await model.complete(make_request())).message) == "Two."


async def test_a_cap_is_sent_under_the_name_the_protocol_has(api: Api) -> None:
    fields = {
        "openai_chat": "max_tokens",
        "openai_responses": "max_output_tokens",
        "anthropic": "max_tokens",
    }
    async with open_model(api, ["a", "b"], max_tokens=123) as (model, provider):
        await model.complete(make_request())
        await model.complete(make_request("Hello?", **{fields[api]: 45}))
    assert [record.body[fields[api]] for record in provider.log] == [123, 45]
