"""Messages in blocks of other protocols, converted to chat's form."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given

from everthread.core.messages import Message
from everthread.core.validation import validate_messages
from everthread.wire import openai_chat as chat
from tests.wire import openai_strategies as made

PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}


def encode(*messages: Any) -> list[dict[str, Any]]:
    return chat.encode_messages(cast("list[Message]", list(messages)))


@made.few
@given(made.anthropic_history())
def test_a_history_in_blocks_is_valid_chat(history: list[Message]) -> None:
    before = json.dumps(history)
    wire = encode(*history)
    assert validate_messages(wire) == []
    assert chat.decode_messages(wire) == wire
    assert json.dumps(history) == before


def test_calls_and_results_become_fields_and_messages() -> None:
    wire = encode(
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "Let me see.", "citations": []},
                {
                    "type": "tool_use",
                    "id": "a",
                    "name": "look",
                    "input": {"city": "Århus"},
                },
                {"type": "tool_use", "id": "b", "name": "now"},
            ],
            "tool_calls": [
                {
                    "id": "c",
                    "type": "function",
                    "function": {"name": "f", "arguments": ""},
                }
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "a",
                    "content": [{"type": "image", "source": PNG}],
                },
                {
                    "type": "tool_result",
                    "tool_use_id": "b",
                    "is_error": True,
                    "content": "no clock",
                },
                {"type": "tool_result", "tool_use_id": "c"},
                {"type": "text", "text": "Go on."},
            ],
        },
    )
    image = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="},
    }
    assert wire == [
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "Let me see."}],
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"city": "Århus"}'},
                },
                {
                    "id": "b",
                    "type": "function",
                    "function": {"name": "now", "arguments": "{}"},
                },
                {
                    "id": "c",
                    "type": "function",
                    "function": {"name": "f", "arguments": ""},
                },
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "[in the next message]"},
        {"role": "tool", "tool_call_id": "b", "content": "no clock"},
        {"role": "tool", "tool_call_id": "c", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "[result of a]"}, image]},
        {"role": "user", "content": [{"type": "text", "text": "Go on."}]},
    ]


def test_an_assistant_that_only_thought_says_nothing() -> None:
    thought = [{"type": "thinking", "thinking": "hm"}]
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    assert encode({"role": "assistant", "content": thought})[0]["content"] == ""
    assert (
        encode({"role": "assistant", "content": [*thought, call]})[0]["content"] is None
    )


def test_a_list_without_parts_is_no_content() -> None:
    called = {
        "id": "a",
        "type": "function",
        "function": {"name": "f", "arguments": "{}"},
    }
    assert (
        encode({"role": "assistant", "content": [], "tool_calls": [called]})[0][
            "content"
        ]
        is None
    )
    assert (
        encode({"role": "tool", "tool_call_id": "a", "content": []})[0]["content"] == ""
    )


def test_media_in_a_result_wait_until_all_results_are_there() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    words = {"type": "text", "text": "a chart"}
    wire = encode(
        {"role": "tool", "tool_call_id": "a", "content": [words, image]},
        {"role": "tool", "tool_call_id": "b", "content": [words]},
        {"role": "assistant", "content": "x"},
        {"role": "tool", "tool_call_id": "c", "content": [image]},
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
    assert wire[2]["content"] == [{"type": "text", "text": "[result of a]"}, image]


FOREIGN_PARTS: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    (
        {"type": "image", "source": PNG},
        [
            {
                "type": "image_url",
                "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="},
            }
        ],
    ),
    (
        {"type": "image", "source": {"type": "url", "url": "u"}},
        [{"type": "image_url", "image_url": {"url": "u"}}],
    ),
    (
        {"type": "image", "source": {"type": "file", "file_id": "f"}},
        [{"type": "text", "text": "[image]"}],
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
        [{"type": "text", "text": "words"}],
    ),
    (
        {"type": "document", "source": {"type": "content", "content": "words"}},
        [{"type": "text", "text": "words"}],
    ),
    (
        {
            "type": "document",
            "source": {
                "type": "content",
                "content": [{"type": "text", "text": "w", "citations": 1}],
            },
        },
        [{"type": "text", "text": "w"}],
    ),
    (
        {"type": "document", "source": {"type": "url", "url": "u"}},
        [{"type": "text", "text": "[document: u]"}],
    ),
    (
        {"type": "document", "title": "T", "source": None},
        [{"type": "text", "text": "[document: T]"}],
    ),
    ({"type": "input_text", "text": "w"}, [{"type": "text", "text": "w"}]),
    (
        {"type": "output_text", "text": "w", "annotations": []},
        [{"type": "text", "text": "w"}],
    ),
    (
        {"type": "input_image", "image_url": "u"},
        [{"type": "image_url", "image_url": {"url": "u"}}],
    ),
    (
        {"type": "input_image", "image_url": "u", "detail": "low"},
        [{"type": "image_url", "image_url": {"url": "u", "detail": "low"}}],
    ),
    (
        {"type": "input_image", "file_id": "f"},
        [{"type": "text", "text": "[input_image]"}],
    ),
    (
        {"type": "input_file", "file_id": "f"},
        [{"type": "file", "file": {"file_id": "f"}}],
    ),
    (
        {"type": "input_file", "file_url": "u"},
        [{"type": "text", "text": "[input_file: u]"}],
    ),
    (
        {
            "type": "search_result",
            "title": "T",
            "source": "u",
            "content": [{"type": "text", "text": "w"}],
        },
        [{"type": "text", "text": "T\nu\nw"}],
    ),
    (
        {"type": "server_tool_use", "name": "web_search"},
        [{"type": "text", "text": "[server_tool_use: web_search]"}],
    ),
    (
        {"type": "video_url", "video_url": {"url": "u"}},
        [{"type": "video_url", "video_url": {"url": "u"}}],
    ),
]


@pytest.mark.parametrize(("part", "expected"), FOREIGN_PARTS)
def test_a_foreign_part_is_told_in_chats_words(
    part: dict[str, Any], expected: list[dict[str, Any]]
) -> None:
    assert encode({"role": "user", "content": [part]}) == [
        {"role": "user", "content": expected}
    ]
