from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given
from openai import pydantic_function_tool
from pydantic import BaseModel

from everthread.core.messages import Message, with_content
from everthread.core.types import Reply, Request
from everthread.errors import WireError
from everthread.wire import openai_chat as chat
from everthread.wire.native_values import with_native
from tests.shared_data import shared_path
from tests.wire import openai_strategies as made
from tests.wire.openai_sdk import golden, sdk
from tests.wire.recording import json_reply

USER: Message = {"role": "user", "content": "hi"}
PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}


def completion(
    message: dict[str, Any], finish_reason: str | None = "stop", **fields: Any
) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": finish_reason,
        "logprobs": None,
    }
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    head = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-5",
        "usage": usage,
    }
    return {**head, "choices": [choice], **fields}


def round_trip(body: dict[str, Any]) -> dict[str, Any]:
    return chat.encode_request(chat.decode_request(body))


def encode(*messages: Any, model: str | None = None) -> list[dict[str, Any]]:
    return chat.encode_messages(cast("list[Message]", list(messages)), model=model)


# Requests of the SDK


class Weather(BaseModel):
    city: str
    degrees: float


class Lookup(BaseModel):
    """Look a city up."""

    city: str


def _capture_create() -> Any:
    with sdk(json_reply(completion({"role": "assistant", "content": "ok"}))) as (
        client,
        server,
    ):
        client.chat.completions.create(
            model="gpt-5",
            messages=[
                {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
                {
                    "role": "user",
                    "name": "ada",
                    "content": [
                        {"type": "text", "text": "看看这张图 and say what it is"},
                        {
                            "type": "image_url",
                            "image_url": {
                                "url": "data:image/png;base64,iVBO",
                                "detail": "low",
                            },
                        },
                        {
                            "type": "input_audio",
                            "input_audio": {"data": "UklGRg==", "format": "wav"},
                        },
                        {
                            "type": "file",
                            "file": {
                                "filename": "a.pdf",
                                "file_data": "data:application/pdf;base64,JV",
                            },
                        },
                    ],
                },
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "c1",
                            "type": "function",
                            "function": {
                                "name": "look",
                                "arguments": '{"city": "Oslo"}',
                            },
                        },
                        {
                            "id": "c2",
                            "type": "custom",
                            "custom": {"name": "sql", "input": "select 1"},
                        },
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "4 degrees"},
                {
                    "role": "tool",
                    "tool_call_id": "c2",
                    "content": [{"type": "text", "text": "1"}],
                },
                {"role": "developer", "content": "From here on answer in French."},
                {
                    "role": "assistant",
                    "content": [{"type": "refusal", "refusal": "I cannot."}],
                },
                {"role": "assistant", "audio": {"id": "audio_1"}},
                {"role": "user", "content": "Why not?"},
            ],
            tools=[
                {
                    "type": "function",
                    "function": {
                        "name": "look",
                        "description": "d",
                        "strict": True,
                        "parameters": {"type": "object"},
                    },
                },
                {
                    "type": "custom",
                    "custom": {
                        "name": "sql",
                        "format": {
                            "type": "grammar",
                            "grammar": {"definition": "x", "syntax": "lark"},
                        },
                    },
                },
            ],
            tool_choice="auto",
            temperature=0.2,
            max_completion_tokens=100,
            metadata={"k": "v"},
            extra_body={"provider": {"order": ["a"]}},
        )
    return server.requests[0].body


def _capture_parse() -> Any:
    answer = {"role": "assistant", "content": '{"city": "Oslo", "degrees": 4}'}
    with sdk(json_reply(completion(answer))) as (client, server):
        parsed = client.chat.completions.parse(
            model="gpt-5",
            messages=[
                {"role": "developer", "content": "Be exact."},
                {"role": "user", "content": "Oslo?"},
            ],
            response_format=Weather,
            tools=[pydantic_function_tool(Lookup)],
        )
    assert parsed.choices[0].message.parsed == Weather(city="Oslo", degrees=4)
    return server.requests[0].body


