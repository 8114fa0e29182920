"""A request as a cache sees it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from everthread.core.tokens import TokenCounter
from everthread.lab.provider.cache import digest_prefixes
from everthread.lab.provider.prompt_blocks import Prompt, PromptReader
from everthread.lab.provider.served_models import ANTHROPIC, CHAT, RESPONSES, Protocol

MARK = {"cache_control": {"type": "ephemeral"}}
BODY: dict[str, Any] = {
    "model": "claude-sonnet-5",
    "max_tokens": 100,
    "tools": [
        {
            "name": "ls",
            "description": "Lists.",
            "input_schema": {"type": "object", "properties": {}},
        },
        {
            "name": "cat",
            "description": "Reads a file.",
            "input_schema": {"type": "object", "properties": {}},
            **MARK,
        },
    ],
    "system": [
        {"type": "text", "text": "You are careful."},
        {"type": "text", "text": "Be brief.", **MARK},
    ],
    "messages": [
        {"role": "user", "content": "What is in here?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I should look.", "signature": "s"},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "t1", "name": "ls", "input": {"path": "."}},
                {"type": "tool_use", "id": "t2", "name": "cat", "input": {"path": "a"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "a b c"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "content": [{"type": "text", "text": "hello", **MARK}],
                },
                {"type": "text", "text": "And now?", **MARK},
            ],
        },
    ],
}
CHAT_BODY: dict[str, Any] = {
    "model": "anthropic/claude-sonnet-5",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "Be brief.", **MARK}]},
        {"role": "user", "content": [{"type": "text", "text": "Hello there", **MARK}]},
        {"role": "assistant", "content": "Hi."},
    ],
}


def read(protocol: Protocol, body: dict[str, Any]) -> Prompt:
    return PromptReader(body["model"]).read(protocol.api, protocol.codec.decode_request(body), body)


def test_orders_tools_system_prompt_and_messages() -> None:
    prompt = read(ANTHROPIC, BODY)
    assert [block.path for block in prompt.blocks] == [
        *("tools.0", "tools.1", "system.0", "system.1", "messages.0.content.0"),
        *(f"messages.1.content.{at}" for at in range(4)),
        *(f"messages.2.content.{at}" for at in range(3)),
    ]
    assert [block.kind for block in prompt.blocks[4:]] == [
        *(
            "text",
            "thinking",
            "text",
            "tool_use",
            "tool_use",
            "tool_result",
            "tool_result",
            "text",
        )
    ]
    assert [block.path for block in prompt.blocks if block.mark] == [
        *("tools.1", "system.1", "messages.2.content.1", "messages.2.content.2")
    ]


@pytest.mark.parametrize(
    ("protocol", "body"),
    [
        (ANTHROPIC, BODY),
        (CHAT, CHAT_BODY),
        (
            RESPONSES,
            {
                "model": "gpt-5",
                "instructions": "Be brief.",
                "input": [{"role": "user", "content": "Hello"}],
            },
        ),
        (
            CHAT,
            {
                "model": "gpt-5",
                "messages": [{"role": "user", "content": "Hello"}],
                "tools": [{"type": "function"}],
            },
        ),
    ],
)
def test_counts_the_tokens_of_the_request(protocol: Protocol, body: dict[str, Any]) -> None:
    request = protocol.codec.decode_request(body)
    counter = TokenCounter(body["model"])
    expected = counter.request(request.messages, system=request.system, tools=request.tools)
    reader = PromptReader(body["model"])
    for _ in range(2):
        prompt = reader.read(protocol.api, protocol.codec.decode_request(copy.deepcopy(body)), body)
        assert prompt.tokens == expected
        assert all(block.tokens >= 0 for block in prompt.blocks)


def test_ignores_marks_and_the_form_of_a_text() -> None:
    plain = copy.deepcopy(BODY)
    plain["messages"][0]["content"] = [{"type": "text", "text": "What is in here?", **MARK}]
    for part in (
        plain["tools"][1],
        plain["system"][1],
        plain["messages"][2]["content"][2],
    ):
        del part["cache_control"]
    assert digest_prefixes(read(ANTHROPIC, plain).blocks) == digest_prefixes(
        read(ANTHROPIC, BODY).blocks
    )


@pytest.mark.parametrize(
    ("change", "first"),
    [
        (lambda body: body["tools"][0].update(description="Other."), 0),
        (lambda body: body["system"][1].update(text="Be long."), 3),
        (lambda body: body["messages"][0].update(content="Other?"), 4),
        (lambda body: body["messages"][1]["content"][2]["input"].update(path="x"), 7),
        (lambda body: body.update(tool_choice={"type": "any"}), 4),
        (lambda body: body.update(thinking={"type": "adaptive"}), 4),
        (lambda body: body["messages"][2]["content"][1].update(is_error=True), 10),
    ],
)
def test_a_change_alters_all_later_digests(change: Any, first: int) -> None:
    changed = copy.deepcopy(BODY)
    change(changed)
    before = digest_prefixes(read(ANTHROPIC, BODY).blocks)
    after = digest_prefixes(read(ANTHROPIC, changed).blocks)
    assert before[:first] == after[:first]
    assert all(x != y for x, y in zip(before[first:], after[first:], strict=True))


def test_distinguishes_the_order_of_keys() -> None:
    turned = copy.deepcopy(BODY)
    call = turned["messages"][1]["content"][2]
    turned["messages"][1]["content"][2] = {key: call[key] for key in reversed(call)}
    assert (
        digest_prefixes(read(ANTHROPIC, turned).blocks)[-1]
        != digest_prefixes(read(ANTHROPIC, BODY).blocks)[-1]
    )


def test_distinguishes_the_roles() -> None:
    one = {
        "model": "claude-sonnet-5",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "Yes."}],
    }
    two = json.loads(json.dumps(one).replace('"user"', '"assistant"'))
    assert digest_prefixes(read(ANTHROPIC, one).blocks) != digest_prefixes(
        read(ANTHROPIC, two).blocks
    )


def test_puts_an_automatic_mark_on_the_last_markable_block() -> None:
    bare = {
        "model": "claude-sonnet-5",
        "max_tokens": 1,
        "cache_control": {"type": "ephemeral", "ttl": "1h"},
    }
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [thought]},
    ]
    prompt = read(ANTHROPIC, {**bare, "messages": messages})
    assert [(block.path, block.mark) for block in prompt.blocks if block.mark] == [
        ("messages.0.content.0", "1h")
    ]
    marked = read(ANTHROPIC, {**BODY, "cache_control": {"type": "ephemeral"}})
    assert sum(block.marks for block in marked.blocks) == 4


def test_reads_marks_in_chat_requests() -> None:
    prompt = read(CHAT, CHAT_BODY)
    assert [block.path for block in prompt.blocks if block.mark] == [
        "system.0",
        "messages.0.content.0",
    ]
