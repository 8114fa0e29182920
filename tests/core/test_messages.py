"""The helpers accept everything that real transcripts contain."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.core.json_values import iterate_strings
from everthread.core.messages import (
    Message,
    ToolCall,
    calls_of,
    content_text,
    iterate_images,
    list_texts,
    message_key,
    part_text,
    parts_of,
    results_of,
    text_of,
    tool_names,
    with_content,
)
from tests.chat_messages import (
    call_block,
    calls_message,
    custom_call,
    function_call,
    image_part,
    result_block,
    text_part,
    user_message,
)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        (None, ""),
        ([], ""),
        ([text_part("a"), {"type": "input_text", "text": "b"}], "a\nb"),
        ([{"type": "refusal", "refusal": "no"}], "no"),
        (
            [
                {"type": "thinking", "thinking": "hm", "text": "hidden"},
                text_part("a"),
            ],
            "a",
        ),
        ([image_part("x")], ""),
        (["bare", 7], "bare"),
        (42, "42"),
    ],
)
def test_text_of_any_content_shape(content: Any, text: str) -> None:
    assert content_text(content) == text
    assert text_of(user_message(content)) == text


def test_parts_of_any_content_shape() -> None:
    assert parts_of({"content": "a"}) == [text_part("a")]
    assert parts_of({"content": ""}) == []
    assert parts_of({"content": None}) == []
    assert parts_of({"content": [{"type": "image"}, "x"]}) == [
        {"type": "image"},
        text_part("x"),
    ]
    assert part_text(3) == ""


def test_calls_in_every_form() -> None:
    message = calls_message(
        function_call("c1", "bash", '{"command": "ls"}'),
        custom_call("c2", "sql", "select 1"),
        {"id": "c3"},
        "garbage",
        text=[call_block("t", "read", {"path": "a"})],
    )
    found = calls_of(message)
    assert found == [
        ToolCall("t", "read", '{"path": "a"}'),
        ToolCall("c1", "bash", '{"command": "ls"}'),
        ToolCall("c2", "sql", "select 1"),
        ToolCall("c3", "", ""),
    ]
    assert [call.parsed for call in found] == [{"path": "a"}, {"command": "ls"}, {}, {}]
    assert calls_of({**message, "role": "user"}) == []
    assert calls_of({"role": "assistant", "content": None, "tool_calls": None}) == []
    assert ToolCall("x", "f", "[1]").parsed == {}
    assert calls_of(
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": 7,
                    "function": {"name": None, "arguments": None},
                }
            ],
        }
    ) == [ToolCall("", "", "")]


def test_results_in_every_form() -> None:
    (tool,) = results_of(
        {
            "role": "tool",
            "tool_call_id": "a",
            "name": "f",
            "content": [text_part("ok")],
        }
    )
    assert (tool.call_id, tool.tool_name, tool.text) == ("a", "f", "ok")
    blocks = [
        result_block("b", "no"),
        text_part("hi"),
    ]
    (block,) = results_of(user_message(blocks))
    assert (block.call_id, block.tool_name, block.text) == ("b", "", "no")
    assert results_of(user_message("hi")) == []


def test_changed_content_drops_the_native_value() -> None:
    message: Message = {
        "role": "user",
        "content": "a",
        "_native": {"api": "anthropic", "value": 1},
    }
    assert with_content(message, "b") == {
        "role": "user",
        "content": "b",
        "_native": {"api": "anthropic"},
    }
    assert with_content(user_message("a"), "b") == user_message("b")
    assert message["content"] == "a"


def test_finds_images_inside_results() -> None:
    image = {"type": "image", "source": {}}
    content = [
        image,
        {
            "type": "tool_result",
            "content": [image, "x"],
        },
        text_part("a"),
        "x",
    ]
    assert list(iterate_images(content)) == [image, image]
    assert list(iterate_images("text")) == []


def test_lists_the_words_results_and_arguments_of_a_message() -> None:
    call = function_call("c", "write", '{"path": "a.txt", "lines": ["one"]}')
    assert list_texts(calls_message(call, text="Let me write.")) == [
        "Let me write.",
        "a.txt",
        "one",
    ]
    assert list_texts(user_message([text_part("Hi"), result_block("c", "done")])) == ["Hi", "done"]
    assert list_texts({"role": "tool", "tool_call_id": "c", "content": "done"}) == ["done"]


def test_iterates_strings_of_json_in_order() -> None:
    value = {
        "a": ["b", {"c": "d"}, 3, None],
        "e": "f",
    }
    assert list(iterate_strings(value)) == ["b", "d", "f"]
    assert list(iterate_strings(value, with_keys=True)) == ["a", "e", "b", "c", "d", "f"]


def test_message_keys_differ_by_text_calls_and_results() -> None:
    def key(**fields: Any) -> Any:
        return message_key({"role": "assistant", **fields})

    block = text_part("Hello.")
    assert key(content=[dict(block)]) == key(content=[dict(block)])
    calls = [
        {
            "id": "a",
            "function": {"name": "f", "arguments": "{}"},
        }
    ]
    keys = [
        key(content="Hello."),
        key(content=[block]),
        key(content=[block, "bare", 7]),
        key(content=None),
        key(content=None, tool_calls=calls),
        key(content=[{"type": "tool_result", "tool_use_id": "a"}]),
        message_key({"role": "tool", "tool_call_id": "a"}),
    ]
    assert len(set(keys)) == len(keys)


def test_namespace_has_the_names_of_its_tools() -> None:
    flat = {"type": "function", "name": "search"}
    assert tool_names({"type": "function", "function": {"name": "look"}}) == ["look"]
    assert tool_names(flat) == ["search"]
    assert tool_names(
        {
            "type": "namespace",
            "name": "mcp__notes",
            "tools": [flat, 1],
        }
    ) == ["mcp__notes__search"]
    assert tool_names({"type": "namespace", "name": "mcp__notes"}) == ["mcp__notes"]
    assert tool_names({"type": "web_search"}) == tool_names({"function": "odd"}) == []
