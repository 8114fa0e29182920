"""Requests, tools and replies of OpenAI's Responses protocol."""

from __future__ import annotations

from typing import Any, cast

import pytest

from everthread.core.messages import Message
from everthread.core.types import ModelReply, ModelRequest
from everthread.wire import openai_chat, openai_responses
from everthread.wire.native_values import with_native
from tests.chat_messages import text_part, user_message
from tests.wire.openai_bodies import (
    CALL,
    MESSAGE,
    SHELL,
    SHELL_OUTPUT,
    response,
)


def encode(*messages: Any, model: str | None = None) -> list[dict[str, Any]]:
    return openai_responses.encode_messages(cast("list[Message]", list(messages)), model=model)


def round_trip(body: dict[str, Any]) -> dict[str, Any]:
    return openai_responses.encode_request(openai_responses.decode_request(body))


def test_text_input_is_a_user_message() -> None:
    request = openai_responses.decode_request({"model": "m", "input": "hi"})
    assert request.messages[0]["content"] == "hi"
    more = ModelRequest("m", [*request.messages, user_message("go")])
    assert openai_responses.encode_request(more)["input"] == [
        user_message("hi"),
        user_message("go"),
    ]


def test_instructions_are_the_system_prompt() -> None:
    request = openai_responses.decode_request(
        {"model": "m", "input": [], "instructions": "Be brief."}
    )
    assert request.system == "Be brief."
    blocks = [text_part("a"), text_part("b")]
    assert openai_responses.encode_request(ModelRequest("m", [], system=blocks)) == {
        "model": "m",
        "instructions": "a\n\nb",
    }


def test_system_prompt_with_a_breakpoint_is_a_developer_message() -> None:
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    system = [{"type": "text", "text": "Be brief.", **mark}]
    developer = {
        "type": "message",
        "role": "developer",
        "content": [{"type": "input_text", "text": "Be brief.", **mark}],
    }
    alone = openai_responses.encode_request(ModelRequest("m", [], system=system))
    assert alone == {"model": "m", "input": [developer]}
    text = openai_responses.decode_request({"model": "m", "input": "Hello."})
    asked = ModelRequest("m", text.messages, system=system)
    assert openai_responses.encode_request(asked)["input"] == [
        developer,
        user_message("Hello."),
    ]
    said = ModelRequest("m", [user_message("Hi.")], system=system)
    assert openai_responses.encode_request(said)["input"][0] == developer


def test_converts_tools_to_chat_form() -> None:
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


def test_built_in_tools_are_for_their_own_api_only() -> None:
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
def test_decodes_stop_reasons(output: list[Any], fields: dict[str, Any], stop: str | None) -> None:
    body = response(*output, **fields)
    reply = openai_responses.decode_reply(body)
    assert reply.stop == stop


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
def test_encodes_the_status_of_other_apis(stop: str | None, status: str, details: Any) -> None:
    refusal: Message = {"role": "assistant", "content": "x", "refusal": "No."}
    message = with_native(refusal, "anthropic", {})
    body = openai_responses.encode_reply(
        ModelReply(message=message, stop=stop, raw={"stop_reason": "?"})
    )
    assert (body["status"], body["incomplete_details"]) == (status, details)
    assert "stop_reason" not in body
    assert [part["type"] for part in body["output"][0]["content"]] == [
        "output_text",
        "refusal",
    ]
