from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given
from pydantic import BaseModel

from everthread.core.messages import Message
from everthread.core.types import Reply, Request
from everthread.errors import WireError
from everthread.wire import openai_chat, openai_responses
from everthread.wire.native_values import with_native
from tests.wire import openai_strategies as made
from tests.wire.openai_sdk import golden, sdk
from tests.wire.recording import json_reply
from tests.wire.response_items import (
    CALL,
    MESSAGE,
    OUTPUT,
    REASONING,
    SHELL,
    SHELL_OUTPUT,
    TEXT,
)


def response(*output: Any, **fields: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 8,
    }
    head = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt-5",
        "status": "completed",
    }
    rest: dict[str, Any] = {
        "error": None,
        "incomplete_details": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    return {**head, **rest, "usage": usage, "output": list(output), **fields}


def encode(*messages: Any, model: str | None = None) -> list[dict[str, Any]]:
    return openai_responses.encode_messages(
        cast("list[Message]", list(messages)), model=model
    )


def round_trip(body: dict[str, Any]) -> dict[str, Any]:
    return openai_responses.encode_request(openai_responses.decode_request(body))


# Requests of the SDK


class Weather(BaseModel):
    city: str
    degrees: float


def _capture_text() -> Any:
    with sdk(json_reply(response(MESSAGE))) as (client, server):
        client.responses.create(
            model="gpt-5", instructions="Be brief.", input="Oslo?", store=False
        )
    return server.requests[0].body


def _capture_items() -> Any:
    with sdk(json_reply(response(MESSAGE))) as (client, server):
        client.responses.create(
            model="gpt-5",
            input=[
                {"role": "developer", "content": "Be exact."},
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "这是什么?"},
                        {
                            "type": "input_image",
                            "image_url": "data:image/png;base64,iVBO",
                            "detail": "low",
                        },
                        {
                            "type": "input_file",
                            "filename": "a.pdf",
                            "file_data": "data:application/pdf;base64,JVBE",
                        },
                    ],
                },
                {
                    "type": "reasoning",
                    "id": "rs_1",
                    "summary": [{"type": "summary_text", "text": "hm"}],
                    "encrypted_content": "gA",
                },
                {
                    "type": "web_search_call",
                    "id": "ws_1",
                    "status": "completed",
                    "action": {"type": "search", "query": "q"},
                },
                {"role": "assistant", "content": "One moment.", "phase": "commentary"},
                {
                    "type": "function_call",
                    "id": "fc_1",
                    "call_id": "c1",
                    "name": "look",
                    "arguments": "{}",
                    "status": "completed",
                },
                {
                    "type": "custom_tool_call",
                    "call_id": "c2",
                    "name": "sql",
                    "input": "select 1",
                },
                {
                    "type": "function_call_output",
                    "call_id": "c1",
                    "output": [{"type": "input_text", "text": "sunny"}],
                },
                {"type": "custom_tool_call_output", "call_id": "c2", "output": "1"},
                {"type": "item_reference", "id": "msg_0"},
                {"role": "user", "content": "And now?"},
            ],
            tools=[
                {
                    "type": "function",
                    "name": "look",
                    "description": "d",
                    "parameters": {"type": "object"},
                    "strict": False,
                },
                {
                    "type": "custom",
                    "name": "sql",
                    "format": {
                        "type": "grammar",
                        "syntax": "lark",
                        "definition": "start: x",
                    },
                },
                {"type": "web_search", "search_context_size": "low"},
            ],
            include=["reasoning.encrypted_content"],
            reasoning={"effort": "low", "summary": "auto"},
            max_output_tokens=500,
        )
    return server.requests[0].body


def _capture_parse() -> Any:
    answer = {
        **MESSAGE,
        "content": [{**TEXT, "text": '{"city": "Oslo", "degrees": 4}'}],
    }
    with sdk(json_reply(response(answer))) as (client, server):
        parsed = client.responses.parse(
            model="gpt-5", input="Oslo?", text_format=Weather
        )
    assert parsed.output_parsed == Weather(city="Oslo", degrees=4)
    return server.requests[0].body


def _capture_echo() -> Any:
    """An answer put back into the history the way the SDK's users do it."""
    with sdk(
        json_reply(response(REASONING, MESSAGE, CALL)), json_reply(response(MESSAGE))
    ) as (client, server):
        history: list[Any] = [{"role": "user", "content": "Oslo?"}]
        reply = client.responses.create(model="gpt-5", input=history)
        history += [*reply.output, OUTPUT]
        client.responses.create(model="gpt-5", input=history)
    return server.requests[1].body


CAPTURES = {
    "text": _capture_text,
    "items": _capture_items,
    "parse": _capture_parse,
    "echo": _capture_echo,
}


