"""Slicing a body: every field and message is found at its place, and equals the result of a full parse."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.errors import WireError
from everthread.gateway.request.json_slices import BodyEdit, SharedParts, slice_body, splice

TEXTS = st.text('abc é漢😀"\\\n{}[],:', max_size=12)
VALUES: Any = st.recursive(
    st.one_of(
        st.booleans(),
        st.none(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False, allow_infinity=False),
        TEXTS,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)


@given(
    messages=st.lists(VALUES, max_size=6),
    before=st.dictionaries(TEXTS.filter(lambda name: name != "messages"), VALUES, max_size=3),
    behind=st.dictionaries(TEXTS.map(lambda name: f"{name}_"), VALUES, max_size=3),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
)
def test_spans_point_at_each_field_and_message(
    messages: list[Any],
    before: dict[str, Any],
    behind: dict[str, Any],
    indent: int | None,
    ascii_only: bool,
) -> None:
    body = {
        **before,
        "messages": messages,
        **{key: value for key, value in behind.items() if key not in before},
    }
    raw = json.dumps(body, indent=indent, ensure_ascii=ascii_only).encode()
    slices = slice_body(raw, "openai_chat")
    values = [element.value for element in slices.messages]
    assert values == messages
    assert [json.loads(element.raw) for element in slices.messages] == messages
    assert slices.fields == {key: value for key, value in body.items() if key != "messages"}
    assert {key: json.loads(raw[start:end]) for key, (start, end) in slices.spans.items()} == body
    edits = [BodyEdit(element.start, element.end, "0") for element in slices.messages]
    assert json.loads(splice(raw, edits)) == {
        **body,
        "messages": [0] * len(messages),
    }
    tail = len(raw) - slices.spans["messages"][1]
    for count in range(1, len(messages) + 1):  # the same from any message on
        for known_tail in (0, tail):
            shared_parts = SharedParts(slices, count, known_tail)
            slices_again = slice_body(raw, "openai_chat", shared_parts)
            assert slices_again.fields == slices.fields
            assert slices_again.spans == slices.spans
            assert [(one.start, one.end) for one in slices_again.messages] == [
                (one.start, one.end) for one in slices.messages
            ]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"messages"}',
        b'{"messages": [}',
        b'{"messages": [1,]}',
        b'{"messages": []} x',
        b'{"messages": [], "messages": [1]}',
        b'{"a": 1, "messages": [], "a": 1}',
        b'{"a": 1, "a": 22, "messages": []}',
        b'{"messages": {}}',
        b'{"model": "m"}',
        b'{"messages": [nan]}',
        b"{}",
        b'{"messages": []',
        b'{"messages": "text"}',
        b'{"messages": [] "a": 1}',
        b'{"a": 1,}',
        b"{1: 2}",
    ],
)
def test_refuses_an_invalid_request_in_a_sentence(body: bytes) -> None:
    with pytest.raises(WireError, match="the request"):
        slice_body(body, "openai_chat")


def test_reads_a_lone_surrogate_as_python_does() -> None:
    body = b'{"messages": [{"content": "\\ud83d"}, "\\\\ud83d \\ud83d\\ude00"], "user": "\\udc00"}'
    slices = slice_body(body, "openai_chat")
    values = [element.value for element in slices.messages]
    assert values == [
        {"content": "\ud83d"},
        "\\ud83d \U0001f600",
    ]
    assert slices.fields == {"user": "\udc00"}


def test_refuses_a_deeply_nested_body() -> None:
    with pytest.raises(WireError):
        slice_body(b'{"messages": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}", "openai_chat")
