"""Payloads that do not follow their protocol are refused with a sentence that names the fault."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.errors import WireError
from everthread.wire import anthropic, gemini, openai_chat, openai_responses
from everthread.wire.sse import SseEvent
from tests.chat_messages import assistant_message, result_block, user_message


def response_event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", **fields}


def feed_chat(event: Any) -> None:
    openai_chat.stream_decoder().feed(event)


def feed_responses(event: Any) -> None:
    openai_responses.stream_decoder().feed(event)


INVALID_PAYLOADS: list[tuple[Any, list[tuple[Any, str]]]] = [
    (
        anthropic.decode_messages,
        [
            ("hi", "messages must be a list, not str"),
            (None, "messages must be a list, not missing"),
            (["hi"], "messages[0] must be an object, not str"),
            (
                [{"role": "tool", "content": "x"}],
                "messages[0].role must be one of user, assistant, system, not 'tool'",
            ),
            (
                [{"content": "x"}],
                "messages[0].role must be one of user, assistant, system, not None",
            ),
            ([{"role": ["user"], "content": "x"}], "messages[0].role must be one of"),
            ([{"role": "user"}], "messages[0].content must be a list, not missing"),
            (
                [user_message(7)],
                "messages[0].content must be a list, not int",
            ),
            (
                [user_message(["x"])],
                "messages[0].content[0] must be an object, not str",
            ),
            (
                [user_message([{"type": "tool_result"}])],
                "content[0].tool_use_id must be a string",
            ),
            (
                [user_message([{**result_block("toolu_1", "a.txt"), "content": 7}])],
                "content[0].content must be a list, not int",
            ),
            (
                [user_message([{**result_block("toolu_1", "a.txt"), "content": [7]}])],
                "content[0].content[0] must be an object",
            ),
            (
                [assistant_message([{"type": "tool_use"}])],
                "messages[0].content[0].id must be a string",
            ),
            (
                [assistant_message([{"type": "tool_use", "id": "x", "name": 3}])],
                "name must be a string",
            ),
        ],
    ),
    (
        anthropic.decode_request,
        [
            ([], "the request must be an object, not list"),
            ({"messages": []}, "model must be a string, not missing"),
            ({"model": "m"}, "messages must be a list, not missing"),
            (
                {"model": "m", "messages": [], "system": 7},
                "system must be a list, not int",
            ),
            (
                {"model": "m", "messages": [], "system": ["x"]},
                "system[0] must be an object, not str",
            ),
            (
                {"model": "m", "messages": [], "tools": {"a": 1}},
                "tools must be a list, not dict",
            ),
            (
                {"model": "m", "messages": [], "tools": [{"input_schema": {}}]},
                "tools[0].name must be a string",
            ),
        ],
    ),
    (
        anthropic.decode_reply,
        [
            ("x", "the reply must be an object, not str"),
            ({}, "content must be a list, not missing"),
            ({"content": [3]}, "the reply.content[0] must be an object, not int"),
            (
                {
                    "type": "error",
                    "error": {"type": "overloaded_error", "message": "Overloaded"},
                },
                "the reply is an error, not a message: Overloaded",
            ),
        ],
    ),
    (
        openai_chat.decode_request,
        [
            (None, "the request must be an object, not missing"),
            ([], "the request must be an object, not list"),
            ({"messages": []}, "model must be a string, not missing"),
            ({"model": "m"}, "messages must be a list, not missing"),
            ({"model": "m", "messages": "hi"}, "messages must be a list, not str"),
            (
                {"model": "m", "messages": ["hi"]},
                "messages[0] must be an object, not str",
            ),
            (
                {"model": "m", "messages": [user_message("hi"), {"content": "x"}]},
                "messages[1].role must be a string, not missing",
            ),
            (
                {"model": "m", "messages": [{"role": "system", "content": "s"}, 5]},
                "messages[1] must be an object, not int",
            ),
            (
                {"model": "m", "messages": [user_message(5)]},
                "messages[0].content must be a string, a list",
            ),
            (
                {"model": "m", "messages": [{"role": "assistant", "tool_calls": {}}]},
                "tool_calls must be a list, not dict",
            ),
            (
                {"model": "m", "messages": [], "tools": {"a": 1}},
                "tools must be a list, not dict",
            ),
            (
                {"model": "m", "messages": [], "tools": [1]},
                "tools[0] must be an object, not int",
            ),
        ],
    ),
    (
        openai_chat.decode_reply,
        [
            ("x", "the reply must be an object, not str"),
            (
                {"error": {"message": "too long", "code": "c"}},
                "the reply is an error, not a completion: too long",
            ),
            ({"error": {"a": 1}}, "the reply is an error, not a completion: {'a': 1}"),
            ({"error": "boom"}, "not a completion: boom"),
            ({}, "choices must be a list, not missing"),
            ({"choices": []}, "the reply holds no choice"),
            ({"choices": [1]}, "choices[0] must be an object, not int"),
            ({"choices": [{}]}, "choices[0].message must be an object, not missing"),
        ],
    ),
    (
        openai_responses.decode_request,
        [
            (5, "the request must be an object, not int"),
            ({"input": "x"}, "model must be a string, not missing"),
            ({"model": "m", "input": 5}, "input must be a list, not int"),
            ({"model": "m", "input": ["x"]}, "input[0] must be an object, not str"),
            (
                {"model": "m", "input": [{"type": "message"}]},
                "input[0].role must be a string, not missing",
            ),
            (
                {"model": "m", "input": [{"role": "tool", "content": "x"}]},
                "input[0].role must not be tool",
            ),
            (
                {"model": "m", "input": [user_message(5)]},
                "content must be a list, not int",
            ),
            (
                {"model": "m", "input": [user_message(["x"])]},
                "a part of the content must be an object, not str",
            ),
            ({"model": "m", "tools": 5}, "tools must be a list, not int"),
            ({"model": "m", "tools": ["x"]}, "tools[0] must be an object, not str"),
        ],
    ),
    (
        openai_responses.decode_reply,
        [
            ([], "the reply must be an object, not list"),
            (
                {"error": {"message": "too long"}},
                "the reply is an error, not a response: too long",
            ),
            ({"error": {"x": 1}}, "the reply is an error, not a response: {'x': 1}"),
            ({}, "output must be a list, not missing"),
            ({"output": [5]}, "output[0] must be an object, not int"),
        ],
    ),
    (
        feed_chat,
        [
            (SseEvent(None, "{"), "an event of the stream is not JSON: '{'"),
            (SseEvent(None, "[" * 100_000), "is not JSON"),
            (SseEvent(None, "5"), "the event must be an object, not int"),
            (None, "the event must be an object, not missing"),
            (
                {"choices": [{"delta": 5}]},
                "choices[0].delta must be an object, not int",
            ),
            (
                {"choices": [{"delta": {"tool_calls": [5]}}]},
                "must be an object, not int",
            ),
        ],
    ),
    (
        feed_responses,
        [
            (SseEvent(None, "{"), "an event of the stream is not JSON"),
            ([], "the event must be an object, not list"),
            (
                response_event("created"),
                "the response of response.created must be an object, not missing",
            ),
            (
                response_event("output_item.added", item=5),
                "the item of response.output_item.added must be an object, not int",
            ),
            (
                response_event("content_part.added", part=5),
                "the part of response.content_part.added must be an object, not int",
            ),
        ],
    ),
    (
        gemini.decode_messages,
        [
            (
                [{"role": "assistant", "parts": []}],
                "must be one of user, model, function",
            ),
            (
                [{"role": "user", "parts": [1]}],
                "contents[0].parts[0] must be an object",
            ),
            (
                [{"role": "model", "parts": [{"functionCall": {}}]}],
                "name of a functionCall",
            ),
            ([{"parts": [{"functionResponse": {}}]}], "name of a functionResponse"),
        ],
    ),
    (gemini.decode_request, [({"contents": []}, "model must be a string")]),
    (
        gemini.decode_reply,
        [
            ({"error": {"message": "API key not valid."}}, "API key not valid."),
            ({"candidates": {}}, "candidates must be a list"),
        ],
    ),
    (
        gemini.decode_tools,
        [([{"functionDeclarations": [{}]}], "name must be a string")],
    ),
]


@pytest.mark.parametrize(
    ("decode", "payload", "sentence"),
    [
        (decode, payload, sentence)
        for decode, cases in INVALID_PAYLOADS
        for payload, sentence in cases
    ],
)
def test_explains_the_fault(decode: Any, payload: Any, sentence: str) -> None:
    with pytest.raises(WireError) as failure:
        decode(payload)
    assert sentence in str(failure.value)