def _capture_echo() -> Any:
    """An answer put back into the history the way the SDK's users do it."""
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "look", "arguments": "{}"},
    }
    first = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "tool_calls": [call],
    }
    done = {"role": "assistant", "content": "done"}
    with sdk(
        json_reply(completion(first, "tool_calls")), json_reply(completion(done))
    ) as (client, server):
        messages: list[Any] = [{"role": "user", "content": "go"}]
        reply = client.chat.completions.create(model="gpt-5", messages=messages)
        messages += [
            reply.choices[0].message,
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        ]
        client.chat.completions.create(model="gpt-5", messages=messages)
    return server.requests[1].body


CAPTURES = {"create": _capture_create, "parse": _capture_parse, "echo": _capture_echo}


@pytest.mark.parametrize("name", CAPTURES)
def test_what_the_sdk_sends_comes_back_verbatim(name: str) -> None:
    body = golden(f"openai_chat_{name}", CAPTURES[name]())
    assert round_trip(body) == body


@pytest.mark.parametrize("native", [True, False])
def test_the_sdk_reads_what_a_reply_is_encoded_to(native: bool) -> None:
    call: Any = {
        "id": "c1",
        "type": "function",
        "function": {"name": "look", "arguments": '{"a": 1}'},
    }
    message: Message = {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [call],
    }
    usage = {"input_tokens": 3, "cache_read_input_tokens": 2, "output_tokens": 4}
    reply = Reply(
        message=message, stop="tool_calls", usage=usage, model="claude", id="msg_1"
    )
    if native:
        reply = chat.decode_reply(chat.encode_reply(reply))
    with sdk(json_reply(chat.encode_reply(reply))) as (client, _):
        read = client.chat.completions.create(
            model="claude", messages=[{"role": "user", "content": "hi"}]
        )
    choice = read.choices[0]
    assert (read.id, read.model, choice.finish_reason, choice.message.content) == (
        "msg_1",
        "claude",
        "tool_calls",
        "Let me see.",
    )
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].to_dict() == call
    assert read.usage is not None
    assert (
        read.usage.prompt_tokens,
        read.usage.completion_tokens,
        read.usage.total_tokens,
    ) == (5, 4, 9)
    assert read.usage.prompt_tokens_details is not None
    assert read.usage.prompt_tokens_details.cached_tokens == 2


