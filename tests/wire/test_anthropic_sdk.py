"""The official Anthropic SDK: its requests are restored verbatim, and it reads the encoded replies and streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from anthropic import beta_tool
from anthropic.types import Message as SdkMessage
from pydantic import BaseModel

from everthread.core.messages import calls_of, results_of, text_of
from everthread.core.types import ModelReply
from everthread.wire import anthropic
from everthread.wire.sse import encode_event
from tests.chat_messages import (
    call_block,
    calls_message,
    function_call,
    text_part,
    user_message,
)
from tests.wire.official_sdks import anthropic_client, assert_golden, load_golden
from tests.wire.recording import Recorded, json_reply, sse_reply

MODEL = "claude-of-the-test"
ASKED: Any = [user_message("What is new?")]
PNG = {
    "type": "base64",
    "media_type": "image/png",
    "data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB",
}
THINKING = {
    "type": "thinking",
    "thinking": "The file first.",
    "signature": "RXZlcnRocmVhZA==",
}
REDACTED = {"type": "redacted_thinking", "data": "b3BhcXVl"}
CALLS = [
    call_block("toolu_01A", "read_file", {"path": "notes/今日.md"}),
    call_block("toolu_01B", "read_file", {"path": "b.txt", "lines": [1, 2]}),
]
SEARCH = {
    "type": "server_tool_use",
    "id": "srvtoolu_01",
    "name": "web_search",
    "input": {"query": "owls"},
}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_01",
    "content": [
        {
            "type": "web_search_result",
            "title": "Owls",
            "url": "https://example.org/owls",
            "encrypted_content": "ZW5j",
            "page_age": None,
        }
    ],
}
CITED = {
    "type": "text",
    "text": "Owls hunt at night.",
    "citations": [
        {
            "type": "web_search_result_location",
            "url": "https://example.org/owls",
            "title": "Owls",
            "encrypted_index": "aWR4",
            "cited_text": "Owls hunt",
        }
    ],
}


def body(*content: dict[str, Any], stop_reason: str = "end_turn", **more: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 12,
        "cache_creation_input_tokens": 3,
        "cache_read_input_tokens": 4,
        "output_tokens": 56,
        "service_tier": "standard",
    }
    return {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": list(content),
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "stop_details": None,
        "usage": usage,
        **more,
    }


REPLIES = {
    "text": body(text_part("Hello 世界 \U0001f989\n")),
    "calls": body(
        THINKING,
        REDACTED,
        text_part("Reading."),
        *CALLS,
        stop_reason="tool_use",
    ),
    "hidden thinking": body({**THINKING, "thinking": ""}, text_part("Done.")),
    "search": body(SEARCH, FOUND, CITED, stop_reason="pause_turn"),
    "refusal": body(
        stop_reason="refusal",
        stop_details={"type": "refusal", "category": "cyber", "explanation": None},
    ),
    "no arguments": body(
        call_block("toolu_02", "now", {}),
        stop_reason="tool_use",
    ),
    "cut off": body(text_part("Once upon"), stop_reason="max_tokens"),
}


@beta_tool
def read_file(path: str, lines: list[int] | None = None) -> str:
    """Read a file.

    Args:
        path: where it is
        lines: which lines, all when absent
    """
    return f"contents of {path}" if lines is None else "line"


class Verdict(BaseModel):
    good: bool
    why: str


def verbatim(name: str, request: Recorded) -> Any:
    """Check that a request is the one on file and survives decoding and encoding; return it decoded."""
    captured = assert_golden(name, request.body)
    decoded = anthropic.decode_request(captured)
    assert anthropic.encode_request(decoded) == captured
    return decoded


class TestWhatTheSdkSends:
    def test_decodes_every_request_field_of_the_sdk(self) -> None:
        with anthropic_client(json_reply(REPLIES["text"])) as (client, server):
            client.messages.create(**load_golden("anthropic_create"))
        request = verbatim("anthropic_create", server.requests[0])
        assert [message["role"] for message in request.messages] == [
            "user",
            "assistant",
            "tool",
            "tool",
            "user",
            "system",
        ]
        assert [call.name for call in calls_of(request.messages[1])] == [
            "read_file",
            "read_file",
        ]
        assert request.messages[1]["reasoning_content"] == "The file first."
        assert results_of(request.messages[3])[0].text == "no such file"
        assert text_of(request.messages[4]) == "Go on."
        assert request.tools[0]["function"]["parameters"]["required"] == ["path"]

    @pytest.mark.parametrize(
        ("name", "options", "roles"),
        [
            (
                "anthropic_loop",
                {"thread": False},
                ["user", "assistant", "tool", "tool"],
            ),
            ("anthropic_thread", {}, ["tool", "tool"]),
        ],
    )
    def test_runs_the_tool_runner_of_the_sdk(
        self, name: str, options: dict[str, Any], roles: list[str]
    ) -> None:
        """It sends the whole conversation, or only the new part if the server holds the rest."""
        with anthropic_client(json_reply(REPLIES["calls"]), json_reply(REPLIES["text"])) as (
            client,
            server,
        ):
            runner = client.beta.messages.tool_runner(
                model=MODEL,
                max_tokens=64,
                tools=[read_file],
                messages=[user_message("Read both.")],
                **options,
            )
            assert runner.until_done().stop_reason == "end_turn"
        request = verbatim(name, server.requests[1])
        assert [message["role"] for message in request.messages] == roles
        assert [results_of(message)[0].text for message in request.messages[-2:]] == [
            "contents of notes/今日.md",
            "line",
        ]

    def test_decodes_a_request_with_betas(self) -> None:
        betas = ["mcp-client-2025-11-20", "context-management-2025-06-27"]
        with anthropic_client(json_reply(REPLIES["text"])) as (client, server):
            client.beta.messages.create(**load_golden("anthropic_beta"), betas=betas)
        request = verbatim("anthropic_beta", server.requests[0])
        assert request.params["container"] == "container_1"
        assert calls_of(request.messages[1]) == []

    def test_decodes_a_request_for_a_stream_with_a_schema(self) -> None:
        verdict = body(text_part('{"good": true, "why": "short"}'))
        events = [encode_event(event) for event in anthropic.encode_stream(REPLIES["text"])]
        with anthropic_client(sse_reply(events), json_reply(verdict)) as (
            client,
            server,
        ):
            with client.messages.stream(
                model=MODEL, max_tokens=64, messages=ASKED, system="Be brief."
            ) as stream:
                assert stream.get_final_text() == REPLIES["text"]["content"][0]["text"]
            parsed = client.messages.parse(
                model=MODEL, max_tokens=64, messages=ASKED, output_format=Verdict
            )
            assert parsed.parsed_output == Verdict(good=True, why="short")
        assert verbatim("anthropic_stream", server.requests[0]).params["stream"] is True
        assert "format" in verbatim("anthropic_parse", server.requests[1]).params["output_config"]


class TestWhatTheSdkReads:
    @pytest.mark.parametrize("size", [1, 7, 10_000])
    @pytest.mark.parametrize("name", REPLIES)
    def test_sdk_parses_an_encoded_stream(self, name: str, size: int) -> None:
        """The reply is the same however the network cuts the stream."""
        assert _read_stream(REPLIES[name], size).to_dict() == REPLIES[name]

    def test_sdk_parses_a_reply_of_another_api(self) -> None:
        made: Any = function_call("call.1", "t", "{broken")
        usage = {"prompt_tokens": 9, "completion_tokens": 2}
        reply = ModelReply(
            calls_message(made, text="hi"),
            "tool_calls",
            usage,
            "gpt",
            "x",
        )
        encoded_reply = anthropic.encode_reply(reply)
        for read in (_read_whole(encoded_reply), _read_stream(encoded_reply, 11)):
            assert [block.to_dict() for block in read.content] == [
                text_part("hi"),
                call_block("call_1", "t", {"INVALID_JSON": "{broken"}),
            ]
            assert (
                read.stop_reason,
                read.usage.input_tokens,
                read.usage.output_tokens,
            ) == ("tool_use", 9, 2)


def _read_whole(encoded_reply: Mapping[str, Any]) -> SdkMessage:
    with anthropic_client(json_reply(encoded_reply)) as (client, _):
        return client.messages.create(model=MODEL, max_tokens=9, messages=ASKED)


def _read_stream(encoded_reply: Mapping[str, Any], size: int) -> SdkMessage:
    raw = b"".join(encode_event(event) for event in anthropic.encode_stream(encoded_reply))
    chunks = (raw[at : at + size] for at in range(0, len(raw), size))
    with (
        anthropic_client(sse_reply(chunks)) as (client, _),
        client.messages.stream(model=MODEL, max_tokens=9, messages=ASKED) as stream,
    ):
        return stream.get_final_message()
