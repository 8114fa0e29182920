"""A decoded message keeps its native value, its author, and its boundary."""

from __future__ import annotations

import pytest

from everthread.core.messages import Message
from everthread.wire.native_values import (
    can_use_reasoning,
    is_same_model,
    native_value,
    public_message,
    with_native,
)
from tests.chat_messages import assistant_message

SAID: Message = assistant_message("hi")


def test_native_value_is_for_its_own_api_only() -> None:
    message = with_native(SAID, "anthropic", assistant_message([]))
    assert native_value(message, "anthropic") == assistant_message([])
    assert native_value(message, "openai_chat") is None
    assert native_value(SAID, "anthropic") is None
    assert "_native" not in SAID


@pytest.mark.parametrize("garbage", [None, "anthropic", [], {}, {"api": "anthropic"}, {"value": 1}])
def test_ignores_invalid_records(garbage: object) -> None:
    assert native_value({"role": "user", "content": "x", "_native": garbage}, "anthropic") is None


def test_records_author_and_boundary_only_if_given() -> None:
    assert with_native(SAID, "a", 1)["_native"] == {"api": "a", "value": 1}
    assert with_native(SAID, "a", 1, model="m", continues_previous=True)["_native"] == {
        "api": "a",
        "value": 1,
        "model": "m",
        "joined": True,
    }


def test_public_message_has_no_private_fields() -> None:
    message = with_native(SAID, "anthropic", 1)
    assert public_message(message) == SAID
    assert public_message(SAID) is SAID


def test_reasoning_is_only_for_its_author() -> None:
    message = with_native(SAID, "anthropic", 1, model="claude-a")
    assert can_use_reasoning(message, "anthropic", "claude-a")
    assert can_use_reasoning(message, "anthropic", None)
    assert not can_use_reasoning(message, "anthropic", "claude-b")
    assert not can_use_reasoning(message, "openai_chat", "claude-a")
    assert not can_use_reasoning(SAID, "anthropic", "claude-a")
    assert can_use_reasoning(with_native(SAID, "anthropic", 1), "anthropic", "claude-b")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("claude-sonnet-4-5", "claude-sonnet-4-5-20250929", True),
        ("anthropic/claude-sonnet-4.5", "claude-sonnet-4-5@20250929", True),
        ("gpt-5-2025-08-07", "openai/gpt-5", True),
        ("claude-3-7-sonnet-latest", "claude-3-7-sonnet-20250219", True),
        ("anthropic/claude-opus-4:thinking", "Claude-Opus-4", True),
        ("claude-sonnet-4-5", "claude-sonnet-4", False),
        ("claude-opus-4-1", "claude-sonnet-4-1", False),
        ("gpt-5", "gpt-5-mini", False),
        ("gpt-4o-2024-08-06", "gpt-4o-mini-2024-07-18", False),
    ],
)
def test_recognizes_one_model_under_two_names(one: str, other: str, same: bool) -> None:
    assert is_same_model(one, other) is same
    assert is_same_model(other, one) is same
