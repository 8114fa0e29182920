"""How much of one request the next one repeats, and where they first differ."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given

from everthread.core.caching.claude_cache_marks import (
    apply_cache_control,
    mark_system,
)
from everthread.core.caching.shared_prefix import compare_prefixes
from everthread.core.types import ModelRequest
from tests.chat_messages import (
    calls_message,
    user_message,
)
from tests.core.caching.marked_messages import MARK, histories, text
from tests.digest_chains import byte_chain
from tests.shared_data import shared_path


def request(*messages: Any, system: Any = "s", tools: Any = ()) -> ModelRequest:
    return ModelRequest("claude-opus-4", list(messages), system, list(tools))


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "parameters": parameters},
    }


def test_longer_request_extends_a_shorter_one_regardless_of_marks() -> None:
    a = request(user_message("a"), user_message("b"), tools=[tool("f")])
    marked = apply_cache_control([*a.messages, user_message("c")])
    b = request(*marked, system=mark_system("s"), tools=[{**tool("f"), "cache_control": MARK}])
    diff = compare_prefixes(a, b)
    assert (diff.shared_messages, diff.is_extension, diff.section) == (2, True, None)
    assert str(diff) == "extends it: all 2 messages are shared"
    assert compare_prefixes(a, request(*a.messages, user_message("c"), tools=a.tools)).is_extension
    assert not compare_prefixes(b, a).is_extension
    assert compare_prefixes(request(system=None), request(system="")).is_extension


CALL = calls_message(
    {
        "id": "c",
        "function": {"name": "f", "arguments": "{}"},
    }
)


EDITED = {
    **CALL,
    "tool_calls": [
        {
            "id": "c",
            "function": {"name": "f", "arguments": "{ }"},
        }
    ],
}


LONG = "x" * 100


CHANGES: dict[str, tuple[ModelRequest, ModelRequest, str]] = {
    "a word in a message": (
        request(user_message("a"), user_message("fix the test")),
        request(user_message("a"), user_message("fix the tent")),
        'messages[1].content[0].text: "fix the test" became "fix the tent"',
    ),
    "far into a long text": (
        request(user_message(f"{LONG}a{LONG}")),
        request(user_message(f"{LONG}b{LONG}")),
        f'messages[0].content[0].text: "…{LONG[:20]}a{LONG[:39]}…" became "…{LONG[:20]}b{LONG[:39]}…"',
    ),
    "a call's arguments": (
        request(CALL),
        request(EDITED),
        'messages[0].tool_calls[0].function.arguments: "{}" became "{ }"',
    ),
    "a field came": (
        request(user_message("a")),
        request({**user_message("a"), "name": "x"}),
        'messages[0].name: nothing became "x"',
    ),
    "a field went": (
        request({"name": "x", **user_message("a")}),
        request(user_message("a")),
        'messages[0].name: "x" became nothing',
    ),
    "the last field went": (
        request({**user_message("a"), "name": "x"}),
        request(user_message("a")),
        'messages[0].name: "x" became nothing',
    ),
    "the order of keys": (
        request(user_message("a")),
        request({"content": "a", "role": "user"}),
        'messages[0]: {"role":"user","content":[{"type":"text"… became {"content":[{"type":"text","text":"a"}],…',
    ),
    "a number that only looks equal": (
        request({**user_message("a"), "n": 1}),
        request({**user_message("a"), "n": True}),
        "messages[0].n: 1 became true",
    ),
    "another shape": (
        request(user_message([text("a")])),
        request(user_message(None)),
        'messages[0].content: [{"type":"text","text":"a"}] became null',
    ),
    "a block came": (
        request(user_message([text("a")])),
        request(user_message([text("a"), text("b")])),
        'messages[0].content[1]: nothing became {"type":"text","text":"b"}',
    ),
    "a message went": (
        request(user_message("a"), user_message("b")),
        request(user_message("a")),
        'messages[1]: {"role":"user","content":[{"type":"text"… became nothing',
    ),
    "the system prompt": (
        request(user_message("a"), system="It is noon."),
        request(user_message("a"), system="It is nine."),
        'system[0].text: "It is noon." became "It is nine."',
    ),
    "a system prompt came": (
        request(system=None),
        request(system="s"),
        'system: null became [{"type":"text","text":"s"}]',
    ),
    "a tool's schema, before everything else": (
        request(user_message("a"), tools=[tool("f", cache_control={"type": "string"})]),
        request(user_message("b"), tools=[tool("f")], system="other"),
        'tools[0].function.parameters.cache_control: {"type":"string"} became nothing',
    ),
    "a tool came": (
        request(),
        request(tools=[{"name": "f"}]),
        'tools[0]: nothing became {"name":"f"}',
    ),
}


@pytest.mark.parametrize(("a", "b", "words"), CHANGES.values(), ids=CHANGES.keys())
def test_explains_the_first_difference(a: ModelRequest, b: ModelRequest, words: str) -> None:
    diff = compare_prefixes(a, b)
    assert str(diff) == words
    assert not diff.is_extension
    assert diff.shared_messages == (diff.index or 0)
    assert (diff.index is not None) == (diff.section == "messages")


@given(histories, histories, histories)
def test_shared_prefix_matches_the_byte_chain(common: Any, one: Any, other: Any) -> None:
    a = request(*common, *one)
    b = request(*copy.deepcopy(common), *other)
    before = copy.deepcopy((a, b))
    chains = zip(byte_chain(a.messages), byte_chain(b.messages), strict=False)
    equal = sum(x == y for x, y in chains)
    diff = compare_prefixes(a, b)
    assert diff.shared_messages == equal >= len(common)
    assert diff.is_extension == (equal == len(a.messages))
    assert (a, b) == before


def test_a_huge_text_is_compared_in_linear_time() -> None:
    words = "ab" * 2_000_000
    diff = compare_prefixes(request(user_message(f"{words}x")), request(user_message(f"{words}y")))
    assert (diff.old_excerpt, diff.new_excerpt) == (
        '"…' + "ab" * 10 + 'x"',
        '"…' + "ab" * 10 + 'y"',
    )


def test_real_requests_extend_each_other() -> None:
    for family in ("claude", "deepseek"):
        files = sorted(
            path for path in shared_path("requests").glob("*.json") if family in path.name
        )
        bodies = [json.loads(path.read_text("utf-8")) for path in files]
        requests = [
            ModelRequest("m", body["messages"], None, body["tools"] or []) for body in bodies
        ]
        for older, newer in pairwise(requests):
            newer_marked = ModelRequest("m", apply_cache_control(newer.messages), None, newer.tools)
            assert str(compare_prefixes(older, newer_marked)).startswith("extends")


def test_deep_nesting_does_not_exhaust_the_stack() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    message = user_message(deep)
    diff = compare_prefixes(request(message, message), request(user_message("a")))
    assert diff.shared_messages == 0