@pytest.mark.parametrize("name", CAPTURES)
def test_what_the_sdk_sends_comes_back_verbatim(name: str) -> None:
    body = golden(f"openai_responses_{name}", CAPTURES[name]())
    assert round_trip(body) == body


@pytest.mark.parametrize("native", [True, False])
def test_the_sdk_reads_what_a_reply_is_encoded_to(native: bool) -> None:
    calls: Any = [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "look", "arguments": '{"a": 1}'},
        },
        {"id": "c2", "type": "custom", "custom": {"name": "sql", "input": "select 1"}},
    ]
    message: Message = {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": calls,
    }
    usage = {"input_tokens": 3, "cache_read_input_tokens": 2, "output_tokens": 4}
    reply = Reply(
        message=message, stop="tool_calls", usage=usage, model="claude", id="abc"
    )
    if native:
        reply = openai_responses.decode_reply(openai_responses.encode_reply(reply))
    with sdk(json_reply(openai_responses.encode_reply(reply))) as (client, _):
        result = client.responses.create(model="claude", input="hi")
    assert (result.id, result.model, result.status, result.output_text) == (
        "abc",
        "claude",
        "completed",
        "Let me see.",
    )
    assert [item.type for item in result.output] == [
        "message",
        "function_call",
        "custom_tool_call",
    ]
    assert len({cast("Any", item).id for item in result.output}) == 3
    assert result.usage is not None
    assert (
        result.usage.input_tokens,
        result.usage.output_tokens,
        result.usage.total_tokens,
    ) == (5, 4, 9)
    assert result.usage.input_tokens_details.cached_tokens == 2


# Requests


@made.few
@given(made.responses_request)
def test_a_request_comes_back_verbatim(body: dict[str, Any]) -> None:
    before = json.dumps(body)
    assert round_trip(body) == body
    assert json.dumps(body) == before


def test_text_stands_for_a_user_message_until_more_follows() -> None:
    request = openai_responses.decode_request({"model": "m", "input": "hi"})
    assert request.messages[0]["content"] == "hi"
    more = Request("m", [*request.messages, {"role": "user", "content": "go"}])
    assert openai_responses.encode_request(more)["input"] == [
        {"role": "user", "content": "hi"},
        {"role": "user", "content": "go"},
    ]


def test_the_instructions_are_the_system() -> None:
    request = openai_responses.decode_request(
        {"model": "m", "input": [], "instructions": "Be brief."}
    )
    assert request.system == "Be brief."
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert openai_responses.encode_request(Request("m", [], system=blocks)) == {
        "model": "m",
        "instructions": "a\n\nb",
    }


def test_a_system_prompt_with_a_breakpoint_is_a_developer_message() -> None:
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    system = [{"type": "text", "text": "Be brief.", **mark}]
    developer = {
        "type": "message",
        "role": "developer",
        "content": [{"type": "input_text", "text": "Be brief.", **mark}],
    }
    alone = openai_responses.encode_request(Request("m", [], system=system))
    assert alone == {"model": "m", "input": [developer]}
    text = openai_responses.decode_request({"model": "m", "input": "Hello."})
    asked = Request("m", text.messages, system=system)
    assert openai_responses.encode_request(asked)["input"] == [
        developer,
        {"role": "user", "content": "Hello."},
    ]
    said = Request("m", [{"role": "user", "content": "Hi."}], system=system)
    assert openai_responses.encode_request(said)["input"][0] == developer


def test_tools_in_chats_form() -> None:
    function = {"type": "function", "name": "f", "parameters": {}, "strict": True}
    grammar = {
        "type": "custom",
        "name": "g",
        "format": {"type": "grammar", "syntax": "lark", "definition": "x"},
    }
    wire: list[dict[str, Any]] = [function, grammar, {"type": "custom", "name": "h"}]
    tools = openai_responses.decode_tools(wire)
    nested = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "x"}}
    assert tools == [
        {
            "type": "function",
            "function": {"name": "f", "parameters": {}, "strict": True},
        },
        {"type": "custom", "custom": {"name": "g", "format": nested}},
        {"type": "custom", "custom": {"name": "h"}},
    ]
    assert openai_responses.encode_tools(tools) == wire
    assert openai_chat.encode_tools(tools) == tools


