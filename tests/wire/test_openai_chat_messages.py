"""Messages of OpenAI's chat protocol: reasoning, and the conversion of other protocols' blocks."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given

from everthread.core.messages import Message, with_content
from everthread.core.validation import validate_messages
from everthread.wire import openai_chat as chat
from everthread.wire.native_values import with_native
from tests.chat_messages import (
    assistant_message,
    call_block,
    calls_message,
    function_call,
    image_part,
    result_block,
    result_message,
    text_part,
    user_message,
)
from tests.wire import openai_strategies

PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}


def encode(*messages: Any, model: str | None = None) -> list[dict[str, Any]]:
    return chat.encode_messages(cast("list[Message]", list(messages)), model=model)


THOUGHTS = [
    {"type": "reasoning.encrypted", "data": "x", "index": 1},
    {"type": "reasoning.text", "text": "hm", "signature": "sig", "index": 0},
]


SIGNED = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "hm",
    "reasoning_details": THOUGHTS,
    "tool_calls": [
        {
            "id": "c",
            "type": "function",
            "function": {"name": "f", "arguments": "{}"},
            "extra_content": {"google": {}},
        },
        "garbage",
    ],
}


def test_reasoning_is_sent_only_to_its_author() -> None:
    [message] = chat.decode_messages([SIGNED], model="vendor/m")
    assert encode(message) == encode(message, model="m-2025-01-31") == [SIGNED]
    unsigned = [
        function_call("c", "f"),
        "garbage",
    ]
    assert encode(message, model="other") == [
        {"role": "assistant", "content": "", "tool_calls": unsigned}
    ]


def test_drops_reasoning_of_another_api() -> None:
    core: Message = {"role": "assistant", "content": "x", "reasoning_content": "hm"}
    assert encode(with_native(core, "anthropic", {})) == [assistant_message("x")]
    assert encode(core) == [core]


def test_keeps_reasoning_of_a_marked_or_edited_message() -> None:
    [message] = chat.decode_messages(
        [{"role": "assistant", "content": "x", "reasoning": "hm"}], model="m"
    )
    part = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    marked = {**message, "content": [part]}
    assert encode(marked, model="m") == [
        {"role": "assistant", "content": [part], "reasoning": "hm"}
    ]
    assert encode(with_content(message, "y"), model="m")[0]["content"] == "y"


def test_foreign_blocks_are_verbatim_until_changed() -> None:
    wire = {
        "role": "user",
        "content": [{"type": "image", "source": PNG}],
        "cache_control": {"type": "ephemeral"},
    }
    [message] = chat.decode_messages([wire])
    assert encode(message) == [wire]
    url = image_part("data:image/png;base64,iVBORw0KGgo=")
    assert encode(with_content(message, message["content"])) == [user_message([url])]


def test_drops_cache_marks_of_messages_but_not_of_parts() -> None:
    mark = {"type": "ephemeral"}
    marked = user_message([{"type": "text", "text": "x", "cache_control": mark}])
    assert encode({**marked, "cache_control": mark}) == [marked]


@openai_strategies.few
@given(openai_strategies.anthropic_history())
def test_converts_a_history_of_blocks_to_valid_chat(history: list[Message]) -> None:
    before = json.dumps(history)
    wire = encode(*history)
    assert validate_messages(wire) == []
    assert chat.decode_messages(wire) == wire
    assert json.dumps(history) == before


def test_converts_call_and_result_blocks() -> None:
    wire = encode(
        calls_message(
            function_call("c", "f", ""),
            text=[
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "Let me see.", "citations": []},
                call_block("a", "look", {"city": "Århus"}),
                {"type": "tool_use", "id": "b", "name": "now"},
            ],
        ),
        user_message(
            [
                result_block("a", [{"type": "image", "source": PNG}]),
                {
                    "type": "tool_result",
                    "tool_use_id": "b",
                    "is_error": True,
                    "content": "no clock",
                },
                {"type": "tool_result", "tool_use_id": "c"},
                text_part("Go on."),
            ]
        ),
    )
    image = image_part("data:image/png;base64,iVBORw0KGgo=")
    assert wire == [
        calls_message(
            function_call("a", "look", '{"city": "Århus"}'),
            function_call("b", "now"),
            function_call("c", "f", ""),
            text=[text_part("Let me see.")],
        ),
        result_message("a", "[in the next message]"),
        result_message("b", "no clock"),
        result_message("c", ""),
        user_message([text_part("[result of a]"), image]),
        user_message([text_part("Go on.")]),
    ]


def test_assistant_with_only_reasoning_has_no_content() -> None:
    thought = [{"type": "thinking", "thinking": "hm"}]
    call = call_block("a", "f", {})
    assert encode(assistant_message(thought))[0]["content"] == ""
    assert encode(assistant_message([*thought, call]))[0]["content"] is None


def test_empty_list_is_no_content() -> None:
    called = function_call("a", "f")
    assert encode(calls_message(called, text=[]))[0]["content"] is None
    assert encode(result_message("a", []))[0]["content"] == ""


def test_media_of_results_follow_the_last_result() -> None:
    image = image_part("https://example.org/a.png")
    words = text_part("a chart")
    wire = encode(
        result_message("a", [words, image]),
        result_message("b", [words]),
        assistant_message("x"),
        result_message("c", [image]),
    )
    assert [message["role"] for message in wire] == [
        "tool",
        "tool",
        "user",
        "assistant",
        "tool",
        "user",
    ]
    assert wire[0]["content"] == [words]
    assert wire[2]["content"] == [text_part("[result of a]"), image]


FOREIGN_PARTS: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    (
        {"type": "image", "source": PNG},
        [image_part("data:image/png;base64,iVBORw0KGgo=")],
    ),
    (
        {"type": "image", "source": {"type": "url", "url": "u"}},
        [image_part("u")],
    ),
    (
        {"type": "image", "source": {"type": "file", "file_id": "f"}},
        [text_part("[image]")],
    ),
    (
        {"type": "document", "title": "T", "source": PNG},
        [
            {
                "type": "file",
                "file": {
                    "filename": "T",
                    "file_data": "data:image/png;base64,iVBORw0KGgo=",
                },
            }
        ],
    ),
    (
        {"type": "document", "source": {"type": "text", "data": "words"}},
        [text_part("words")],
    ),
    (
        {"type": "document", "source": {"type": "content", "content": "words"}},
        [text_part("words")],
    ),
    (
        {
            "type": "document",
            "source": {
                "type": "content",
                "content": [{"type": "text", "text": "w", "citations": 1}],
            },
        },
        [text_part("w")],
    ),
    (
        {"type": "document", "source": {"type": "url", "url": "u"}},
        [text_part("[document: u]")],
    ),
    (
        {"type": "document", "title": "T", "source": None},
        [text_part("[document: T]")],
    ),
    ({"type": "input_text", "text": "w"}, [text_part("w")]),
    (
        {"type": "output_text", "text": "w", "annotations": []},
        [text_part("w")],
    ),
    (
        {"type": "input_image", "image_url": "u"},
        [image_part("u")],
    ),
    (
        {"type": "input_image", "image_url": "u", "detail": "low"},
        [{"type": "image_url", "image_url": {"url": "u", "detail": "low"}}],
    ),
    (
        {"type": "input_image", "file_id": "f"},
        [text_part("[input_image]")],
    ),
    (
        {"type": "input_file", "file_id": "f"},
        [{"type": "file", "file": {"file_id": "f"}}],
    ),
    (
        {"type": "input_file", "file_url": "u"},
        [text_part("[input_file: u]")],
    ),
    (
        {
            "type": "search_result",
            "title": "T",
            "source": "u",
            "content": [text_part("w")],
        },
        [text_part("T\nu\nw")],
    ),
    (
        {"type": "server_tool_use", "name": "web_search"},
        [text_part("[server_tool_use: web_search]")],
    ),
    (
        {"type": "video_url", "video_url": {"url": "u"}},
        [{"type": "video_url", "video_url": {"url": "u"}}],
    ),
]


@pytest.mark.parametrize(("part", "expected"), FOREIGN_PARTS)
def test_converts_foreign_parts(part: dict[str, Any], expected: list[dict[str, Any]]) -> None:
    assert encode(user_message([part])) == [user_message(expected)]
