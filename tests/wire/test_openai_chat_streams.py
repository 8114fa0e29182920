"""Streams of OpenAI's chat protocol."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.types import ModelReply, StreamDelta
from everthread.wire import openai_chat as chat
from everthread.wire.openai_chat import encode_stream, stream_decoder
from everthread.wire.sse import SseEvent, SseParser, encode_event
from tests.chat_messages import assistant_message, calls_message, custom_call, text_part
from tests.shared_data import shared_path
from tests.wire import openai_strategies

HEAD = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "gpt-5",
}


def chunk(delta: Any = None, **choice: Any) -> dict[str, Any]:
    return {
        **HEAD,
        "choices": [{"index": 0, "delta": delta or {}, "finish_reason": None, **choice}],
    }


def fragment(index: int | None = None, **fields: Any) -> dict[str, Any]:
    """Return a chunk with a fragment of a tool call; name and arguments go into `function`."""
    function = {key: fields.pop(key) for key in ("name", "arguments") if key in fields}
    call = {**fields, "function": function} if function else fields
    return chunk({"tool_calls": [call if index is None else {"index": index, **call}]})


def decode(chunks: Iterable[Any], model: str | None = None) -> tuple[list[StreamDelta], ModelReply]:
    decoder = stream_decoder(model=model)
    deltas = [delta for event in chunks for delta in decoder.feed(event)]
    return deltas, decoder.reply()


def calls_in(*chunks: Any) -> list[tuple[Any, Any, Any]]:
    """Return id, name and arguments of the assembled calls, after checking the deltas against them."""
    deltas, reply = decode(chunks)
    calls: list[Any] = list(reply.message["tool_calls"])
    for index, call in enumerate(calls):
        pieces = [delta for delta in deltas if delta.kind == "call" and delta.index == index]
        assert "".join(piece.arguments for piece in pieces) == call["function"]["arguments"]
        assert "".join(piece.id for piece in pieces) == call.get("id", "")
        assert "".join(piece.name for piece in pieces) == call["function"]["name"]
    return [
        (call.get("id"), call["function"]["name"], call["function"]["arguments"]) for call in calls
    ]


def test_decodes_text_reasoning_usage_and_stop() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    deltas, reply = decode(
        [
            chunk({"role": "assistant", "content": "", "refusal": None}),
            chunk({"reasoning_content": "hm "}),
            chunk({"reasoning_content": "yes"}),
            chunk({"content": "Hel"}),
            chunk({"content": "lo"}),
            chunk(finish_reason="stop"),
            {**HEAD, "choices": [], "usage": usage, "service_tier": "default"},
            SseEvent(None, "[DONE]"),
        ]
    )
    assert deltas == [
        StreamDelta("reasoning", "hm "),
        StreamDelta("reasoning", "yes"),
        StreamDelta("text", "Hel"),
        StreamDelta("text", "lo"),
        StreamDelta("stop", "stop", raw={"finish_reason": "stop"}),
        StreamDelta("usage", raw=usage),
    ]
    assert (reply.id, reply.model, reply.stop, reply.usage) == (
        "chatcmpl-1",
        "gpt-5",
        "stop",
        usage,
    )
    message = {
        "role": "assistant",
        "content": "Hello",
        "refusal": None,
        "reasoning_content": "hm yes",
    }
    assert chat.encode_messages([reply.message]) == [message]
    assert reply.raw["service_tier"] == "default"


def test_merges_reasoning_details_until_signed() -> None:
    def detail(**fields: Any) -> dict[str, Any]:
        return chunk({"reasoning": fields.get("text", ""), "reasoning_details": [fields]})

    deltas, reply = decode(
        [
            detail(type="reasoning.text", text="a", index=0, signature=None),
            detail(type="reasoning.text", text="b", index=0),
            detail(type="reasoning.text", signature="s1", index=0, format="anthropic"),
            detail(type="reasoning.text", text="c", index=0),
            detail(type="reasoning.text", text="d", index=1),
            detail(type="reasoning.encrypted", data="x", index=1),
            detail(type="reasoning.encrypted", data="y", index=1),
            chunk(
                {
                    "reasoning_details": [
                        {"type": "reasoning.summary", "summary": "e"},
                        {"type": "reasoning.summary", "summary": "f"},
                    ]
                }
            ),
        ]
    )
    [message] = chat.encode_messages([reply.message])
    assert message["reasoning_details"] == [
        {
            "type": "reasoning.text",
            "text": "ab",
            "index": 0,
            "signature": "s1",
            "format": "anthropic",
        },
        {"type": "reasoning.text", "text": "c", "index": 0},
        {"type": "reasoning.text", "text": "d", "index": 1},
        {"type": "reasoning.encrypted", "data": "x", "index": 1},
        {"type": "reasoning.encrypted", "data": "y", "index": 1},
        {"type": "reasoning.summary", "summary": "e"},
        {"type": "reasoning.summary", "summary": "f"},
    ]
    assert [delta.text for delta in deltas] == ["a", "b", "c", "d", "e"]


def test_merges_refusal_audio_and_legacy_function_call() -> None:
    deltas, reply = decode(
        [
            chunk({"refusal": "I can"}),
            chunk({"refusal": "not."}),
            chunk({"audio": {"id": "a", "data": "AA", "transcript": "I"}}),
            chunk({"audio": {"data": "BB", "transcript": " can"}}),
            chunk({"audio": {"expires_at": 9}}),
            chunk({"function_call": {"name": "f", "arguments": '{"a"'}}),
            chunk({"function_call": {"arguments": ": 1}"}}),
            chunk(finish_reason="stop"),
        ]
    )
    assert reply.message == {
        "role": "assistant",
        "refusal": "I cannot.",
        "audio": {"id": "a", "data": "AABB", "transcript": "I can", "expires_at": 9},
        "function_call": {"name": "f", "arguments": '{"a": 1}'},
    }
    assert [delta.text for delta in deltas] == ["I can", "not.", "refusal"]
    assert reply.stop == "refusal"


def test_keeps_the_order_of_content_parts() -> None:
    thought = {"type": "thinking", "thinking": [text_part("hm")]}
    _, reply = decode(
        [
            chunk({"content": ""}),
            chunk({"content": [thought]}),
            chunk({"content": "a"}),
            chunk({"content": "b"}),
        ]
    )
    assert chat.encode_messages([reply.message]) == [assistant_message([thought, text_part("ab")])]


def test_joins_lists_and_keeps_the_last_of_other_values() -> None:
    _, reply = decode(
        [
            chunk(
                {"role": "assistant", "annotations": [1], "x": "a", "content": 5},
                logprobs={"content": [1]},
            ),
            chunk(
                {"role": "assistant", "annotations": [2], "x": "b", "content": "text"},
                logprobs={"content": [2]},
            ),
            chunk({"x": 3}, finish_reason="length", native_finish_reason="max"),
        ]
    )
    assert reply.stop == "length"
    assert reply.raw["choices"] == [
        {
            "index": 0,
            "finish_reason": "length",
            "logprobs": {"content": [1, 2]},
            "native_finish_reason": "max",
        }
    ]
    assert reply.message["role"] == "assistant"
    assert dict(reply.message)["annotations"] == [1, 2]
    assert dict(reply.message)["x"] == 3


WHOLE = [("a", "f", '{"x": 1}'), ("b", "g", "{}")]


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param(
            [
                fragment(0, id="a", type="function", name="f", arguments=""),
                fragment(0, arguments='{"x"'),
                fragment(1, id="b", type="function", name="g", arguments=""),
                fragment(1, arguments="{}"),
                fragment(0, arguments=": 1}"),
            ],
            id="as OpenAI sends them, interleaved",
        ),
        pytest.param(
            [
                fragment(id="a", name="f", arguments='{"x"'),
                fragment(arguments=": 1}"),
                fragment(id="b", name="g", arguments="{}"),
            ],
            id="without an index",
        ),
        pytest.param(
            [
                fragment(id="a", name="f", arguments='{"x": 1}'),
                fragment(id="b", name="g", arguments="{}"),
            ],
            id="whole calls without an index",
        ),
        pytest.param(
            [
                fragment(0, id="a", name="f", arguments={"x": 1}),
                fragment(1, id="b", name="g", arguments={}),
            ],
            id="arguments as an object",
        ),
        pytest.param(
            [
                fragment(0, id="a", name="f", arguments='{"x"'),
                fragment(0, id="a", name="f", arguments=": 1}"),
                fragment(1, id="b", name="g", arguments="{"),
                fragment(1, id="b", name="g", arguments="}"),
            ],
            id="id and name repeated",
        ),
        pytest.param(
            [
                fragment(0, id="a", name="f", arguments='{"x": 1}'),
                fragment(0, id="b", name="g", arguments="{"),
                fragment(1, arguments="}"),
            ],
            id="one index for two calls, another for the rest of one",
        ),
        pytest.param(
            [
                fragment(0, id="a", name="f", arguments='{"x"'),
                fragment(0, id="", name=None, arguments=": 1}"),
                fragment(1, id="b", arguments=None),
                fragment(1, name="g"),
                fragment(1, arguments="{}"),
            ],
            id="empty ids and names, the name later",
        ),
        pytest.param(
            [
                chunk(
                    {
                        "tool_calls": [
                            {
                                "index": 0,
                                "id": "a",
                                "function": {"name": "f", "arguments": '{"x": 1}'},
                            },
                            {
                                "index": 1,
                                "id": "b",
                                "function": {"name": "g", "arguments": "{}"},
                            },
                        ]
                    }
                )
            ],
            id="both in one chunk",
        ),
    ],
)
def test_separates_calls_in_every_dialect(chunks: list[Any]) -> None:
    assert calls_in(*chunks) == WHOLE


def test_late_id_belongs_to_the_call_of_its_index() -> None:
    assert calls_in(fragment(0, name="f", arguments="{"), fragment(0, id="a", arguments="}")) == [
        ("a", "f", "{}")
    ]


def test_calls_without_id_and_index_start_at_a_name() -> None:
    assert calls_in(
        fragment(name="f", arguments="{}"),
        fragment(name="g", arguments="{"),
        fragment(arguments="}"),
    ) == [
        (None, "f", "{}"),
        (None, "g", "{}"),
    ]


def test_keeps_custom_calls_and_signatures() -> None:
    deltas, reply = decode(
        [
            fragment(
                0,
                id="a",
                type="custom",
                custom={"name": "sql", "input": "select"},
                extra_content={"g": {"s": "x"}},
            ),
            fragment(0, custom={"input": " 1"}),
        ]
    )
    [message] = chat.encode_messages([reply.message])
    assert message["tool_calls"] == [
        {
            "id": "a",
            "type": "custom",
            "custom": {"name": "sql", "input": "select 1"},
            "extra_content": {"g": {"s": "x"}},
        }
    ]
    assert deltas[0] == StreamDelta("call", id="a", name="sql", arguments="select")
    assert deltas[1] == StreamDelta("call", arguments=" 1")


def test_reports_errors_and_keeps_the_partial_reply() -> None:
    error = {"code": 400, "message": "prompt is too long"}
    deltas, reply = decode(
        [
            chunk({"content": "Hel"}),
            {**HEAD, "error": error, "choices": []},
            {"error": "overloaded"},
            {"error": 5},
        ]
    )
    assert deltas[1:] == [
        StreamDelta("error", "prompt is too long", raw=error),
        StreamDelta("error", "overloaded", raw={"message": "overloaded"}),
        StreamDelta("error", "5", raw={"message": "5"}),
    ]
    assert reply.message["content"] == "Hel"


def test_aborted_stream_gives_a_partial_reply() -> None:
    _, reply = decode(
        [
            chunk(assistant_message("Hel")),
            fragment(0, id="a", name="f", arguments='{"x"'),
        ]
    )
    assert (reply.stop, reply.usage, reply.message["content"]) == (None, None, "Hel")
    assert reply.message["tool_calls"][0]["function"] == {
        "name": "f",
        "arguments": '{"x"',
    }
    assert decode([])[1].message == assistant_message("")


def test_reads_only_the_first_choice() -> None:
    other = {"index": 1, "delta": {"content": "no"}}
    deltas, reply = decode(
        [
            {**HEAD, "choices": [{"delta": {"content": "yes"}}, other, "garbage"]},
            {**HEAD, "choices": None},
        ]
    )
    assert (deltas, reply.message["content"]) == ([StreamDelta("text", "yes")], "yes")


def test_reads_usage_in_a_choice_and_null_usage() -> None:
    usage = {"prompt_tokens": 1}
    deltas, reply = decode(
        [
            {**chunk({"content": "a"}), "usage": None},
            chunk({"content": "b"}, usage=usage),
        ]
    )
    assert reply.usage == usage
    assert deltas[-1] == StreamDelta("usage", raw=usage)
    assert decode([{**chunk({"content": "a"}), "usage": None}])[1].raw["usage"] is None


@openai_strategies.few
@given(openai_strategies.chat_reply)
def test_streamed_reply_decodes_to_the_same_reply(body: dict[str, Any]) -> None:
    body = {**body, "choices": body["choices"][:1]}
    assert decode(encode_stream(body))[1] == chat.decode_reply(body)


@openai_strategies.few
@given(openai_strategies.chat_reply, st.data())
def test_any_chunking_gives_the_same_reply(body: dict[str, Any], data: st.DataObject) -> None:
    body = {**body, "choices": body["choices"][:1]}
    events = b"".join(map(encode_event, encode_stream(body)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=5)))
    parser = SseParser()
    decoder = stream_decoder()
    for start, end in zip([0, *cuts], [*cuts, len(events)], strict=True):
        for event in parser.feed(events[start:end]):
            decoder.feed(event)
    assert decoder.reply() == chat.decode_reply(body)


def test_streams_a_custom_call_and_null_usage() -> None:
    call = custom_call("a", "sql", "select 1")
    message = calls_message(call)
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    body = {"id": "1", "object": "chat.completion", "usage": None, "choices": [choice]}
    assert decode(encode_stream(body))[1] == chat.decode_reply(body)


def test_streams_recorded_replies() -> None:
    for path in sorted(shared_path("requests").glob("*.json")):
        body = json.loads(path.read_text(encoding="utf-8"))["response"]
        for call in body["choices"][0]["message"].get("tool_calls") or []:
            call.pop("index", None)  # a leftover of the stream it came from
        assert decode(encode_stream(body))[1] == chat.decode_reply(body), path.name
