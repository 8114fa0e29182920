"""Replies of OpenAI's chat protocol."""

from __future__ import annotations

import json

import pytest

from everthread.core.messages import Message
from everthread.core.types import ModelReply
from everthread.wire import openai_chat as chat
from everthread.wire.native_values import with_native
from tests.chat_messages import assistant_message, text_part
from tests.shared_data import shared_path
from tests.wire.openai_bodies import completion


def test_restores_recorded_requests_verbatim() -> None:
    for path in sorted(shared_path("requests").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        body = {"model": "m", "messages": record["messages"], **record["kwargs"]}
        request = chat.decode_request(body)
        assert chat.encode_request(request) == body, path.name
        assert request.system == record["messages"][0]["content"]


@pytest.mark.parametrize(
    ("reason", "refusal", "stop"),
    [
        ("stop", None, "stop"),
        ("stop", "I cannot.", "refusal"),
        ("length", "I can", "length"),
        ("tool_calls", None, "tool_calls"),
        ("function_call", None, "tool_calls"),
        ("content_filter", None, "content_filter"),
        ("eos", None, "other"),
        (None, None, None),
    ],
)
def test_decodes_finish_reasons(reason: str | None, refusal: str | None, stop: str | None) -> None:
    body = completion({"role": "assistant", "content": "x", "refusal": refusal}, reason)
    assert chat.decode_reply(body).stop == stop


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("refusal", "content_filter"),
        ("pause", "stop"),
        ("other", "stop"),
        (None, None),
    ],
)
def test_encodes_finish_reasons_of_other_apis(stop: str | None, reason: str | None) -> None:
    reply = ModelReply(
        message=assistant_message("x"),
        stop=stop,
        raw={"type": "message", "stop_reason": "?"},
    )
    body = chat.encode_reply(reply)
    assert body["choices"][0]["finish_reason"] == reason
    assert "stop_reason" not in body
    assert "usage" not in body


def test_refusal_with_text_is_a_plain_stop() -> None:
    body = chat.encode_reply(
        ModelReply(
            message={"role": "assistant", "content": None, "refusal": "No."},
            stop="refusal",
        )
    )
    assert body["choices"][0]["finish_reason"] == "stop"


def test_joins_text_blocks_for_a_client() -> None:
    blocks = [
        text_part("a"),
        {"type": "tool_use", "id": "c", "name": "f"},
        text_part("b"),
    ]
    message: Message = assistant_message(blocks)
    [choice] = chat.encode_reply(ModelReply(message=message, stop="tool_calls"))["choices"]
    assert choice["message"]["content"] == "a\nb"
    assert [call["id"] for call in choice["message"]["tool_calls"]] == ["c"]


def test_sends_another_apis_reasoning_to_a_client() -> None:
    core: Message = {"role": "assistant", "content": "x", "reasoning_content": "hm"}
    body = chat.encode_reply(ModelReply(message=with_native(core, "anthropic", {})))
    assert body["choices"][0]["message"] == core
