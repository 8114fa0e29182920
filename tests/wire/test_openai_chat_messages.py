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
from tests.wire import openai_strategies as made
from tests.wire.openai_bodies import completion

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
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        "garbage",
    ]
    assert encode(message, model="other") == [
        {"role": "assistant", "content": "", "tool_calls": unsigned}
    ]


def test_requested_model_is_the_author_of_reasoning() -> None:
    body = completion(
        {"role": "assistant", "content": "x", "reasoning": "hm"}, model="gpt-5-renamed"
    )
    message = chat.decode_reply(body, model="alias").message
    assert "reasoning" in encode(message, model="alias")[0]
    assert "reasoning" not in encode(message, model="gpt-5-renamed")[0]
    assert (
        "reasoning" in encode(chat.decode_reply(body).message, model="gpt-5-renamed")[0]
    )


def test_drops_reasoning_of_another_api() -> None:
    core: Message = {"role": "assistant", "content": "x", "reasoning_content": "hm"}
    assert encode(with_native(core, "anthropic", {})) == [
        {"role": "assistant", "content": "x"}
    ]
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
    url = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="},
    }
    assert encode(with_content(message, message["content"])) == [
        {"role": "user", "content": [url]}
    ]


def test_drops_cache_marks_of_messages_but_not_of_parts() -> None:
    mark = {"type": "ephemeral"}
    marked = {
        "role": "user",
        "content": [{"type": "text", "text": "x", "cache_control": mark}],
    }
    assert encode({**marked, "cache_control": mark}) == [marked]


@made.few
@given(made.anthropic_history())
def test_converts_a_history_of_blocks_to_valid_chat(history: list[Message]) -> None:
    before = json.dumps(history)
    wire = encode(*history)
    assert validate_messages(wire) == []
    assert chat.decode_messages(wire) == wire
    assert json.dumps(history) == before


def test_converts_call_and_result_blocks() -> None:
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


def test_assistant_with_only_reasoning_has_no_content() -> None:
    thought = [{"type": "thinking", "thinking": "hm"}]
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    assert encode({"role": "assistant", "content": thought})[0]["content"] == ""
    assert (
        encode({"role": "assistant", "content": [*thought, call]})[0]["content"] is None
    )


def test_empty_list_is_no_content() -> None:
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


def test_media_of_results_follow_the_last_result() -> None:
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
def test_converts_foreign_parts(
    part: dict[str, Any], expected: list[dict[str, Any]]
) -> None:
    assert encode({"role": "user", "content": [part]}) == [
        {"role": "user", "content": expected}
    ]
