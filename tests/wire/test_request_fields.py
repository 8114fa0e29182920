"""Each protocol reads and sets the fields of its requests, and encodes errors in its own form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

import pytest

from everthread.core.types import Api
from everthread.wire.codecs import CODECS

OPENAI_URL = "https://api.openai.com/v1"
TOOL = {"type": "function", "function": {"name": "recall", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("api", "fields", "expected"),
    [
        ("openai_chat", {"max_completion_tokens": 5}, 5),
        ("openai_chat", {"max_tokens": True, "max_completion_tokens": 5}, 5),
        ("openai_responses", {"max_output_tokens": 5}, 5),
        ("anthropic", {"max_tokens": 5}, 5),
        ("anthropic", {"max_tokens": "5"}, None),
        ("gemini", {"generationConfig": {"maxOutputTokens": 5}}, 5),
        ("gemini", {"generation_config": {"max_output_tokens": 5}}, 5),
        ("gemini", {"generationConfig": 5}, None),
    ],
)
def test_reads_the_output_cap(api: Api, fields: Mapping[str, Any], expected: int | None) -> None:
    assert CODECS[api].request_fields.read_output_cap(fields) == expected


@pytest.mark.parametrize(
    ("api", "base_url", "fields", "expected"),
    [
        ("openai_chat", OPENAI_URL, {}, {"max_completion_tokens": 9}),
        ("openai_chat", "http://localhost/v1", {}, {"max_tokens": 9}),
        ("openai_chat", OPENAI_URL, {"max_tokens": 5}, {"max_tokens": 9}),
        ("openai_responses", OPENAI_URL, {}, {"max_output_tokens": 9}),
        ("anthropic", "", {}, {"max_tokens": 9}),
        ("gemini", "", {}, {"generationConfig": {"maxOutputTokens": 9}}),
        (
            "gemini",
            "",
            {"generation_config": {"temperature": 0, "max_output_tokens": 5}},
            {"generation_config": {"temperature": 0, "max_output_tokens": 9}},
        ),
    ],
)
def test_sets_the_output_cap_in_the_clients_field(
    api: Api, base_url: str, fields: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    assert CODECS[api].request_fields.set_output_cap(fields, 9, base_url) == expected


@pytest.mark.parametrize(
    ("api", "fields", "expected"),
    [
        ("anthropic", {"thinking": {"type": "enabled", "budget_tokens": 7}}, 7),
        ("anthropic", {"thinking": {"type": "disabled"}}, None),
        ("openai_chat", {"thinking": "high"}, None),
        ("gemini", {"generationConfig": {"thinkingConfig": {"thinkingBudget": 7}}}, 7),
        ("gemini", {"generation_config": {"thinking_config": {"thinking_budget": 7}}}, 7),
        ("gemini", {}, None),
    ],
)
def test_reads_the_thinking_budget(
    api: Api, fields: Mapping[str, Any], expected: int | None
) -> None:
    assert CODECS[api].request_fields.read_thinking_budget(fields) == expected


@pytest.mark.parametrize(
    ("api", "fields", "expected"),
    [
        ("openai_chat", {"system": "Be brief."}, {}),
        ("openai_responses", {}, {}),
        (
            "openai_responses",
            {"instructions": "Be brief."},
            {"instructions": "Be brief.\n\nNoted."},
        ),
        ("anthropic", {}, {}),
        (
            "anthropic",
            {"system": "Be brief."},
            {"system": [{"type": "text", "text": text} for text in ("Be brief.", "Noted.")]},
        ),
        ("gemini", {}, {}),
        ("gemini", {"systemInstruction": {"parts": "Be brief."}}, {}),
        (
            "gemini",
            {"system_instruction": {"parts": [{"text": "Be brief."}]}},
            {"system_instruction": {"parts": [{"text": "Be brief."}, {"text": "Noted."}]}},
        ),
    ],
)
def test_adds_a_note_to_the_system_prompt(
    api: Api, fields: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    assert CODECS[api].request_fields.add_note(fields, "Noted.") == expected


def test_adds_a_note_to_a_system_message() -> None:
    message = {"id": "m1", "role": "system", "content": "Be brief."}
    chat = CODECS["openai_chat"].request_fields
    [noted] = chat.add_note_to_message(message, "Noted.", as_blocks=False)
    assert noted == {**message, "content": "Be brief.\n\nNoted."}
    [noted] = chat.add_note_to_message(message, "Noted.", as_blocks=True)
    blocks = [{"type": "text", "text": text} for text in ("Be brief.", "Noted.")]
    assert noted == {**message, "content": blocks}
    [noted_twice] = chat.add_note_to_message(noted, "Again.", as_blocks=False)
    assert noted_twice["content"] == [*blocks, {"type": "text", "text": "Again."}]
    responses = CODECS["openai_responses"].request_fields
    unchanged, note = responses.add_note_to_message(message, "Noted.", as_blocks=False)
    assert unchanged is message
    assert note == {"role": "system", "content": "Noted."}


@pytest.mark.parametrize("api", get_args(Api))
def test_adds_a_tool_that_it_can_decode(api: Api) -> None:
    codec = CODECS[api]
    encoded = codec.encode_tools([TOOL])
    tools = codec.request_fields.add_tools([], encoded)
    assert tools == encoded
    assert len(str(codec.request_fields.add_tools(tools, encoded))) > len(str(tools))


def test_adds_a_function_to_geminis_first_group() -> None:
    codec = CODECS["gemini"]
    encoded = codec.encode_tools([TOOL])
    [declaration] = encoded[0]["functionDeclarations"]
    tools = [{"function_declarations": [{"name": "read"}]}, {"googleSearch": {}}]
    assert codec.request_fields.add_tools(tools, encoded) == [
        {"function_declarations": [{"name": "read"}, declaration]},
        {"googleSearch": {}},
    ]
    assert codec.request_fields.add_tools([{}], encoded) == encoded


@pytest.mark.parametrize(
    ("api", "model", "base_url", "accepts_marks", "accepts_blocks"),
    [
        ("anthropic", "Claude-opus-4-1", "http://localhost", True, True),
        ("anthropic", "other", "http://localhost", False, True),
        ("openai_chat", "anthropic/claude-opus-4.1", "https://openrouter.ai/api/v1", True, True),
        ("openai_chat", "gpt-5.6", OPENAI_URL, False, True),
        ("openai_chat", "gpt-4o", "http://localhost/v1", False, False),
        ("openai_responses", "gpt-5.6", OPENAI_URL, False, False),
        ("gemini", "claude", "http://localhost", False, False),
    ],
)
def test_knows_what_an_upstream_accepts(
    api: Api, model: str, base_url: str, accepts_marks: bool, accepts_blocks: bool
) -> None:
    request_fields = CODECS[api].request_fields
    assert request_fields.accepts_cache_marks(model, base_url) == accepts_marks
    assert request_fields.accepts_system_blocks(model, base_url) == accepts_blocks


@pytest.mark.parametrize(
    ("api", "status", "expected"),
    [
        ("openai_chat", 429, {"type": "rate_limit_error", "param": None, "code": "some_code"}),
        ("openai_responses", 500, {"type": "server_error", "param": None, "code": "some_code"}),
        ("anthropic", 404, {"type": "not_found_error"}),
        ("anthropic", 500, {"type": "api_error"}),
        ("gemini", 403, {"code": 403, "status": "PERMISSION_DENIED"}),
        ("gemini", 418, {"code": 418, "status": "INVALID_ARGUMENT"}),
    ],
)
def test_encodes_an_error(api: Api, status: int, expected: Mapping[str, Any]) -> None:
    codec = CODECS[api]
    body = codec.encode_error(status, "some_code", "No.")
    assert body["error"] == {"message": "No.", **expected}
    event = codec.encode_error_event(body)
    data = json.loads(event.data)
    assert data["error"] == body["error"]
    has_type = api in ("anthropic", "openai_responses")
    assert event.event == ("error" if has_type else None)
    assert data.get("type") == event.event
    if api == "openai_responses":
        assert data["message"] == "No."


@pytest.mark.parametrize("api", ["openai_chat", "anthropic"])
def test_compares_messages_in_their_own_form(api: Api) -> None:
    message = {"role": "user", "content": "Hello"}
    assert CODECS[api].make_comparable_message(message) is message


def test_compares_items_in_the_form_of_messages() -> None:
    make_comparable = CODECS["openai_responses"].make_comparable_message
    part = {"type": "input_text", "text": "Hello"}
    other_part = {"type": "input_image", "image_url": "https://example.com/a.png"}
    item = {
        "type": "message",
        "id": "m1",
        "status": "completed",
        "role": "user",
        "content": [part, other_part],
    }
    assert make_comparable(item) == {
        "role": "user",
        "content": [{"type": "text", "text": "Hello"}, other_part],
    }
    call = {"type": "function_call", "id": "c1", "status": "completed", "call_id": "1"}
    assert make_comparable(call) == {"type": "function_call", "id": "c1", "call_id": "1"}
