"""Items of the Responses protocol and the messages they are."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given

from everthread.core.messages import Message, calls_of, results_of, with_content
from everthread.wire import openai_chat, openai_responses
from tests.chat_messages import (
    assistant_message,
    calls_message,
    custom_call,
    function_call,
    image_part,
    result_message,
    text_part,
    user_message,
)
from tests.wire import openai_strategies
from tests.wire.openai_bodies import (
    CALL,
    MESSAGE,
    OUTPUT,
    REASONING,
    SHELL,
    SHELL_OUTPUT,
    TEXT,
)


def decode(*items: Any, model: str | None = None) -> list[Message]:
    return openai_responses.decode_messages(list(items), model=model)


def encode(*messages: Any, model: str | None = None) -> list[dict[str, Any]]:
    return openai_responses.encode_messages(cast("list[Message]", list(messages)), model=model)


def test_joins_a_run_of_items_into_one_message() -> None:
    second = {
        **MESSAGE,
        "id": "msg_2",
        "content": [{"type": "refusal", "refusal": "But no."}],
    }
    user = user_message("Oslo?")
    items = [user, REASONING, MESSAGE, second, CALL, OUTPUT, REASONING, MESSAGE]
    messages = decode(*items)
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert messages[1]["content"] == "Let me see."
    assert messages[1]["refusal"] == "But no."
    assert [(call.id, call.name, call.parsed) for call in calls_of(messages[1])] == [
        ("c1", "look", {"city": "Oslo"})
    ]
    assert (messages[2]["tool_call_id"], messages[2]["content"]) == ("c1", "4 degrees")
    assert encode(*messages) == items


def test_keeps_texts_separate_and_drops_empty_ones() -> None:
    [message] = decode({**MESSAGE, "content": [TEXT, TEXT]}, assistant_message(""))
    assert message["content"] == [text_part("Let me see.")] * 2


def test_items_without_text_get_a_label() -> None:
    assert (
        decode({"type": "compaction", "encrypted_content": "x"}, {"id": "msg_1"})[0]["content"]
        == "[compaction]\n[item_reference]"
    )
    assert decode(REASONING)[0]["content"] == ""
    assert decode(CALL)[0]["content"] is None


def test_converts_parts_to_chat_form() -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": "u", "detail": "low"},
    ]
    [said, result] = decode(user_message(parts), {**OUTPUT, "output": parts})
    image = {"type": "image_url", "image_url": {"url": "u", "detail": "low"}}
    assert said["content"] == result["content"] == [text_part("a"), image]


@pytest.mark.parametrize(
    ("call", "output", "name", "arguments", "text"),
    [
        (
            SHELL,
            SHELL_OUTPUT,
            "shell",
            {"action": {"commands": ["ls"]}},
            "a.txt\nwarning",
        ),
        (
            {
                "type": "local_shell_call",
                "id": "i",
                "call_id": "c",
                "action": {"type": "exec"},
                "status": "completed",
            },
            {"type": "local_shell_call_output", "id": "c", "output": "done"},
            "local_shell",
            {"action": {"type": "exec"}},
            "done",
        ),
        (
            {
                "type": "apply_patch_call",
                "call_id": "c",
                "operation": {"type": "delete_file", "path": "a"},
            },
            {"type": "apply_patch_call_output", "call_id": "c", "status": "completed"},
            "apply_patch",
            {"operation": {"type": "delete_file", "path": "a"}},
            "",
        ),
        (
            {
                "type": "computer_call",
                "id": "i",
                "call_id": "c",
                "action": {"type": "wait"},
            },
            {
                "type": "computer_call_output",
                "call_id": "c",
                "output": {"type": "computer_screenshot", "image_url": "u"},
            },
            "computer",
            {"action": {"type": "wait"}},
            [image_part("u")],
        ),
        (
            {
                "type": "tool_search_call",
                "call_id": "c",
                "arguments": {"q": "x"},
                "execution": "client",
            },
            {"type": "tool_search_output", "call_id": "c", "tools": [{"name": "f"}]},
            "tool_search",
            {"q": "x"},
            '[{"name": "f"}]',
        ),
        (
            {
                "type": "mcp_approval_request",
                "id": "c",
                "name": "rm",
                "arguments": '{"p": 1}',
                "server_label": "s",
            },
            {
                "type": "mcp_approval_response",
                "approval_request_id": "c",
                "approve": False,
                "reason": "no",
            },
            "rm",
            {"p": 1},
            "denied no",
        ),
        (
            {
                "type": "mcp_approval_request",
                "id": "c",
                "name": "rm",
                "arguments": "{}",
                "server_label": "s",
            },
            {
                "type": "mcp_approval_response",
                "approval_request_id": "c",
                "approve": True,
            },
            "rm",
            {},
            "approved",
        ),
    ],
)
def test_decodes_every_call_that_the_client_answers(
    call: Any, output: Any, name: str, arguments: Any, text: Any
) -> None:
    messages = decode(REASONING, call, output)
    [made_call] = calls_of(messages[0])
    [result] = results_of(messages[1])
    assert (made_call.id, made_call.name, made_call.parsed) == (
        result.call_id,
        name,
        arguments,
    )
    assert result.content == text
    assert encode(*messages) == [REASONING, call, output]


def test_rewritten_result_of_a_built_in_tool_makes_a_function_call() -> None:
    """Only functions and custom tools accept any text; reasoning that belongs to the old call is dropped."""
    [assistant, result] = decode(REASONING, MESSAGE, SHELL, SHELL_OUTPUT)
    short = with_content(result, "[shell] ran `ls`")
    unnamed = {key: value for key, value in MESSAGE.items() if key != "id"}
    arguments = '{"action": {"commands": ["ls"]}}'
    assert encode(assistant, short) == [
        unnamed,
        {
            "type": "function_call",
            "call_id": "c2",
            "name": "shell",
            "arguments": arguments,
        },
        {"type": "function_call_output", "call_id": "c2", "output": "[shell] ran `ls`"},
    ]


def test_rewritten_call_rewrites_its_result() -> None:
    [assistant, result] = decode(SHELL, SHELL_OUTPUT)
    assert [item["type"] for item in encode(with_content(assistant, "x"), result)] == [
        "message",
        "function_call",
        "function_call_output",
    ]


def test_rewritten_function_result_keeps_the_run() -> None:
    [assistant, result] = decode(REASONING, CALL, OUTPUT)
    assert encode(assistant, with_content(result, "cold")) == [
        REASONING,
        CALL,
        {**OUTPUT, "output": "cold"},
    ]


def test_rewritten_custom_result_keeps_its_kind() -> None:
    call = {
        "type": "custom_tool_call",
        "call_id": "c",
        "name": "sql",
        "input": "select 1",
    }
    [assistant, result] = decode(
        call, {"type": "custom_tool_call_output", "call_id": "c", "output": "1"}
    )
    assert encode(assistant, with_content(result, "one"))[1] == {
        "type": "custom_tool_call_output",
        "call_id": "c",
        "output": "one",
    }
    assert encode(with_content(assistant, None), result) == encode(assistant, result)


def test_drops_a_tool_search_with_a_rewritten_result() -> None:
    """A text cannot define tools as the result did, and no function of this name exists."""
    search = {
        "type": "tool_search_call",
        "call_id": "c",
        "arguments": {"q": "x"},
        "execution": "client",
    }
    found = {
        "type": "tool_search_output",
        "call_id": "c",
        "execution": "client",
        "tools": [{"name": "f"}],
    }
    [assistant, result, answer] = decode(MESSAGE, search, found, assistant_message("Found."))
    rewritten = with_content(result, "[1 tool]")
    assert encode(assistant, rewritten, answer) == [
        MESSAGE,
        assistant_message("Found."),
    ]
    assert encode(assistant, result) == [MESSAGE, search, found]


def test_encodes_a_result_whose_call_id_is_not_a_string() -> None:
    broken_result: Any = {"role": "tool", "tool_call_id": ["c"], "content": "found"}
    [item] = encode(broken_result)
    assert item["output"] == "found"


def test_keeps_tools_in_the_input_verbatim() -> None:
    added = {
        "type": "additional_tools",
        "role": "developer",
        "tools": [{"type": "function", "name": "look"}],
    }
    [message, said] = decode(added, MESSAGE)
    assert message["role"] == "developer"
    assert message["content"] == '[{"type": "function", "name": "look"}]'
    assert encode(message, said) == [added, MESSAGE]


def test_keeps_a_result_without_its_call_verbatim() -> None:
    assert encode(*decode(SHELL_OUTPUT)) == [SHELL_OUTPUT]


def test_reasoning_is_sent_only_to_its_author() -> None:
    easy = {"role": "assistant", "id": "msg_2", "content": "x"}
    search = {"type": "web_search_call", "id": "ws_1"}
    [message] = decode(REASONING, MESSAGE, easy, search, CALL, model="gpt-5")
    assert (
        encode(message, model="gpt-5-2025-08-07")
        == encode(message)
        == [REASONING, MESSAGE, easy, search, CALL]
    )
    unnamed = [
        {key: value for key, value in item.items() if key != "id"} for item in (MESSAGE, easy)
    ]
    call = {key: value for key, value in CALL.items() if key != "id"}
    assert encode(message, model="gpt-6") == [*unnamed, search, call]


def test_run_without_reasoning_is_the_same_for_every_model() -> None:
    [message] = decode(MESSAGE, CALL, model="gpt-5")
    assert encode(message, model="gpt-6") == [MESSAGE, CALL]


def test_edited_message_loses_its_reasoning() -> None:
    [message] = decode(REASONING, MESSAGE, model="gpt-5")
    text = {"type": "output_text", "text": "Short."}
    assert encode(with_content(message, "Short."), model="gpt-5") == [
        {"type": "message", "role": "assistant", "content": [text]}
    ]


@openai_strategies.few
@given(openai_strategies.anthropic_history())
def test_encodes_valid_items_from_a_history_of_blocks(history: list[Message]) -> None:
    items = encode(*history)
    waiting: list[str] = []
    for item in items:
        if item.get("type") == "function_call":
            waiting.append(item["call_id"])
        elif item.get("type") == "function_call_output":
            waiting.remove(item["call_id"])
        else:
            assert not waiting
    assert not waiting
    assert encode(*decode(*items)) == items


def test_encodes_a_chat_history() -> None:
    image = image_part("u")
    messages: list[Any] = [
        {"role": "system", "content": None},
        user_message(
            [
                {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                image,
                {"type": "image_url", "image_url": "v"},
                {"type": "file", "file": {"file_id": "f"}},
                {"type": "file"},
                {
                    "type": "input_audio",
                    "input_audio": {"data": "AA"},
                    "cache_control": {"type": "ephemeral"},
                },
            ]
        ),
        {
            "role": "assistant",
            "content": [text_part("b"), text_part("")],
            "refusal": "No.",
            "reasoning_content": "hm",
            "tool_calls": [
                function_call("c1", "f", ""),
                custom_call("c2", "g", "x"),
                "garbage",
            ],
        },
        result_message("c1", [text_part("r"), image]),
        result_message("c2", "s"),
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "old", "arguments": "{}"},
        },
        {"role": "function", "name": "old", "content": "t"},
    ]
    picture = {"type": "input_image", "image_url": "u", "detail": "auto"}
    assert encode(*messages) == [
        {"role": "system", "content": ""},
        user_message(
            [
                {"type": "input_text", "text": "a"},
                picture,
                {"type": "input_image", "image_url": "v", "detail": "auto"},
                {"type": "input_file", "file_id": "f"},
                {"type": "file"},
                {"type": "input_audio", "input_audio": {"data": "AA"}},
            ]
        ),
        {
            "type": "message",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "b"},
                {"type": "refusal", "refusal": "No."},
            ],
        },
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "x"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "r"}, picture],
        },
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "s"},
        {"type": "function_call", "call_id": "old", "name": "old", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "old", "output": "t"},
    ]


def test_converts_items_to_chat_without_reasoning() -> None:
    wire = openai_chat.encode_messages(
        decode(user_message("Oslo?"), REASONING, MESSAGE, CALL, OUTPUT)
    )
    assert wire == [
        user_message("Oslo?"),
        calls_message(function_call("c1", "look", '{"city": "Oslo"}'), text="Let me see."),
        result_message("c1", "4 degrees"),
    ]


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
def test_keeps_the_namespace_of_a_rewritten_call(
    kind: str,
) -> None:
    field = "arguments" if kind == "function_call" else "input"
    item = {
        "type": kind,
        "call_id": "c1",
        "name": "search",
        "namespace": "mcp__notes",
        field: "{}",
    }
    [message] = decode(item)
    assert [call.name for call in calls_of(message)] == ["mcp__notes__search"]
    written_anew = {key: value for key, value in message.items() if key != "_native"}
    assert encode(written_anew) == [item]
    [chat] = openai_chat.encode_messages(cast("list[Message]", [written_anew]))
    assert set(chat["tool_calls"][0]) == {
        "id",
        "type",
        "function" if kind == "function_call" else "custom",
    }
