"""Requests a real provider would refuse are refused, in its words."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from everthread import classify_error
from everthread.lab.provider import Provider
from tests.chat_messages import calls_message, function_call, result_message
from tests.lab.official_clients import CLAUDE, GPT, open_clients

MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def call(call_id: str) -> Any:
    return function_call(call_id, "ls")


def text(words: str, mark: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "text", "text": words, **(mark or {})}


CHAT: list[tuple[list[Any], str]] = [
    ([], "empty array"),
    (
        [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "tool_calls": [call("c1")]},
        ],
        "did not have response.*c1",
    ),
    (
        [result_message("c1", "x")],
        "must be a response to a preceeding message",
    ),
    (
        [
            {"role": "user", "content": "Hi"},
            calls_message(text="a"),
        ],
        "empty array",
    ),
    ([{"role": "robot", "content": "Hi"}], "robot"),
    ([{"role": "user"}], "needs content"),
]
RESPONSES: list[tuple[list[Any], str]] = [
    ([], "Missing required parameter: 'input'"),
    (
        [
            {"role": "user", "content": "x"},
            {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": "{}"},
        ],
        "No tool output found for function call c1",
    ),
    (
        [{"type": "function_call_output", "call_id": "c1", "output": "x"}],
        "No tool call found .* call_id c1",
    ),
]
USE = {"type": "tool_use", "id": "t1", "name": "ls", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t9"}
ANSWER = {"type": "tool_result", "tool_use_id": "t1", "content": "a"}
THINKING = {"type": "enabled", "budget_tokens": 1024}
THOUGHT = {"type": "thinking", "thinking": "a", "signature": "s"}


def alternating_request(*contents: Any, **fields: Any) -> dict[str, Any]:
    """A request in which the user and the assistant speak in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": content} for at, content in enumerate(contents)]
    return {"messages": messages, **fields}


MESSAGES: list[tuple[dict[str, Any], str]] = [
    (alternating_request(), "at least one message is required"),
    (alternating_request("Hi", [USE]), r"messages\.1: `tool_use` ids were found .* t1"),
    (
        alternating_request([RESULT]),
        r"messages\.0\.content\.0: unexpected `tool_use_id` .* t9",
    ),
    (alternating_request(" "), "non-empty content"),
    (
        {"messages": [{"role": "assistant", "content": "Hi"}]},
        "first message must be the user",
    ),
    (
        alternating_request([text("a", MARK)] * 5),
        r"A maximum of 4 blocks with cache_control may be provided\. Found 5\.",
    ),
    (alternating_request([text("a", MARK)] * 4 + [text("b")], **MARK), r"Found 5\."),
    (
        alternating_request([text("a", MARK), text("b", HOUR)]),
        r"messages\.0\.content\.1\.cache_control\.ttl: a ttl='1h' .* after",
    ),
    (
        alternating_request([text("b", HOUR)], system=[text("a", MARK)]),
        "processed in the following order: `tools`, `system`",
    ),
    (
        alternating_request([text("b", HOUR)], **MARK),
        "the last block is marked with ttl='1h' already",
    ),
    (alternating_request([text("b"), text(" ", MARK)]), "cannot be set for empty text"),
    (
        alternating_request("Hi", [USE], [ANSWER], thinking=THINKING),
        r"messages\.1\.content\.0\.type: Expected `thinking` or .* `tool_use`",
    ),
    (
        alternating_request("Hi", [{**THOUGHT, **MARK}, text("b")], "c"),
        "Extra inputs are not permitted",
    ),
]


async def test_refuses_invalid_chat_requests() -> None:
    async with open_clients(Provider(script=[])) as clients:
        for messages, words in CHAT:
            with pytest.raises(openai.BadRequestError, match=words) as caught:
                await clients.openai.chat.completions.create(model=GPT, messages=messages)
            assert classify_error(caught.value).kind == "other"


async def test_refuses_invalid_responses_requests() -> None:
    async with open_clients(Provider(script=[])) as clients:
        for items, words in RESPONSES:
            with pytest.raises(openai.BadRequestError, match=words) as caught:
                await clients.openai.responses.create(model=GPT, input=items)
            assert classify_error(caught.value).kind == "other"


async def test_refuses_invalid_anthropic_requests() -> None:
    async with open_clients(Provider(script=[])) as clients:
        for fields, words in MESSAGES:
            with pytest.raises(anthropic.BadRequestError, match=words) as caught:
                await clients.claude.messages.create(
                    model=CLAUDE, **{"max_tokens": 9_000, **fields}
                )
            assert classify_error(caught.value).kind == "other"
        with pytest.raises(anthropic.BadRequestError, match="max_tokens: Field required"):
            await clients.claude.post(
                "/v1/messages",
                cast_to=object,
                body={"model": CLAUDE, "messages": [{"role": "user", "content": "Hi"}]},
            )


async def test_accepts_a_valid_request() -> None:
    provider = Provider()
    async with open_clients(provider) as clients:
        turn: list[Any] = [
            {"role": "user", "content": [text("list", MARK)]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "a", "signature": "theirs"},
                    USE,
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a", **MARK}],
            },
        ]
        system: Any = [text("Be careful.", HOUR)]
        tools: Any = [{"name": "ls", "input_schema": {"type": "object"}, **HOUR}]
        await clients.claude.messages.create(
            model=CLAUDE, max_tokens=9, messages=turn, system=system, tools=tools
        )
    assert [record.status for record in provider.log] == [200]


async def test_limits_cache_marks_of_claude_over_chat() -> None:
    async with open_clients(Provider({"anthropic/claude-sonnet-5": 200_000})) as clients:
        messages: Any = [{"role": "user", "content": [text(word, MARK) for word in "abcde"]}]
        with pytest.raises(openai.BadRequestError, match=r"A maximum of 4 blocks .* Found 5\."):
            await clients.openai.chat.completions.create(
                model="anthropic/claude-sonnet-5", messages=messages
            )