def test_recorded_requests_and_replies_come_back_verbatim() -> None:
    for path in sorted(shared_path("requests").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        body = {"model": "m", "messages": record["messages"], **record["kwargs"]}
        request = chat.decode_request(body)
        assert chat.encode_request(request) == body, path.name
        assert request.system == record["messages"][0]["content"]
        assert (
            chat.encode_reply(chat.decode_reply(record["response"]))
            == record["response"]
        ), path.name


# Requests


@made.few
@given(made.chat_request)
def test_a_request_comes_back_verbatim(body: dict[str, Any]) -> None:
    before = json.dumps(body)
    assert round_trip(body) == body
    assert json.dumps(body) == before
    for message, wire in zip(
        chat.decode_messages(body["messages"]), body["messages"], strict=True
    ):
        assert message is wire or "_native" in message, (
            "a message that needs nothing is the same object"
        )


@pytest.mark.parametrize("role", ["system", "developer"])
def test_the_leading_prompt_is_the_system(role: str) -> None:
    body = {
        "model": "m",
        "messages": [{"role": role, "content": "Be brief."}, USER],
        "user": "u",
    }
    request = chat.decode_request(body)
    assert (request.system, request.messages) == ("Be brief.", [USER])
    assert round_trip(body) == body


@pytest.mark.parametrize(
    "first",
    [
        {"role": "system", "content": "x", "name": "n"},
        {"role": "system", "content": None},
        {"role": "system", "content": [{"type": "input_text", "text": "x"}]},
        {"role": "user", "content": "x"},
    ],
)
def test_a_first_message_that_is_more_than_a_prompt_stays_in_place(first: Any) -> None:
    body = {"model": "m", "messages": [first, {"role": "system", "content": "y"}]}
    request = chat.decode_request(body)
    assert request.system is None
    assert len(request.messages) == 2
    assert round_trip(body) == body


def test_system_blocks_of_another_api_are_written_in_chats_words() -> None:
    system = [
        {
            "type": "text",
            "text": "a",
            "cache_control": {"type": "ephemeral"},
            "citations": [],
        }
    ]
    [first] = chat.encode_request(Request("m", [], system=system))["messages"]
    assert first == {
        "role": "system",
        "content": [
            {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
        ],
    }


def test_tools_built_into_another_api_are_left_out() -> None:
    function = {
        "type": "function",
        "function": {"name": "f"},
        "_native": {"api": "anthropic", "value": {}},
    }
    built_in = {
        "type": "web_search",
        "_native": {"api": "openai_responses", "value": {"type": "web_search"}},
    }
    dialect = {"type": "builtin_function", "name": "$web_search"}
    assert chat.encode_tools([function, built_in, dialect]) == [
        {"type": "function", "function": {"name": "f"}},
        dialect,
    ]
    assert "tools" not in chat.encode_request(Request("m", [], tools=[built_in]))


@pytest.mark.parametrize("tools", [None, []])
def test_no_tools_stay_what_they_were(tools: Any) -> None:
    body = {"model": "m", "messages": [], "tools": tools}
    assert round_trip(body) == body


def test_what_is_ours_never_crosses_the_wire() -> None:
    injected = {
        "role": "user",
        "content": "x",
        "_native": {"api": "openai_chat", "value": {"role": "system"}},
    }
    request = chat.decode_request(
        {
            "model": "m",
            "messages": [injected],
            "_system_role": "system",
            "tools": [{"_a": 1, "type": "t"}],
        }
    )
    assert request == Request(
        "m", [{"role": "user", "content": "x"}], tools=[{"type": "t"}]
    )
    assert encode({"role": "user", "content": "x", "_kind": "summary"}) == [
        {"role": "user", "content": "x"}
    ]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (None, "the request must be an object, not missing"),
        ([], "the request must be an object, not list"),
        ({"messages": []}, "model must be a string, not missing"),
        ({"model": "m"}, "messages must be a list, not missing"),
        ({"model": "m", "messages": "hi"}, "messages must be a list, not str"),
        (
            {"model": "m", "messages": ["hi"]},
            r"messages\[0\] must be an object, not str",
        ),
        (
            {"model": "m", "messages": [USER, {"content": "x"}]},
            r"messages\[1\].role must be a string, not missing",
        ),
        (
            {"model": "m", "messages": [{"role": "system", "content": "s"}, 5]},
            r"messages\[1\] must be an object, not int",
        ),
        (
            {"model": "m", "messages": [{"role": "user", "content": 5}]},
            r"messages\[0\].content must be a string, a list",
        ),
        (
            {"model": "m", "messages": [{"role": "assistant", "tool_calls": {}}]},
            r"tool_calls must be a list, not dict",
        ),
        (
            {"model": "m", "messages": [], "tools": {"a": 1}},
            "tools must be a list, not dict",
        ),
        (
            {"model": "m", "messages": [], "tools": [1]},
            r"tools\[0\] must be an object, not int",
        ),
    ],
)
def test_what_is_no_request_is_refused_with_a_sentence(
    body: Any, sentence: str
) -> None:
    with pytest.raises(WireError, match=sentence):
        chat.decode_request(body)


# Reasoning


THOUGHTS = [
    {"type": "reasoning.encrypted", "data": "x", "index": 1},
    {"type": "reasoning.text", "text": "hm", "signature": "sig", "index": 0},
]
SIGNED = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "hm",
    "reasoning_details": THOUGHTS,
    "tool_calls": [
        {
            "id": "c",
            "type": "function",
            "function": {"name": "f", "arguments": "{}"},
            "extra_content": {"google": {}},
        },
        "garbage",
    ],
}


def test_reasoning_goes_back_to_the_model_that_wrote_it_and_to_no_other() -> None:
    [message] = chat.decode_messages([SIGNED], model="vendor/m")
    assert encode(message) == encode(message, model="m-2025-01-31") == [SIGNED]
    unsigned = [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        "garbage",
    ]
    assert encode(message, model="other") == [
        {"role": "assistant", "content": "", "tool_calls": unsigned}
    ]


def test_reasoning_is_marked_by_the_name_that_was_asked_for() -> None:
    body = completion(
        {"role": "assistant", "content": "x", "reasoning": "hm"}, model="gpt-5-renamed"
    )
    message = chat.decode_reply(body, model="alias").message
    assert "reasoning" in encode(message, model="alias")[0]
    assert "reasoning" not in encode(message, model="gpt-5-renamed")[0]
    assert (
        "reasoning" in encode(chat.decode_reply(body).message, model="gpt-5-renamed")[0]
    )


