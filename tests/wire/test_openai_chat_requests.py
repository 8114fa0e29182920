"""Requests of OpenAI's chat protocol."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from everthread.core.messages import Message
from everthread.core.types import ModelRequest
from everthread.wire import openai_chat as chat
from tests.chat_messages import user_message
from tests.wire import openai_strategies

USER: Message = user_message("hi")


def round_trip(body: dict[str, Any]) -> dict[str, Any]:
    return chat.encode_request(chat.decode_request(body))


@openai_strategies.few
@given(openai_strategies.chat_request)
def test_plain_messages_are_the_same_objects(body: dict[str, Any]) -> None:
    wire = body["messages"]
    for message, original in zip(chat.decode_messages(wire), wire, strict=True):
        assert message is original or "_native" in message


@pytest.mark.parametrize("role", ["system", "developer"])
def test_first_message_becomes_the_system_prompt(role: str) -> None:
    body = {
        "model": "m",
        "messages": [{"role": role, "content": "Be brief."}, USER],
        "user": "u",
    }
    request = chat.decode_request(body)
    assert (request.system, request.messages) == ("Be brief.", [USER])
    assert round_trip(body) == body


@pytest.mark.parametrize(
    "first",
    [
        {"role": "system", "content": "x", "name": "n"},
        {"role": "system", "content": None},
        {"role": "system", "content": [{"type": "input_text", "text": "x"}]},
        user_message("x"),
    ],
)
def test_first_message_with_other_fields_stays_in_place(first: Any) -> None:
    body = {"model": "m", "messages": [first, {"role": "system", "content": "y"}]}
    request = chat.decode_request(body)
    assert request.system is None
    assert len(request.messages) == 2
    assert round_trip(body) == body


def test_converts_system_blocks_of_another_api() -> None:
    system = [
        {
            "type": "text",
            "text": "a",
            "cache_control": {"type": "ephemeral"},
            "citations": [],
        }
    ]
    [first] = chat.encode_request(ModelRequest("m", [], system=system))["messages"]
    assert first == {
        "role": "system",
        "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
    }


def test_drops_tools_built_into_another_api() -> None:
    function = {
        "type": "function",
        "function": {"name": "f"},
        "_native": {"api": "anthropic", "value": {}},
    }
    built_in = {
        "type": "web_search",
        "_native": {"api": "openai_responses", "value": {"type": "web_search"}},
    }
    dialect = {"type": "builtin_function", "name": "$web_search"}
    assert chat.encode_tools([function, built_in, dialect]) == [
        {"type": "function", "function": {"name": "f"}},
        dialect,
    ]
    assert "tools" not in chat.encode_request(ModelRequest("m", [], tools=[built_in]))


@pytest.mark.parametrize("tools", [None, []])
def test_restores_absent_tools(tools: Any) -> None:
    body = {"model": "m", "messages": [], "tools": tools}
    assert round_trip(body) == body


def test_private_fields_never_cross_the_wire() -> None:
    injected = {
        "role": "user",
        "content": "x",
        "_native": {"api": "openai_chat", "value": {"role": "system"}},
    }
    request = chat.decode_request(
        {
            "model": "m",
            "messages": [injected],
            "_system_role": "system",
            "tools": [{"_a": 1, "type": "t"}],
        }
    )
    assert request == ModelRequest("m", [user_message("x")], tools=[{"type": "t"}])
    summary: Any = {"role": "user", "content": "x", "_summary": True}
    assert chat.encode_messages([summary]) == [user_message("x")]
