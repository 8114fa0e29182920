"""Streams of OpenAI's Responses protocol."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given

from everthread.core.messages import calls_of
from everthread.core.types import ModelReply, StreamDelta
from everthread.wire import openai_responses
from everthread.wire.openai_responses import encode_stream, stream_decoder
from everthread.wire.sse import SseEvent
from tests.wire import openai_strategies

HEAD = {"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-5"}
USAGE = {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8}
REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "hm"}],
    "encrypted_content": "gA",
}
TEXT = {"type": "output_text", "text": "Hello", "annotations": []}
MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [TEXT],
}
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "c1",
    "name": "look",
    "arguments": '{"a": 1}',
    "status": "completed",
}


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", **fields}


def response_event(kind: str, **fields: Any) -> dict[str, Any]:
    return event(kind, response={**HEAD, "status": kind, "output": [], **fields})


def item_added(item: dict[str, Any], at: int = 0) -> dict[str, Any]:
    return event("output_item.added", output_index=at, item=item)


def item_done(item: dict[str, Any], at: int = 0) -> dict[str, Any]:
    return event("output_item.done", output_index=at, item=item)


def decode(events: Iterable[Any], model: str | None = None) -> tuple[list[StreamDelta], ModelReply]:
    decoder = stream_decoder(model=model)
    deltas = [delta for one in events for delta in decoder.feed(one)]
    return deltas, decoder.reply()


def items_of(reply: ModelReply) -> Any:
    return openai_responses.encode_reply(reply)["output"]


STARTED = {**MESSAGE, "status": "in_progress", "content": []}
CALLED = {**CALL, "status": "in_progress", "arguments": ""}
EVENTS = [
    response_event("created", status="in_progress"),
    response_event("in_progress"),
    item_added({**REASONING, "summary": []}),
    event(
        "reasoning_summary_part.added",
        output_index=0,
        summary_index=0,
        part={"type": "summary_text", "text": ""},
    ),
    event("reasoning_summary_text.delta", output_index=0, summary_index=0, delta="h"),
    event("reasoning_summary_text.delta", output_index=0, summary_index=0, delta="m"),
    event("reasoning_summary_text.done", output_index=0, summary_index=0, text="hm"),
    item_done(REASONING),
    item_added(STARTED, 1),
    event("content_part.added", output_index=1, content_index=0, part={**TEXT, "text": ""}),
    event("output_text.delta", output_index=1, content_index=0, delta="Hel"),
    event("output_text.delta", output_index=1, content_index=0, delta="lo"),
    event("output_text.done", output_index=1, content_index=0, text="Hello"),
    event("content_part.done", output_index=1, content_index=0, part=TEXT),
    item_done(MESSAGE, 1),
    item_added(CALLED, 2),
    event("function_call_arguments.delta", output_index=2, delta='{"a"'),
    event("function_call_arguments.delta", output_index=2, delta=": 1}"),
    event("function_call_arguments.done", output_index=2, arguments='{"a": 1}'),
    item_done(CALL, 2),
]
END = response_event("completed", output=[REASONING, MESSAGE, CALL], usage=USAGE)
SAID = [
    StreamDelta("reasoning", "h"),
    StreamDelta("reasoning", "m"),
    StreamDelta("text", "Hel"),
    StreamDelta("text", "lo"),
    StreamDelta("call", id="c1", name="look"),
    StreamDelta("call", arguments='{"a"'),
    StreamDelta("call", arguments=": 1}"),
]


def test_whole_stream_equals_its_final_response() -> None:
    deltas, reply = decode([*EVENTS, END, SseEvent(None, "[DONE]")])
    raw = {"status": "completed", "incomplete_details": None}
    assert deltas == [
        *SAID,
        StreamDelta("usage", raw=USAGE),
        StreamDelta("stop", "tool_calls", raw=raw),
    ]
    assert reply == openai_responses.decode_reply(END["response"])
    assert (reply.id, reply.model, reply.usage, reply.stop) == (
        "resp_1",
        "gpt-5",
        USAGE,
        "tool_calls",
    )


def test_uses_finished_items_if_the_end_has_none() -> None:
    _, reply = decode([*EVENTS, response_event("completed", usage=USAGE)])
    assert items_of(reply) == [REASONING, MESSAGE, CALL]
    assert reply.stop == "tool_calls"


@pytest.mark.parametrize("length", range(len(EVENTS) + 1))
def test_aborted_stream_gives_a_partial_reply(length: int) -> None:
    deltas, reply = decode(EVENTS[:length])
    assert deltas == SAID[: len(deltas)]
    assert (reply.stop, reply.usage) == (None, None)
    assert (reply.message["content"] or "") == "".join(
        delta.text for delta in deltas if delta.kind == "text"
    )
    arguments = "".join(delta.arguments for delta in deltas if delta.kind == "call")
    assert "".join(call.arguments for call in calls_of(reply.message)) == arguments
    assert all(item["type"] != "reasoning" or item == REASONING for item in items_of(reply))


def test_unfinished_items_are_incomplete() -> None:
    parts = [{"type": "output_text", "text": "Hel", "annotations": []}]
    assert items_of(decode(EVENTS[:11])[1])[1] == {
        **MESSAGE,
        "status": "incomplete",
        "content": parts,
    }
    assert items_of(decode(EVENTS[:17])[1])[2] == {
        **CALL,
        "status": "incomplete",
        "arguments": '{"a"',
    }


def test_accepts_deltas_without_surrounding_events() -> None:
    """Dialects leave out the indices, the parts, the items; the name of the event may be its type."""
    deltas, reply = decode(
        [
            SseEvent("response.output_text.delta", '{"delta": "Hel"}'),
            SseEvent("response.output_text.delta", '{"delta": "lo", "output_index": null}'),
            event("refusal.done", content_index=1, refusal="But no."),
            event("reasoning_text.delta", output_index=1, delta="hm"),
            event("function_call_arguments.delta", output_index=2, delta="{"),
            event("web_search_call.searching", output_index=3),
        ]
    )
    assert deltas == [
        StreamDelta("text", "Hel"),
        StreamDelta("text", "lo"),
        StreamDelta("refusal", "But no."),
        StreamDelta("reasoning", "hm"),
        StreamDelta("call", arguments="{"),
    ]
    assert (reply.message["content"], reply.message["refusal"]) == ("Hello", "But no.")
    assert "tool_calls" not in reply.message


def test_decodes_complete_calls() -> None:
    custom = {
        "type": "custom_tool_call",
        "call_id": "c2",
        "name": "sql",
        "input": "select 1",
    }
    shell = {"type": "shell_call", "call_id": "c3", "action": {}}
    deltas, reply = decode(
        [
            item_done(CALL),
            item_added({**custom, "input": ""}, 1),
            item_done(custom, 1),
            item_done(shell, 2),
        ]
    )
    assert deltas == [
        StreamDelta("call", id="c1", name="look", arguments='{"a": 1}'),
        StreamDelta("call", index=1, id="c2", name="sql"),
        StreamDelta("call", index=1, arguments="select 1"),
        StreamDelta("call", index=2, id="c3", name="shell_call"),
    ]
    assert [call.id for call in calls_of(reply.message)] == ["c1", "c2", "c3"]


def test_provider_tools_give_no_deltas() -> None:
    code = {"type": "code_interpreter_call", "id": "ci_1", "code": ""}
    deltas, reply = decode(
        [
            item_added(code),
            event("code_interpreter_call_code.delta", output_index=0, delta="1+1"),
            event("code_interpreter_call_code.delta", output_index=0, delta=None),
            event("output_text.delta", output_index=1, delta=""),
            event("custom_tool_call_input.done", output_index=2, input=""),
        ]
    )
    assert deltas == []
    assert items_of(reply)[0] == {**code, "code": "1+1"}


def test_reports_errors_and_keeps_the_partial_reply() -> None:
    failed = {"code": "server_error", "message": "it broke"}
    events = [
        *EVENTS[:15],
        {
            "type": "error",
            "code": "rate_limit_exceeded",
            "message": "slow down",
            "param": None,
        },
        {"type": "error", "error": {"message": "too long"}},
        {"error": "plain"},
        response_event("failed", error=failed),
        response_event("failed", error=None),
    ]
    deltas, reply = decode(events)
    stop = StreamDelta("stop", "other", raw={"status": "failed", "incomplete_details": None})
    assert deltas[4:] == [
        StreamDelta("error", "slow down", raw=events[15]),
        StreamDelta("error", "too long", raw={"message": "too long"}),
        StreamDelta("error", "plain", raw={"message": "plain"}),
        StreamDelta("error", "it broke", raw=failed),
        stop,
        StreamDelta("error", "", raw={"message": ""}),
        stop,
    ]
    assert reply.message["content"] == "Hello"


def test_decodes_an_incomplete_response() -> None:
    details = {"reason": "max_output_tokens"}
    ended = response_event("incomplete", incomplete_details=details, usage=USAGE, output=[MESSAGE])
    del ended["response"]["status"]
    deltas, reply = decode([*EVENTS[:15], ended])
    assert deltas[-1] == StreamDelta(
        "stop", "length", raw={"status": "incomplete", "incomplete_details": details}
    )
    assert (reply.stop, items_of(reply)) == ("length", [MESSAGE])


@openai_strategies.few
@given(openai_strategies.responses_reply)
def test_streamed_reply_decodes_to_the_same_reply(body: dict[str, Any]) -> None:
    """And without the event that ends it, the pieces still add up to the same items."""
    if body.get("status") in ("completed", "incomplete", "failed"):
        assert decode(encode_stream(body))[1] == openai_responses.decode_reply(body)
    unfinished_body = {**body, "status": "in_progress"}
    reply = openai_responses.decode_reply(unfinished_body)
    events = list(encode_stream(unfinished_body))
    assert all(
        one.event and not one.event.endswith(("completed", "failed", ".incomplete"))
        for one in events
    )
    deltas, again = decode(events)
    assert items_of(again) == items_of(reply)
    texts = [
        part["text"]
        for item in body["output"]
        for part in item.get("content") or []
        if part.get("type") == "output_text"
    ]
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == "".join(texts)


def test_streams_unknown_parts_whole() -> None:
    item = {**MESSAGE, "content": [{"type": "hologram", "data": "x"}, TEXT]}
    events = list(encode_stream({**END["response"], "output": [item]}))
    deltas, again = decode(events[:-2])
    assert items_of(again) == [{**item, "status": "incomplete"}]
    assert deltas == [StreamDelta("text", "Hello")]