def test_reasoning_of_another_api_stays_behind() -> None:
    core: Message = {"role": "assistant", "content": "x", "reasoning_content": "hm"}
    assert encode(with_native(core, "anthropic", {})) == [
        {"role": "assistant", "content": "x"}
    ]
    assert encode(core) == [core]


def test_reasoning_survives_a_cache_marker_and_an_edit_is_sent() -> None:
    [message] = chat.decode_messages(
        [{"role": "assistant", "content": "x", "reasoning": "hm"}], model="m"
    )
    part = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    marked = {**message, "content": [part]}
    assert encode(marked, model="m") == [
        {"role": "assistant", "content": [part], "reasoning": "hm"}
    ]
    assert encode(with_content(message, "y"), model="m")[0]["content"] == "y"


def test_a_message_in_foreign_blocks_is_verbatim_until_it_is_changed() -> None:
    wire = {
        "role": "user",
        "content": [{"type": "image", "source": PNG}],
        "cache_control": {"type": "ephemeral"},
    }
    [message] = chat.decode_messages([wire])
    assert encode(message) == [wire]
    url = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="},
    }
    assert encode(with_content(message, message["content"])) == [
        {"role": "user", "content": [url]}
    ]


def test_message_level_cache_markers_stay_behind_and_part_level_ones_pass() -> None:
    mark = {"type": "ephemeral"}
    marked = {
        "role": "user",
        "content": [{"type": "text", "text": "x", "cache_control": mark}],
    }
    assert encode({**marked, "cache_control": mark}) == [marked]


# Replies


@made.few
@given(made.chat_reply)
def test_a_reply_comes_back_verbatim(body: dict[str, Any]) -> None:
    assert chat.encode_reply(chat.decode_reply(body)) == body


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
def test_why_it_stopped(
    reason: str | None, refusal: str | None, stop: str | None
) -> None:
    body = completion({"role": "assistant", "content": "x", "refusal": refusal}, reason)
    reply = chat.decode_reply(body)
    assert reply.stop == stop
    assert chat.encode_reply(reply) == body


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
def test_a_reply_of_another_api_gets_chats_reason(
    stop: str | None, reason: str | None
) -> None:
    reply = Reply(
        message={"role": "assistant", "content": "x"},
        stop=stop,
        raw={"type": "message", "stop_reason": "?"},
    )
    body = chat.encode_reply(reply)
    assert body["choices"][0]["finish_reason"] == reason
    assert "stop_reason" not in body
    assert "usage" not in body


def test_a_changed_stop_wins_over_the_native_one() -> None:
    reply = chat.decode_reply(completion({"role": "assistant", "content": "x"}))
    changed = Reply(message=reply.message, stop="length", raw=reply.raw)
    assert chat.encode_reply(changed)["choices"][0]["finish_reason"] == "length"


def test_refusals_in_words_are_a_plain_stop_to_a_client() -> None:
    body = chat.encode_reply(
        Reply(
            message={"role": "assistant", "content": None, "refusal": "No."},
            stop="refusal",
        )
    )
    assert body["choices"][0]["finish_reason"] == "stop"


def test_a_client_gets_one_text_whatever_the_blocks() -> None:
    blocks = [
        {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "c", "name": "f"},
        {"type": "text", "text": "b"},
    ]
    message: Message = {"role": "assistant", "content": blocks}
    [choice] = chat.encode_reply(Reply(message=message, stop="tool_calls"))["choices"]
    assert choice["message"]["content"] == "a\nb"
    assert [call["id"] for call in choice["message"]["tool_calls"]] == ["c"]


def test_a_client_may_show_another_apis_reasoning() -> None:
    core: Message = {"role": "assistant", "content": "x", "reasoning_content": "hm"}
    body = chat.encode_reply(Reply(message=with_native(core, "anthropic", {})))
    assert body["choices"][0]["message"] == core


@pytest.mark.parametrize(
    ("body", "sentence"),
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
        ({"choices": [1]}, r"choices\[0\] must be an object, not int"),
        ({"choices": [{}]}, r"choices\[0\].message must be an object, not missing"),
    ],
)
def test_what_is_no_reply_is_refused_with_a_sentence(body: Any, sentence: str) -> None:
    with pytest.raises(WireError, match=sentence):
        chat.decode_reply(body)
