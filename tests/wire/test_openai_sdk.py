"""The official OpenAI SDK: its requests are restored verbatim, and it reads the encoded replies and streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import pytest
from openai import pydantic_function_tool
from pydantic import BaseModel

from everthread.core.types import ModelReply
from everthread.wire import openai_chat, openai_responses
from everthread.wire.sse import encode_event
from tests.chat_messages import (
    assistant_message,
    calls_message,
    custom_call,
    function_call,
    result_message,
    user_message,
)
from tests.wire.official_sdks import assert_golden, load_golden, openai_client
from tests.wire.openai_bodies import (
    CALL,
    MESSAGE,
    OUTPUT,
    REASONING,
    TEXT,
    completion,
    response,
)
from tests.wire.recording import json_reply, sse_reply

QUESTION: Any = [user_message("hi")]
USAGE = {"input_tokens": 3, "cache_read_input_tokens": 2, "output_tokens": 4}


class Weather(BaseModel):
    city: str
    degrees: float


class Lookup(BaseModel):
    """Look a city up."""

    city: str


OSLO = '{"city": "Oslo", "degrees": 4}'


def send_chat_request() -> Any:
    body = load_golden("openai_chat_create")
    extra_body = {"provider": body.pop("provider")}
    answer = completion(assistant_message("ok"))
    with openai_client(json_reply(answer)) as (client, server):
        client.chat.completions.create(**body, extra_body=extra_body)
    return server.requests[0].body


def parse_chat_answer() -> Any:
    answer = completion(assistant_message(OSLO))
    with openai_client(json_reply(answer)) as (client, server):
        parsed = client.chat.completions.parse(
            model="gpt-5",
            messages=[
                {"role": "developer", "content": "Be exact."},
                user_message("Oslo?"),
            ],
            response_format=Weather,
            tools=[pydantic_function_tool(Lookup)],
        )
    assert parsed.choices[0].message.parsed == Weather(city="Oslo", degrees=4)
    return server.requests[0].body


def send_chat_answer_back() -> Any:
    """Put an answer back into the history as the SDK's users do."""
    first = {**calls_message(function_call("c1", "look")), "refusal": None}
    second = assistant_message("done")
    with openai_client(
        json_reply(completion({**first, "annotations": []}, "tool_calls")),
        json_reply(completion(second)),
    ) as (client, server):
        messages: list[Any] = [user_message("go")]
        reply = client.chat.completions.create(model="gpt-5", messages=messages)
        messages += [
            reply.choices[0].message,
            result_message("c1", "sunny"),
        ]
        client.chat.completions.create(model="gpt-5", messages=messages)
    return server.requests[1].body


def send_responses_request(name: str) -> Any:
    with openai_client(json_reply(response(MESSAGE))) as (client, server):
        client.responses.create(**load_golden(name))
    return server.requests[0].body


def parse_responses_answer() -> Any:
    answer = {**MESSAGE, "content": [{**TEXT, "text": OSLO}]}
    with openai_client(json_reply(response(answer))) as (client, server):
        parsed = client.responses.parse(model="gpt-5", input="Oslo?", text_format=Weather)
    assert parsed.output_parsed == Weather(city="Oslo", degrees=4)
    return server.requests[0].body


def send_responses_answer_back() -> Any:
    """Put an answer back into the history as the SDK's users do."""
    with openai_client(
        json_reply(response(REASONING, MESSAGE, CALL)), json_reply(response(MESSAGE))
    ) as (client, server):
        history: list[Any] = [user_message("Oslo?")]
        reply = client.responses.create(model="gpt-5", input=history)
        history += [*reply.output, OUTPUT]
        client.responses.create(model="gpt-5", input=history)
    return server.requests[1].body


REQUESTS: dict[str, Callable[[], Any]] = {
    "openai_chat_create": send_chat_request,
    "openai_chat_parse": parse_chat_answer,
    "openai_chat_echo": send_chat_answer_back,
    "openai_responses_text": lambda: send_responses_request("openai_responses_text"),
    "openai_responses_items": lambda: send_responses_request("openai_responses_items"),
    "openai_responses_parse": parse_responses_answer,
    "openai_responses_echo": send_responses_answer_back,
}


def assert_request(name: str, captured: Any) -> None:
    """Check that a request is the one on file, and that it survives decoding and encoding."""
    body = assert_golden(name, captured)
    codec: Any = openai_chat if name.startswith("openai_chat") else openai_responses
    assert codec.encode_request(codec.decode_request(body)) == body


@pytest.mark.parametrize("name", REQUESTS)
def test_restores_requests_verbatim(name: str) -> None:
    assert_request(name, REQUESTS[name]())


def make_reply(*calls: Any) -> ModelReply:
    message = calls_message(*calls, text="Let me see.")
    return ModelReply(message, "tool_calls", USAGE, "claude", "msg_1")


