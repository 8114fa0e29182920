"""Streams of Anthropic: their pieces, the whole reply, and back to events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from everthread.core.messages import calls_of
from everthread.core.types import ModelReply, StreamDelta
from everthread.errors import WireError
from everthread.wire import anthropic
from everthread.wire.sse import SseEvent, SseParser, encode_event
from tests.chat_messages import call_block, text_part
from tests.wire.anthropic_strategies import copy_of, replies

START = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5-20250929",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 25,
            "cache_read_input_tokens": 100,
            "output_tokens": 1,
        },
    },
}
STOP = {"type": "message_stop"}


def block_start(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def block_delta(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "content_block_delta",
        "index": index,
        "delta": {"type": kind, **fields},
    }


def block_stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def message_end(reason: str = "end_turn", **usage: Any) -> dict[str, Any]:
    return {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None},
        "usage": usage,
    }


def decode(events: list[Any]) -> tuple[list[StreamDelta], ModelReply]:
    decoder = anthropic.stream_decoder()
    return [delta for event in events for delta in decoder.feed(copy_of(event))], decoder.reply()


def blocks(reply: ModelReply) -> Any:
    return reply.message["_native"]["value"]["content"]


def test_decodes_a_whole_stream() -> None:
    deltas, reply = decode(
        [
            START,
            {"type": "ping"},
            block_start(0, type="thinking", thinking="", signature=""),
            block_delta(0, "thinking_delta", thinking="Let me "),
            block_delta(0, "thinking_delta", thinking="see."),
            block_delta(0, "signature_delta", signature="c2ln"),
            block_stop(0),
            block_start(1, type="text", text=""),
            block_delta(1, "text_delta", text="It is "),
            block_delta(1, "text_delta", text="晴れ."),
            block_stop(1),
            block_start(2, type="tool_use", id="toolu_1", name="weather", input={}),
            block_delta(2, "input_json_delta", partial_json=""),
            block_delta(2, "input_json_delta", partial_json='{"city": "Par'),
            block_delta(2, "input_json_delta", partial_json='is"}'),
            block_stop(2),
            block_start(3, type="tool_use", id="toolu_2", name="now", input={}),
            block_delta(3, "input_json_delta", partial_json=""),
            block_stop(3),
            message_end("tool_use", input_tokens=None, output_tokens=89),
            STOP,
        ]
    )
    assert deltas == [
        StreamDelta(
            "usage",
            raw={
                "input_tokens": 25,
                "cache_read_input_tokens": 100,
                "output_tokens": 1,
            },
        ),
        StreamDelta("reasoning", text="Let me "),
        StreamDelta("reasoning", text="see."),
        StreamDelta("text", text="It is "),
        StreamDelta("text", text="晴れ."),
        StreamDelta("call", index=0, id="toolu_1", name="weather"),
        StreamDelta("call", index=0, arguments=""),
        StreamDelta("call", index=0, arguments='{"city": "Par'),
        StreamDelta("call", index=0, arguments='is"}'),
        StreamDelta("call", index=1, id="toolu_2", name="now"),
        StreamDelta("call", index=1, arguments=""),
        StreamDelta(
            "usage",
            raw={
                "input_tokens": 25,
                "cache_read_input_tokens": 100,
                "output_tokens": 89,
            },
        ),
        StreamDelta(
            "stop",
            text="tool_calls",
            raw={"stop_reason": "tool_use", "stop_sequence": None},
        ),
    ]
    assert blocks(reply) == [
        {"type": "thinking", "thinking": "Let me see.", "signature": "c2ln"},
        text_part("It is 晴れ."),
        call_block("toolu_1", "weather", {"city": "Paris"}),
        call_block("toolu_2", "now", {}),
    ]
    assert reply.message["content"] == "It is 晴れ."
    assert reply.message["reasoning_content"] == "Let me see."
    assert reply.message["_native"]["model"] == "claude-sonnet-4-5-20250929"
    assert (reply.id, reply.model, reply.stop) == (
        "msg_1",
        "claude-sonnet-4-5-20250929",
        "tool_calls",
    )
    assert reply.usage == {
        "input_tokens": 25,
        "cache_read_input_tokens": 100,
        "output_tokens": 89,
    }
    assert anthropic.encode_reply(reply)["stop_reason"] == "tool_use"


def test_decodes_complete_blocks_and_server_tools() -> None:
    found = {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [{"type": "web_search_result"}],
    }
    citation = {"type": "web_search_result_location", "cited_text": "x"}
    deltas, reply = decode(
        [
            START,
            block_start(0, type="server_tool_use", id="srvtoolu_1", name="web_search", input={}),
            block_delta(0, "input_json_delta", partial_json='{"query": "x"}'),
            block_stop(0),
            block_start(1, **found),
            block_stop(1),
            block_start(2, type="text", text="So", citations=None),
            block_delta(2, "citations_delta", citation=citation),
            block_delta(2, "citations_delta", citation=citation),
            block_delta(2, "text_delta", text=" it is."),
            block_stop(2),
            block_start(3, type="compaction", content=None),
            block_delta(3, "compaction_delta", content="summary", encrypted_content="ZW5j"),
            block_stop(3),
            block_start(4, type="thinking", thinking="at once", signature="c2ln"),
            block_stop(4),
        ]
    )
    assert [(delta.kind, delta.text) for delta in deltas[1:]] == [
        ("text", "So"),
        ("text", " it is."),
        ("reasoning", "at once"),
    ]
    assert blocks(reply) == [
        {
            "type": "server_tool_use",
            "id": "srvtoolu_1",
            "name": "web_search",
            "input": {"query": "x"},
        },
        found,
        {"type": "text", "text": "So it is.", "citations": [citation, citation]},
        {"type": "compaction", "content": "summary", "encrypted_content": "ZW5j"},
        {"type": "thinking", "thinking": "at once", "signature": "c2ln"},
    ]


def test_late_fields_reach_the_reply() -> None:
    late = {
        "type": "message_delta",
        "delta": {
            "stop_reason": "refusal",
            "stop_details": {"type": "refusal"},
            "container": None,
        },
        "context_management": {"applied_edits": []},
    }
    start = {**START, "message": {**START["message"], "container": {"id": "c"}}}  # type: ignore[dict-item]  # a plain dict
    deltas, reply = decode([start, late])
    assert [delta.kind for delta in deltas] == ["usage", "stop"]
    assert reply.raw["stop_details"] == {"type": "refusal"}
    assert reply.raw["container"] == {"id": "c"}
    assert reply.raw["context_management"] == {"applied_edits": []}
    assert reply.stop == "refusal"


def test_message_delta_without_a_reason_is_not_a_stop() -> None:
    deltas, reply = decode(
        [START, {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 5}}]
    )
    assert [delta.kind for delta in deltas] == ["usage", "usage"]
    assert reply.stop is None


class TestBrokenOff:
    def test_keeps_partial_text_but_no_partial_call_or_reasoning(self) -> None:
        _, reply = decode(
            [
                START,
                block_start(0, type="thinking", thinking="", signature=""),
                block_delta(0, "thinking_delta", thinking="half a thou"),
                block_start(1, type="text", text=""),
                block_delta(1, "text_delta", text="Half a sen"),
                block_start(2, type="tool_use", id="toolu_1", name="rm", input={}),
                block_delta(2, "input_json_delta", partial_json='{"path": "/tmp/x"}'),
            ]
        )
        assert blocks(reply) == [text_part("Half a sen")]
        assert calls_of(reply.message) == []
        assert reply.stop is None
        assert reply.usage == {
            "input_tokens": 25,
            "cache_read_input_tokens": 100,
            "output_tokens": 1,
        }

    def test_keeps_complete_calls_and_drops_blank_text(self) -> None:
        _, reply = decode(
            [
                START,
                block_start(0, type="tool_use", id="toolu_1", name="ls", input={}),
                block_stop(0),
                block_start(1, type="text", text=""),
            ]
        )
        assert [block["type"] for block in blocks(reply)] == ["tool_use"]

    def test_reply_before_the_first_event(self) -> None:
        reply = anthropic.stream_decoder(model="claude-a").reply()
        assert reply.message["content"] is None
        assert reply.message["_native"]["model"] == "claude-a"
        assert reply.usage is None

    def test_reports_an_error_and_keeps_the_reply(self) -> None:
        error = {"type": "overloaded_error", "message": "Overloaded"}
        deltas, reply = decode(
            [
                START,
                block_start(0, type="text", text="Hel"),
                {"type": "error", "error": error, "request_id": "req_1"},
            ]
        )
        assert deltas[-1] == StreamDelta("error", text="Overloaded", raw=error)
        assert reply.message["content"] == "Hel"

    def test_reports_an_error_that_is_only_text(self) -> None:
        [delta] = anthropic.stream_decoder().feed({"type": "error", "error": "gone"})
        assert (delta.text, delta.raw) == ("gone", {"type": "error", "error": "gone"})

    def test_keeps_truncated_arguments_as_text(self) -> None:
        """Some servers leave out the end of a block; the reason for the stop says that nothing more comes."""
        _, reply = decode(
            [
                START,
                block_start(0, type="tool_use", id="toolu_1", name="write", input={}),
                block_delta(0, "input_json_delta", partial_json='{"path": "a", "text": "lo'),
                message_end("max_tokens"),
            ]
        )
        assert blocks(reply)[0]["input"] == {"INVALID_JSON": '{"path": "a", "text": "lo'}
        assert calls_of(reply.message)[0].arguments == '{"path": "a", "text": "lo'
        assert reply.stop == "length"


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        ([SseEvent("x", "{nope")], "not JSON"),
        ([SseEvent("x", "[]")], "must be an object, not list"),
        ([{"type": "message_start"}], "message must be an object, not missing"),
        (
            [{"type": "content_block_start", "index": 0}],
            "content_block must be an object, not missing",
        ),
        (
            [{"type": "content_block_start", "index": "0", "content_block": {}}],
            "index must be a number, not '0'",
        ),
        (
            [block_start(0, type="tool_use", id=None)],
            "content_block.id must be a string, not missing",
        ),
        (
            [block_delta(3, "text_delta", text="x")],
            "content_block_delta is about block 3, which never started",
        ),
        ([block_stop(0)], "content_block_stop is about block 0, which never started"),
        (
            [block_start(0, type="text"), {"type": "content_block_delta", "index": 0}],
            "delta must be an object",
        ),
        (
            [block_start(0, type="text"), block_delta(0, "text_delta", text=3)],
            "delta.text must be a string, not int",
        ),
        ([{"type": "message_delta"}], "delta must be an object, not missing"),
    ],
)
def test_explains_invalid_events(events: list[Any], sentence: str) -> None:
    decoder = anthropic.stream_decoder()
    with pytest.raises(WireError) as failure:
        [decoder.feed(event) for event in events]
    assert sentence in str(failure.value)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "ping"},
        {"type": "event_of_tomorrow"},
        {},
        SseEvent(None, "[DONE]"),
        SseEvent("ping", "{}"),
    ],
)
def test_ignores_unknown_events(event: Any) -> None:
    decoder = anthropic.stream_decoder()
    assert decoder.feed(event) == []
    assert decoder.reply().message["content"] is None


def test_events_are_not_changed_and_not_shared() -> None:
    event = block_start(0, type="text", text="a", citations=[])
    decoder = anthropic.stream_decoder()
    decoder.feed(event)
    decoder.feed(block_delta(0, "citations_delta", citation={"x": 1}))
    decoder.feed(block_delta(0, "text_delta", text="b"))
    assert event == block_start(0, type="text", text="a", citations=[])
    assert blocks(decoder.reply()) == blocks(decoder.reply())


@given(replies)
def test_streamed_reply_decodes_to_the_same_reply(body: dict[str, Any]) -> None:
    parser = SseParser()
    decoder = anthropic.stream_decoder()
    for event in anthropic.encode_stream(body):
        for parsed in parser.feed(encode_event(event)):
            decoder.feed(parsed)
    assert decoder.reply() == anthropic.decode_reply(body)


def test_deltas_add_up_to_the_reply() -> None:
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        text_part("a"),
        call_block("x", "t", {"a": "\ud800"}),
        text_part("b\r\n\n"),
    ]
    body = {"id": "m", "model": "c", "content": content, "stop_reason": "end_turn", "usage": {}}
    decoder = anthropic.stream_decoder()
    deltas = [delta for event in anthropic.encode_stream(body) for delta in decoder.feed(event)]
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == "ab\r\n\n"
    assert "".join(delta.text for delta in deltas if delta.kind == "reasoning") == "hm"
    assert json.loads("".join(delta.arguments for delta in deltas if delta.kind == "call")) == {
        "a": "\ud800"
    }
    assert [delta.text for delta in deltas if delta.kind == "stop"] == ["stop"]


def test_encodes_named_events_with_final_usage() -> None:
    body = {
        "content": [text_part("a")],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 2},
    }
    events = list(anthropic.encode_stream(body))
    assert [event.event for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    data = [json.loads(event.data) for event in events]
    assert [each["type"] for each in data] == [event.event for event in events]
    assert data[0]["message"]["usage"] == {"input_tokens": 1, "output_tokens": 0}
    assert data[0]["message"]["stop_reason"] is None
    assert data[4]["usage"] == {"input_tokens": 1, "output_tokens": 2}