def test_built_in_tools_go_only_where_they_are_built_in() -> None:
    ours = openai_responses.decode_tools([{"type": "web_search"}])
    theirs = {
        "type": "bash_20250124",
        "name": "bash",
        "_native": {"api": "anthropic", "value": {}},
    }
    assert openai_chat.encode_tools(ours) == []
    assert openai_responses.encode_tools([*ours, theirs, {"type": "mcp"}]) == [
        {"type": "web_search"},
        {"type": "mcp"},
    ]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (5, "the request must be an object, not int"),
        ({"input": "x"}, "model must be a string, not missing"),
        ({"model": "m", "input": 5}, "input must be a list, not int"),
        ({"model": "m", "input": ["x"]}, r"input\[0\] must be an object, not str"),
        (
            {"model": "m", "input": [{"type": "message"}]},
            r"input\[0\].role must be a string, not missing",
        ),
        (
            {"model": "m", "input": [{"role": "tool", "content": "x"}]},
            r"input\[0\].role must not be tool",
        ),
        (
            {"model": "m", "input": [{"role": "user", "content": 5}]},
            "content must be a list, not int",
        ),
        (
            {"model": "m", "input": [{"role": "user", "content": ["x"]}]},
            "a part of the content must be an object, not str",
        ),
        ({"model": "m", "tools": 5}, "tools must be a list, not int"),
        ({"model": "m", "tools": ["x"]}, r"tools\[0\] must be an object, not str"),
    ],
)
def test_what_is_no_request_is_refused_with_a_sentence(
    body: Any, sentence: str
) -> None:
    with pytest.raises(WireError, match=sentence):
        openai_responses.decode_request(body)


# Replies


@made.few
@given(made.responses_reply)
def test_a_reply_comes_back_verbatim(body: dict[str, Any]) -> None:
    assert openai_responses.encode_reply(openai_responses.decode_reply(body)) == body


@pytest.mark.parametrize(
    ("output", "fields", "stop"),
    [
        ([MESSAGE], {}, "stop"),
        ([MESSAGE, CALL], {}, "tool_calls"),
        (
            [{**MESSAGE, "content": [{"type": "refusal", "refusal": "No."}]}],
            {},
            "refusal",
        ),
        ([SHELL, SHELL_OUTPUT, MESSAGE], {}, "stop"),
        (
            [MESSAGE],
            {
                "status": "incomplete",
                "incomplete_details": {"reason": "max_output_tokens"},
            },
            "length",
        ),
        (
            [MESSAGE],
            {
                "status": "incomplete",
                "incomplete_details": {"reason": "content_filter"},
            },
            "content_filter",
        ),
        (
            [MESSAGE],
            {"status": "incomplete", "incomplete_details": {"reason": "steered"}},
            "other",
        ),
        ([MESSAGE], {"status": "incomplete"}, "other"),
        (
            [],
            {"status": "failed", "error": {"code": "server_error", "message": "m"}},
            "other",
        ),
        ([], {"status": "cancelled"}, "other"),
        ([], {"status": "in_progress"}, None),
    ],
)
def test_why_it_stopped(
    output: list[Any], fields: dict[str, Any], stop: str | None
) -> None:
    body = response(*output, **fields)
    reply = openai_responses.decode_reply(body)
    assert reply.stop == stop
    assert openai_responses.encode_reply(reply) == body


@pytest.mark.parametrize(
    ("stop", "status", "details"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", {"reason": "max_output_tokens"}),
        ("content_filter", "incomplete", {"reason": "content_filter"}),
        ("refusal", "completed", None),
        (None, "in_progress", None),
    ],
)
def test_a_reply_of_another_api_gets_a_status(
    stop: str | None, status: str, details: Any
) -> None:
    message = with_native(
        {"role": "assistant", "content": "x", "refusal": "No."}, "anthropic", {}
    )
    body = openai_responses.encode_reply(
        Reply(message=message, stop=stop, raw={"stop_reason": "?"})
    )
    assert (body["status"], body["incomplete_details"]) == (status, details)
    assert "stop_reason" not in body
    assert [part["type"] for part in body["output"][0]["content"]] == [
        "output_text",
        "refusal",
    ]


def test_a_changed_stop_wins_over_the_native_one() -> None:
    reply = openai_responses.decode_reply(response(MESSAGE))
    changed = Reply(message=reply.message, stop="length", raw=reply.raw)
    assert openai_responses.encode_reply(changed)["status"] == "incomplete"


def test_the_model_asked_for_owns_the_reasoning() -> None:
    message = openai_responses.decode_reply(
        response(REASONING, MESSAGE), model="alias"
    ).message
    assert encode(message, model="alias")[0] == REASONING
    assert REASONING not in encode(message, model="gpt-5")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ([], "the reply must be an object, not list"),
        (
            {"error": {"message": "too long"}},
            "the reply is an error, not a response: too long",
        ),
        ({"error": {"x": 1}}, "the reply is an error, not a response: {'x': 1}"),
        ({}, "output must be a list, not missing"),
        ({"output": [5]}, r"output\[0\] must be an object, not int"),
    ],
)
def test_what_is_no_reply_is_refused_with_a_sentence(body: Any, sentence: str) -> None:
    with pytest.raises(WireError, match=sentence):
        openai_responses.decode_reply(body)
