"""Identity survives what clients do to a message's looks; byte order sees what a prefix cache sees."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.fingerprints import (
    canonical_form,
    chain_digest,
    message_fingerprint,
)
from tests.chat_messages import (
    assistant_message,
    call_block,
    calls_message,
    function_call,
    result_block,
    result_message,
    user_message,
)
from tests.digest_chains import byte_chain, byte_fingerprint, canonical_chain
from tests.shared_data import shared_path

REMINDER = "<system-reminder>\nThe todo list is empty.\n</system-reminder>"
MARK = {"type": "ephemeral"}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=12,
)
texts = st.text(max_size=12)
parts = st.lists(st.builds(lambda text: {"type": "text", "text": text}, texts), max_size=3)
messages = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["user", "assistant", "tool", "system"]),
    texts | parts | st.none(),
)


def text_part(text: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "text",
        "text": text,
        **more,
    }


def call(arguments: Any) -> Any:
    return calls_message(function_call("c1", "edit", arguments))


SAME_IDENTITY = {
    "string is one text block": ("hello", [text_part("hello")]),
    "a bare string in a list is a text block": ("hello", ["hello"]),
    "cache marker on a block": ("hello", [text_part("hello", cache_control=MARK)]),
    "surrounding whitespace": ("hello", "\n  hello \t\n"),
    "key order": ([text_part("hello")], [{"text": "hello", "type": "text"}]),
    "reminder inside the text": ("hello", f"hello\n\n{REMINDER}"),
    "reminder as a block of its own": (
        "hello",
        [text_part(REMINDER), text_part("hello")],
    ),
    "another reminder": (
        f"hello {REMINDER}",
        "hello <system-reminder>Two files changed.</system-reminder>",
    ),
    "only a reminder, whatever it says": (
        REMINDER,
        "<system-reminder>x</system-reminder>",
    ),
    "nothing: null, empty text, no parts": (None, ""),
    "nothing: no parts": (None, []),
    "nothing: an empty text block": (None, [text_part("  ")]),
    "result content: string or block": (
        [result_block("t", f"ok\n{REMINDER}")],
        [result_block("t", [text_part("ok", cache_control=MARK)])],
    ),
    "empty optional fields of a part": (
        [text_part("hello")],
        [text_part("hello", annotations=[], citations=None)],
    ),
}


@pytest.mark.parametrize("pair", SAME_IDENTITY.values(), ids=SAME_IDENTITY.keys())
def test_ignores_formatting_changes(
    pair: tuple[Any, Any],
) -> None:
    one, other = (user_message(content) for content in pair)
    assert message_fingerprint(one) == message_fingerprint(other)


@pytest.mark.parametrize(
    "extra",
    [
        {"cache_control": MARK},
        {"_native": {"api": "anthropic", "value": {"role": "user"}}},
        {"name": None},
        {"tool_calls": []},
        {"reasoning_content": ""},
        {"metadata": {}},
        {"metadata": {"_seen": 1, "cache_control": MARK}},
    ],
)
def test_ignores_private_keys_cache_marks_and_empty_fields(
    extra: dict[str, Any],
) -> None:
    message = user_message("hello")
    assert message_fingerprint({**extra, **message}) == message_fingerprint(message)


def test_ignores_formatting_of_call_arguments() -> None:
    assert message_fingerprint(call('{"path":"a","line":1}')) == message_fingerprint(
        call('{ "line": 1, "path": "a" }\n')
    )
    assert message_fingerprint(call('{"path":"a"}')) == message_fingerprint(call({"path": "a"}))


DIFFERENT = [
    (user_message("a"), assistant_message("a")),
    (user_message("a b"), user_message("a  b")),
    (
        user_message([text_part("a"), text_part("b")]),
        user_message([text_part("ab")]),
    ),
    (
        user_message([text_part("a"), text_part("b")]),
        user_message("a\nb"),
    ),
    ({"role": "tool", "tool_call_id": "1"}, {"role": "tool", "tool_call_id": "2"}),
    ({"role": "user", "n": 0}, {"role": "user"}),
    ({"role": "user", "n": False}, {"role": "user", "n": 0}),
    (user_message("1"), user_message(1)),
    (call('{"path":"a"}'), call('{"path":"b"}')),
    (call('{"path":"a"}'), call('{"path":"a", "_id":1}')),
    (call('{"path":"a"}'), call('{"path":"a", "cache_control":null}')),
    (call('{"path":"a", "x": []}'), call('{"path":"a"}')),
    (call('{"path":'), call('{"path": ')),
    (call("[1]"), call("[1] ")),
    (assistant_message(REMINDER), assistant_message("")),
    (user_message("\ud800"), user_message("\ud801")),
    *(
        (
            user_message(text.format("a")),
            user_message(text.format("b")),
        )
        for text in (
            "This session is being continued from a previous conversation about {}.",
            "<command-name>/{}</command-name>",
            "<persisted-output>{}</persisted-output>",
        )
    ),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_messages_have_different_fingerprints(one: Any, other: Any) -> None:
    assert message_fingerprint(one) != message_fingerprint(other)
    assert byte_fingerprint(one) != byte_fingerprint(other)


def test_empty_messages_differ_by_role() -> None:
    reminder = user_message(REMINDER)
    assert canonical_form(reminder) == {"role": "user"}
    assert canonical_chain([reminder]) != canonical_chain([])
    assert canonical_chain([reminder, reminder])[1] != canonical_chain([reminder])[0]


def test_byte_form_ignores_only_cache_marks_private_keys_and_string_form() -> None:
    plain = user_message("hello")
    seen = byte_fingerprint(plain)
    assert byte_fingerprint(user_message([text_part("hello", cache_control=MARK)])) == seen
    assert (
        byte_fingerprint(
            {
                **plain,
                "cache_control": MARK,
                "_native": {"api": "anthropic", "value": 1},
            }
        )
        == seen
    )
    for changed in (
        {"content": "hello", "role": "user"},
        user_message([{"text": "hello", "type": "text"}]),
        user_message("hello "),
        user_message(f"hello{REMINDER}"),
        {"role": "user", "content": "hello", "name": None},
    ):
        assert byte_fingerprint(changed) != seen


def test_byte_form_keeps_tool_data() -> None:
    def written(data: Any) -> str:
        block = call_block("t", "put", data)
        return byte_fingerprint(assistant_message([block]))

    variants = [
        {"content": "x", "cache_control": 1, "_id": 2},
        {"content": "x", "_id": 2, "cache_control": 1},
        {"content": "x", "cache_control": 1},
        {"content": "x"},
        {"content": [text_part("x")]},
    ]
    assert len({written(data) for data in variants}) == len(variants)


def test_stored_digests_stay_valid() -> None:
    """Stored digests must still be found after an update: a change here orphans every stored chain."""
    history = [
        {"role": "system", "content": "You are careful."},
        user_message(
            [
                text_part(f"把它修好 {REMINDER}"),
                text_part("now 😀", cache_control=MARK),
            ]
        ),
        {
            **call('{"path": "a.py", "ratio": 0.1, "deep": [1, null, true]}'),
            "reasoning_content": "hm",
        },
        result_message("c1", "ok\n"),
    ]
    assert canonical_chain(history) == GOLDEN_CANONICAL
    assert message_fingerprint(history[1]) == GOLDEN_MESSAGE


GOLDEN_CANONICAL = [
    "a980ba32ea388b52267163e4e11a3c97ba0196e6",
    "1d96eb632cc938e98df9e6819d5aa3b2aecf7c48",
    "1c23a83ed4ab1f0d206ac900368bbc90f842144c",
    "04bed5cffd89b81e46221583434a8cba100b472d",
]
GOLDEN_MESSAGE = "484d32e27b2209b12925ac0c0c8e3fd91f970517"


@given(st.lists(messages, max_size=6), st.integers(0, 6))
def test_a_chain_extends_step_by_step_and_can_be_resumed(history: list[Any], cut: int) -> None:
    for fingerprint, digests in (
        (message_fingerprint, canonical_chain(history)),
        (byte_fingerprint, byte_chain(history)),
    ):
        assert len(digests) == len(history)
        kept = history[:cut]
        resumed = digests[len(kept) - 1] if kept else ""
        for message, digest in zip(history[cut:], digests[cut:], strict=True):
            resumed = chain_digest(resumed, fingerprint(message))
            assert resumed == digest


@given(st.lists(messages, max_size=5), st.lists(messages, max_size=5))
def test_histories_share_digests_up_to_their_first_difference(
    one: list[Any], other: list[Any]
) -> None:
    forms = [
        [json.dumps(canonical_form(m), sort_keys=True) for m in history] for history in (one, other)
    ]
    for x, y, length in zip(
        canonical_chain(one), canonical_chain(other), range(1, 6), strict=False
    ):
        assert (x == y) == (forms[0][:length] == forms[1][:length])


def test_chains_differ_by_kind_and_by_order() -> None:
    a = user_message("a")
    b = user_message("b")
    assert canonical_chain([a])[0] != byte_chain([a])[0]
    assert canonical_chain([a, b])[1] != canonical_chain([b, a])[1]
    assert message_fingerprint(a) != canonical_chain([a])[0]


@given(json_values)
def test_any_json_has_a_stable_fingerprint_and_is_not_mutated(value: Any) -> None:
    before = copy.deepcopy(value)
    for wrapped in (
        value,
        user_message(value),
        {
            "role": value,
            "tool_calls": value,
            "input": value,
        },
    ):
        assert message_fingerprint(wrapped) == message_fingerprint(copy.deepcopy(wrapped))
        assert byte_fingerprint(wrapped) == byte_fingerprint(copy.deepcopy(wrapped))
    assert repr(value) == repr(before)


def test_deep_nesting_does_not_exhaust_the_stack() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for message in (
        user_message(deep),
        {
            "role": "user",
            "input": {"a": deep},
        },
        deep,
    ):
        assert message_fingerprint(message)
        assert byte_fingerprint(message)
    assert message_fingerprint(call("[" * 100_000)) != message_fingerprint(call("[" * 100_001))


def test_values_outside_json_do_not_raise() -> None:
    message = {
        "role": "user",
        "content": ("a", b"b"),
        1: "c",
        "n": float("nan"),
    }
    assert message_fingerprint(message) != message_fingerprint({**message, "content": ("a", b"c")})
    assert byte_fingerprint(message) != byte_fingerprint({**message, "content": ("a", b"c")})


def test_real_requests_extend_each_other() -> None:
    """Successive recorded requests of one conversation: each chain continues the previous one."""
    for family in ("claude", "deepseek"):
        files = sorted(
            path for path in shared_path("requests").glob("*.json") if family in path.name
        )
        requests = [json.loads(path.read_text("utf-8"))["messages"] for path in files]
        for older, newer in pairwise(requests):
            assert canonical_chain(newer)[: len(older)] == canonical_chain(older)
            assert byte_chain(newer)[: len(older)] == byte_chain(older)
