"""Detect the protocol of a recorded conversation."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.errors import InputError
from everthread.wire.codecs import decode_any
from tests.chat_messages import (
    assistant_message,
    call_block,
    result_message,
    text_part,
    user_message,
)

HI = user_message("hi")
USE = assistant_message([call_block("t", "f", {})])


@pytest.mark.parametrize(
    ("value", "api"),
    [
        ([HI], "openai_chat"),
        ([], "openai_chat"),
        ({"messages": [HI], "tools": None, "system": None}, "openai_chat"),
        (
            {
                "messages": [HI],
                "tools": [{"type": "function", "function": {"name": "f"}}],
            },
            "openai_chat",
        ),
        (
            {"messages": [user_message([text_part("hi")])]},
            "openai_chat",
        ),
        (
            [
                HI,
                result_message("c", [{"type": "image", "source": {}}]),
            ],
            "openai_chat",
        ),
        ({"messages": [HI], "system": "s"}, "anthropic"),
        ({"messages": [HI], "tools": [{"name": "f", "input_schema": {}}]}, "anthropic"),
        ([HI, USE], "anthropic"),
        ({"input": "hi", "instructions": "s"}, "openai_responses"),
    ],
)
def test_detects_the_api(value: Any, api: str) -> None:
    found, request = decode_any(value)
    assert found == api
    assert request.model == ""


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, "not 3"),
        ("x" * 100, "not 'xxx"),
        ({}, "its keys are: none"),
        ({"a": 1, "b": 2}, "its keys are: a, b"),
        ({"messages": "x"}, "its keys are: messages"),
        ([HI, 7], "message 1 is not an object with a role, but 7"),
        ([{"content": "x"}], "message 0 is not an object with a role"),
        ({"messages": [HI], "tools": 3}, "tools must be a list"),
    ],
)
def test_refuses_other_values(value: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        decode_any(value)
