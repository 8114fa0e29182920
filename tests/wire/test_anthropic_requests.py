"""Whole requests, tools and replies of Anthropic."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.core.messages import Message
from everthread.core.types import ModelReply, ModelRequest
from everthread.wire import anthropic
from tests.chat_messages import assistant_message, text_part, user_message
from tests.wire.anthropic_strategies import copy_of


class TestRequests:
    def test_keeps_unknown_fields(self) -> None:
        body = {
            "model": "claude-a",
            "max_tokens": 0,
            "messages": [],
            "thinking": {"type": "adaptive", "display": "omitted"},
            "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
            "container": None,
            "cache_control": {"type": "ephemeral"},
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "metadata": {"user_id": "u"},
            "betas_of_tomorrow": [1],
        }
        request = anthropic.decode_request(body)
        assert request.params == {
            key: value for key, value in body.items() if key not in ("model", "messages")
        }
        assert anthropic.encode_request(request) == body

    def test_always_sends_max_tokens(self) -> None:
        def sent(**params: Any) -> Any:
            return anthropic.encode_request(ModelRequest("m", [], params=params))["max_tokens"]

        assert sent() == anthropic.DEFAULT_MAX_TOKENS
        assert sent(max_tokens=None) == anthropic.DEFAULT_MAX_TOKENS
        assert sent(max_tokens=7) == 7
        assert sent(max_completion_tokens=8) == 8
        assert sent(max_output_tokens=9) == 9
        assert sent(max_tokens=7, max_completion_tokens=8) == 7
        assert sent(max_tokens=None, max_completion_tokens=8) == 8

    def test_leading_instructions_join_the_system_prompt(self) -> None:
        marker = {"type": "ephemeral"}
        messages: list[Message] = [
            {"role": "system", "content": "one"},
            {
                "role": "developer",
                "content": [
                    text_part("two"),
                    text_part(" "),
                ],
            },
            {"role": "system", "content": "three", "cache_control": marker},
            user_message("hi"),
        ]
        body = anthropic.encode_request(ModelRequest("m", messages, system="zero"))
        assert body["system"] == [
            text_part("zero"),
            text_part("one"),
            text_part("two"),
            {"type": "text", "text": "three", "cache_control": marker},
        ]
        assert body["messages"] == [user_message([text_part("hi")])]

    def test_blank_instructions_make_no_system_prompt(self) -> None:
        assert "system" not in anthropic.encode_request(
            ModelRequest("m", [{"role": "system", "content": ""}])
        )

    def test_translates_or_drops_openai_fields(self) -> None:
        schema = {"type": "object"}
        params = {
            "temperature": 0.5,
            "stream": True,
            "stop": "END",
            "n": 1,
            "seed": 4,
            "metadata": {"project": "x"},
            "service_tier": "flex",
            "user": "u",
            "stream_options": {"include_usage": True},
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": schema},
            },
            "_ours": 1,
        }
        body = anthropic.encode_request(ModelRequest("m", [], params=params))
        assert body == {
            "model": "m",
            "max_tokens": anthropic.DEFAULT_MAX_TOKENS,
            "messages": [],
            "temperature": 0.5,
            "stream": True,
            "stop_sequences": ["END"],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "output_config": {"format": {"type": "json_schema", "schema": schema}},
        }

    @pytest.mark.parametrize(
        ("params", "choice"),
        [
            ({"tool_choice": "auto"}, {"type": "auto"}),
            ({"tool_choice": "none", "parallel_tool_calls": False}, {"type": "none"}),
            (
                {"tool_choice": {"type": "function", "function": {"name": "t"}}},
                {"type": "tool", "name": "t"},
            ),
            (
                {"tool_choice": {"type": "function", "name": "t"}},
                {"type": "tool", "name": "t"},
            ),
            (
                {"tool_choice": {"type": "tool", "name": "t"}},
                {"type": "tool", "name": "t"},
            ),
            (
                {"parallel_tool_calls": False},
                {"type": "auto", "disable_parallel_tool_use": True},
            ),
            ({"parallel_tool_calls": True}, None),
            ({"tool_choice": 7, "parallel_tool_calls": False}, 7),
            ({"tool_choice": None}, None),
        ],
    )
    def test_translates_tool_choice(self, params: dict[str, Any], choice: Any) -> None:
        assert (
            anthropic.encode_request(ModelRequest("m", [], params=params)).get("tool_choice")
            == choice
        )

    @pytest.mark.parametrize(
        "value",
        [{"type": "json_object"}, "text", {"json_schema": 3}, {"json_schema": {}}],
    )
    def test_drops_formats_without_a_schema(self, value: Any) -> None:
        body = anthropic.encode_request(
            ModelRequest("m", [], params={"response_format": value, "stop": ["a", "b"]})
        )
        assert "output_config" not in body
        assert body["stop_sequences"] == ["a", "b"]


class TestTools:
    CUSTOM: dict[str, Any] = {  # noqa: RUF012
        "name": "t",
        "description": "d",
        "input_schema": {"type": "object"},
        "strict": True,
    }

    def test_decodes_a_custom_tool_as_a_function(self) -> None:
        [tool] = anthropic.decode_tools([self.CUSTOM])
        function = {
            "name": "t",
            "description": "d",
            "parameters": {"type": "object"},
            "strict": True,
        }
        assert tool == {"type": "function", "function": function}
        assert anthropic.encode_tools([tool]) == [self.CUSTOM]

    @pytest.mark.parametrize(
        "tool",
        [
            {"name": "t", "input_schema": {"type": "object"}},
            {
                "name": "t",
                "type": "custom",
                "input_schema": {"type": "object"},
                "defer_loading": True,
            },
            {
                "name": "t",
                "input_schema": {"type": "object"},
                "cache_control": {"type": "ephemeral"},
            },
            {"name": "t", "input_schema": {}},
            {"name": "t"},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
            {"type": "mcp_toolset", "mcp_server_name": "x"},
        ],
    )
    def test_every_tool_comes_back_verbatim(self, tool: dict[str, Any]) -> None:
        decoded = anthropic.decode_tools([tool])
        assert anthropic.encode_tools(decoded) == [tool]
        assert anthropic.encode_tools(copy_of(decoded)) == [tool]

    def test_marks_built_in_tools_as_native(self) -> None:
        [tool] = anthropic.decode_tools([{"type": "web_search_20250305", "name": "web_search"}])
        assert tool["_native"]["api"] == "anthropic"
        assert tool["type"] == "web_search_20250305"

    def test_encodes_tools_of_other_apis(self) -> None:
        tools: list[dict[str, Any]] = [
            {
                "type": "function",
                "function": {"name": "f"},
                "cache_control": {"type": "ephemeral"},
            },
            {"type": "custom", "custom": {"name": "c", "description": "free text"}},
            {
                "type": "file_search",
                "_native": {
                    "api": "openai_responses",
                    "value": {"type": "file_search"},
                },
            },
            {"type": "bash_20250124", "name": "bash"},
        ]
        text_in = {
            "type": "object",
            "properties": {"input": {"type": "string"}},
            "required": ["input"],
        }
        assert anthropic.encode_tools(tools) == [
            {
                "name": "f",
                "input_schema": {"type": "object", "properties": {}},
                "cache_control": {"type": "ephemeral"},
            },
            {"name": "c", "description": "free text", "input_schema": text_in},
            {"type": "bash_20250124", "name": "bash"},
        ]


class TestReplies:
    @pytest.mark.parametrize(
        ("reason", "stop"),
        [
            ("end_turn", "stop"),
            ("stop_sequence", "stop"),
            ("max_tokens", "length"),
            ("model_context_window_exceeded", "length"),
            ("tool_use", "tool_calls"),
            ("refusal", "refusal"),
            ("pause_turn", "pause"),
            ("compaction", "pause"),
            ("reason_of_tomorrow", "other"),
            (None, None),
        ],
    )
    def test_decodes_stop_reasons(self, reason: str | None, stop: str | None) -> None:
        reply = anthropic.decode_reply({"content": [], "stop_reason": reason})
        assert reply.stop == stop

    @pytest.mark.parametrize(
        ("stop", "reason"),
        [
            ("stop", "end_turn"),
            ("length", "max_tokens"),
            ("content_filter", "refusal"),
            ("other", "end_turn"),
            (None, None),
        ],
    )
    def test_encodes_a_reply_of_another_api(self, stop: str | None, reason: str | None) -> None:
        message: Message = {
            "role": "assistant",
            "content": "hi",
            "reasoning_content": "hm",
        }
        usage = {
            "prompt_tokens": 10,
            "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 3},
        }
        body = anthropic.encode_reply(
            ModelReply(
                message,
                stop,
                usage=usage,
                model="gpt",
                id="chatcmpl-1",
                raw={"object": "chat.completion"},
            )
        )
        assert body == {
            "id": "chatcmpl-1",
            "type": "message",
            "role": "assistant",
            "model": "gpt",
            "content": [text_part("hi")],
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": {
                "input_tokens": 7,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 3,
                "output_tokens": 4,
            },
        }

    def test_encodes_an_empty_reply(self) -> None:
        body = anthropic.encode_reply(ModelReply(assistant_message(None)))
        assert body["content"] == []
        assert body["usage"]["output_tokens"] == 0

    def test_ignores_usage_that_is_not_an_object(self) -> None:
        assert anthropic.decode_reply({"content": [], "usage": "many"}).usage is None
