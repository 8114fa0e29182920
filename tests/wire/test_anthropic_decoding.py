"""Anthropic payloads -> core -> the same payloads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.messages import (
    Message,
    calls_of,
    results_of,
    text_of,
    with_content,
)
from everthread.core.types import ModelRequest
from everthread.wire import anthropic, openai_chat
from tests.chat_messages import (
    assistant_message,
    call_block,
    function_call,
    image_part,
    result_block,
    result_message,
    text_part,
    user_message,
)
from tests.wire.anthropic_strategies import copy_of, wire_messages

THINKING = {"type": "thinking", "thinking": "Let me see.", "signature": "c2ln"}
REDACTED = {"type": "redacted_thinking", "data": "b3BhcXVl"}
CALL = call_block("toolu_1", "bash", {"command": "ls ~/你好"})
RESULT = result_block("toolu_1", "a.txt")
PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}


def decode(*wire: dict[str, Any], model: str | None = None) -> list[Message]:
    return anthropic.decode_messages(list(wire), model=model)


def without_native(messages: list[Message]) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in message.items() if key != "_native"} for message in messages
    ]


class TestReading:
    def test_decodes_text(self) -> None:
        wire = user_message("hi")
        assert without_native(decode(wire)) == [user_message("hi")]

    def test_splits_results_and_text_into_messages(
        self,
    ) -> None:
        second = {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": True}
        wire = user_message([RESULT, second, text_part("go on")])
        messages = decode(wire)
        assert without_native(messages) == [
            result_message("toolu_1", "a.txt"),
            {
                "role": "tool",
                "tool_call_id": "toolu_2",
                "content": "",
                "is_error": True,
            },
            user_message([text_part("go on")]),
        ]
        assert [message["_native"].get("joined", False) for message in messages] == [
            False,
            True,
            True,
        ]
        assert anthropic.encode_messages(messages) == [wire]

    def test_error_flag_survives_an_edit(
        self,
    ) -> None:
        result = {
            "type": "tool_result",
            "tool_use_id": "toolu_2",
            "content": "no such file",
            "is_error": True,
        }
        [message] = decode(user_message([result]))
        shorter = with_content(message, "no")
        assert anthropic.encode_messages([shorter]) == [user_message([{**result, "content": "no"}])]
        assert openai_chat.encode_messages([shorter]) == [result_message("toolu_2", "no")]

    def test_decodes_an_assistant_message(self) -> None:
        wire = assistant_message([THINKING, REDACTED, text_part("Listing."), CALL])
        [message] = decode(wire)
        assert without_native([message]) == [
            {
                "role": "assistant",
                "content": "Listing.",
                "tool_calls": [function_call("toolu_1", "bash", '{"command": "ls ~/你好"}')],
                "reasoning_content": "Let me see.",
            }
        ]
        assert anthropic.encode_messages([message]) == [wire]

    def test_call_without_text_has_no_content(self) -> None:
        [message] = decode(assistant_message([{"type": "tool_use", "id": "x", "name": "t"}]))
        assert message["content"] is None
        assert calls_of(message)[0].parsed == {}

    def test_keeps_texts_separate_and_server_tools_as_parts(self) -> None:
        search = {
            "type": "server_tool_use",
            "id": "srvtoolu_1",
            "name": "web_search",
            "input": {"query": "x"},
        }
        found = {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": [{"type": "web_search_result"}],
        }
        texts = [
            text_part("a"),
            {"type": "text", "text": "b", "citations": [{"type": "char_location"}]},
        ]
        [message] = decode(assistant_message([search, found, *texts]))
        assert message["content"] == [
            search,
            found,
            text_part("a"),
            text_part("b"),
        ]
        assert "tool_calls" not in message
        assert results_of(message) == []
        assert text_of(message) == "a\nb"

    def test_decodes_media(self) -> None:
        pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
        wire = user_message(
            [
                {
                    "type": "image",
                    "source": PNG,
                    "cache_control": {"type": "ephemeral"},
                },
                {
                    "type": "image",
                    "source": {"type": "url", "url": "https://example.org/a.png"},
                },
                {
                    "type": "image",
                    "source": {"type": "file", "file_id": "file_1"},
                    "cache_control": {"type": "ephemeral"},
                },
                {"type": "document", "source": pdf, "title": "a.pdf"},
                {"type": "document", "source": pdf},
                {
                    "type": "document",
                    "source": {
                        "type": "text",
                        "media_type": "text/plain",
                        "data": "words",
                    },
                },
            ]
        )
        [message] = decode(wire)
        data_url = "data:application/pdf;base64,JVBERi0="
        assert message["content"] == [
            image_part("data:image/png;base64,iVBORw0KGgo="),
            image_part("https://example.org/a.png"),
            {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": data_url}},
            {
                "type": "file",
                "file": {"filename": "document.pdf", "file_data": data_url},
            },
            wire["content"][5],
        ]
        assert anthropic.encode_messages([message]) == [wire]

    def test_decodes_images_in_results(self) -> None:
        shot = result_block("toolu_1", [{"type": "image", "source": PNG}])
        [message] = decode(user_message([shot]))
        assert message["content"] == [image_part("data:image/png;base64,iVBORw0KGgo=")]

    def test_system_messages_stay_in_place(self) -> None:
        wire: list[dict[str, Any]] = [
            user_message("hi"),
            {"role": "system", "content": "be brief"},
            {"role": "system", "content": [text_part("and kind")]},
        ]
        messages = decode(*wire)
        assert [message["role"] for message in messages] == ["user", "system", "system"]
        assert anthropic.encode_messages(messages) == wire

    def test_restores_arguments_that_are_not_json(self) -> None:
        [message] = decode(assistant_message([{**CALL, "input": {"INVALID_JSON": '{"a": '}}]))
        assert calls_of(message)[0].arguments == '{"a": '

    @pytest.mark.parametrize("text", [None, 7])
    def test_keeps_odd_fields_inside_blocks(self, text: Any) -> None:
        wire = [
            user_message(
                [
                    text_part(text),
                    {"type": ["odd"]},
                    {"source": "odd"},
                ]
            )
        ]
        assert anthropic.encode_messages(anthropic.decode_messages(wire)) == wire


class TestVerbatim:
    @given(wire_messages)
    def test_messages_survive_a_round_trip(self, wire: list[dict[str, Any]]) -> None:
        before = copy_of(wire)
        messages = anthropic.decode_messages(wire, model="claude-a")
        assert anthropic.encode_messages(messages, model="claude-a") == before
        assert anthropic.encode_messages(copy_of(messages)) == before
        assert wire == before
        # Nothing is left in Anthropic's form where chat has one of its own, and no marker outside the native value.
        for message in without_native(messages):
            parts = message["content"] if isinstance(message["content"], list) else []
            assert not {"tool_use", "tool_result", "thinking"} & {
                str(part.get("type")) for part in parts
            }
            assert not any("cache_control" in part for part in parts)
            if message["role"] == "tool":
                assert message["tool_call_id"].startswith("toolu_")

    @given(
        wire_messages,
        st.sampled_from(
            [
                "",
                "be brief",
                [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
                [],
            ]
        ),
        st.dictionaries(
            st.sampled_from(["thinking", "mcp_servers", "new_field", "stream", "container"]),
            st.none() | st.text(),
        ),
    )
    def test_requests_survive_a_round_trip(
        self, wire: list[dict[str, Any]], system: Any, params: dict[str, Any]
    ) -> None:
        body = {
            "model": "claude-a",
            "max_tokens": 5,
            "system": system,
            "messages": wire,
            "tools": [],
            **params,
        }
        before = copy_of(body)
        request = anthropic.decode_request(body)
        assert request.system == system
        assert anthropic.encode_request(request) == before

    def test_encodes_changed_messages_from_their_core_form(self) -> None:
        wire = user_message([RESULT, text_part("go on")])
        result, words = decode(wire)
        pruned = with_content(result, "[cleared]")
        assert anthropic.encode_messages([pruned, words]) == [
            user_message(
                [
                    {**RESULT, "content": "[cleared]"},
                    text_part("go on"),
                ]
            )
        ]

    def test_text_stands_alone_without_its_results(self) -> None:
        _, words = decode(user_message([RESULT, text_part("go on")]))
        reply = decode(assistant_message("ok"))
        assert anthropic.encode_messages([*reply, words]) == [
            assistant_message("ok"),
            user_message([text_part("go on")]),
        ]


class TestReasoning:
    WIRE: dict[str, Any] = {  # noqa: RUF012
        "role": "assistant",
        "content": [THINKING, text_part("a"), REDACTED, CALL],
    }

    def test_reasoning_is_kept_for_its_model(self) -> None:
        messages = decode(self.WIRE, model="claude-sonnet-4-5-20250929")
        assert anthropic.encode_messages(messages, model="claude-sonnet-4-5") == [self.WIRE]

    def test_reasoning_is_dropped_for_another_model(self) -> None:
        messages = decode(self.WIRE, model="claude-a")
        assert anthropic.encode_messages(messages, model="claude-b") == [
            assistant_message([text_part("a"), CALL])
        ]
        assert anthropic.encode_messages(messages) == [self.WIRE]

    def test_message_without_reasoning_is_the_same_for_every_model(self) -> None:
        wire = assistant_message("said")
        assert anthropic.encode_messages(decode(wire, model="claude-a"), model="claude-b") == [wire]

    def test_message_of_reasoning_alone_is_dropped(self) -> None:
        messages = decode(
            user_message("q"),
            assistant_message([THINKING]),
            model="claude-a",
        )
        assert anthropic.encode_messages(messages, model="claude-b") == [user_message("q")]

    def test_reasoning_is_dropped_from_a_request_for_another_model(self) -> None:
        body = {
            "model": "claude-a",
            "max_tokens": 9,
            "messages": [user_message("q"), self.WIRE],
        }
        request = anthropic.decode_request(body)
        other = ModelRequest("claude-b", request.messages, params=request.params)
        assert THINKING not in anthropic.encode_request(other)["messages"][1]["content"]