def test_reads_a_chat_reply() -> None:
    call = function_call("c1", "look", '{"a": 1}')
    reply = make_reply(call)
    with openai_client(json_reply(openai_chat.encode_reply(reply))) as (client, _):
        result = client.chat.completions.create(model="claude", messages=QUESTION)
    [choice] = result.choices
    assert (result.id, result.model) == ("msg_1", "claude")
    assert (choice.finish_reason, choice.message.content) == (
        "tool_calls",
        "Let me see.",
    )
    assert [each.to_dict() for each in choice.message.tool_calls or ()] == [call]
    usage = cast("Any", result.usage)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (
        5,
        4,
        9,
    )
    assert usage.prompt_tokens_details.cached_tokens == 2


def test_reads_a_response() -> None:
    custom = custom_call("c2", "sql", "select 1")
    reply = make_reply(function_call("c1", "look", '{"a": 1}'), custom)
    with openai_client(json_reply(openai_responses.encode_reply(reply))) as (client, _):
        result = client.responses.create(model="claude", input="hi")
    assert (result.id, result.model) == ("msg_1", "claude")
    assert (result.status, result.output_text) == ("completed", "Let me see.")
    assert [item.type for item in result.output] == [
        "message",
        "function_call",
        "custom_tool_call",
    ]
    assert len({cast("Any", item).id for item in result.output}) == 3
    usage = cast("Any", result.usage)
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (5, 4, 9)
    assert usage.input_tokens_details.cached_tokens == 2


TWO_CALLS = (
    function_call("c1", "look", '{"a": 1}'),
    function_call("c2", "look", '{"a": 1}'),
)


def test_reads_a_chat_stream() -> None:
    events = map(
        encode_event, openai_chat.encode_stream(openai_chat.encode_reply(make_reply(*TWO_CALLS)))
    )
    with (
        openai_client(sse_reply(events)) as (client, server),
        client.chat.completions.stream(model="gpt-5", messages=QUESTION) as stream,
    ):
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert_request("openai_chat_stream_helper", server.requests[0].body)
    assert kinds.count("tool_calls.function.arguments.done") == 2
    [choice] = final.choices
    assert (choice.message.content, choice.finish_reason) == (
        "Let me see.",
        "tool_calls",
    )
    assert [call.id for call in choice.message.tool_calls or []] == ["c1", "c2"]
    assert cast("Any", final.usage).total_tokens == 9


def test_reads_a_responses_stream() -> None:
    events = map(
        encode_event,
        openai_responses.encode_stream(openai_responses.encode_reply(make_reply(*TWO_CALLS))),
    )
    with (
        openai_client(sse_reply(events)) as (client, server),
        client.responses.stream(model="gpt-5", input="hi") as stream,
    ):
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert_request("openai_responses_stream_helper", server.requests[0].body)
    assert kinds.count("response.function_call_arguments.done") == 2
    assert (final.output_text, final.status) == ("Let me see.", "completed")
    assert [item.type for item in final.output] == [
        "message",
        "function_call",
        "function_call",
    ]
    assert cast("Any", final.usage).total_tokens == 9


def test_chat_chunks_of_the_sdk_add_up_to_a_reply_that_it_reads() -> None:
    call = {"index": 0, "id": "a", "type": "function"}
    deltas: list[Any] = [
        {"role": "assistant", "content": None, "refusal": None},
        {"content": "Let me"},
        {"content": " see."},
        {"tool_calls": [{**call, "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"x"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
    ]
    choices = [{"delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"delta": {}, "finish_reason": "tool_calls"})
    chunk = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "gpt-5",
    }
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    chunks = [{**chunk, "choices": [{"index": 0, **choice}]} for choice in choices]
    chunks.append({**chunk, "choices": [], "usage": usage})
    script = [f"data: {json.dumps(each)}\n\n".encode() for each in chunks]
    decoder = openai_chat.stream_decoder()
    with openai_client(sse_reply([*script, b"data: [DONE]\n\n"])) as (client, server):
        for event in client.chat.completions.create(
            model="gpt-5",
            messages=QUESTION,
            stream=True,
            stream_options={"include_usage": True},
        ):
            decoder.feed(event.to_dict())
    assert_request("openai_chat_stream", server.requests[0].body)
    reply = decoder.reply()
    assert reply.message == {
        **calls_message(function_call("a", "f", '{"x": 1}'), text="Let me see."),
        "refusal": None,
    }
    with openai_client(json_reply(openai_chat.encode_reply(reply))) as (client, _):
        whole = client.chat.completions.create(model="gpt-5", messages=QUESTION)
    assert whole.choices[0].message.content == "Let me see."


def test_responses_events_of_the_sdk_add_up_to_the_reply() -> None:
    reasoning = {**REASONING, "summary": [{"type": "summary_text", "text": "hm"}]}
    body = response(reasoning, MESSAGE, CALL)
    reply = openai_responses.decode_reply(body)
    decoder = openai_responses.stream_decoder()
    events = map(encode_event, openai_responses.encode_stream(body))
    with openai_client(sse_reply(events)) as (client, server):
        for event in client.responses.create(model="gpt-5", input="hi", stream=True):
            decoder.feed(event.to_dict())
    assert_request("openai_responses_stream", server.requests[0].body)
    assert decoder.reply() == reply
