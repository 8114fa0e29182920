"""Cache breakpoints: which routes know them, and which message carries the gateway's own."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.core.caching.openai_cache_breakpoints import (
    BREAKPOINT,
    accepts_breakpoints,
    find_breakpoint_index,
    has_breakpoint,
    mark_message,
    mark_system_breakpoint,
)
from everthread.core.fingerprints import byte_form
from everthread.core.types import Api
from tests.chat_messages import assistant_message, text_part, user_message

MARK = {"mode": "explicit"}


@pytest.mark.parametrize(
    ("api", "model", "provider", "base_url", "expected"),
    [
        ("openai_responses", "gpt-5.6", "auto", "https://api.openai.com/v1", True),
        ("openai_chat", "openai/gpt-6-sol", "auto", "https://openrouter.ai/api", True),
        ("openai_chat", "gpt-5.6-terra", "openai", None, True),
        ("openai_chat", "gpt-5.6", "custom", None, False),
        ("openai_responses", "gpt-5.5", "openai", None, False),
        ("anthropic", "gpt-5.6", "openai", None, False),
        ("openai_chat", "gpt-5.6", "auto", "http://127.0.0.1:8000/v1", False),
        (
            "openai_responses",
            "gpt-5.6",
            "auto",
            "https://chatgpt.com/backend-api/codex",
            False,
        ),
    ],
)
def test_only_openai_and_openrouter_accept_breakpoints(
    api: Api, model: str, provider: str, base_url: str | None, expected: bool
) -> None:
    assert accepts_breakpoints(api, model, provider, base_url) is expected


def test_marks_first_and_last_block_of_the_system_prompt() -> None:
    assert mark_system_breakpoint("Be brief.") == [
        {
            "type": "text",
            "text": "Be brief.",
            BREAKPOINT: MARK,
        }
    ]
    blocks = [text_part(text) for text in ("a", "b", "note")]
    marked = mark_system_breakpoint(blocks)
    assert isinstance(marked, list)
    assert [BREAKPOINT in block for block in marked] == [True, False, True]
    assert byte_form(marked) == byte_form(blocks), "a mark does not change the prompt"
    assert mark_system_breakpoint(None) is None
    assert mark_system_breakpoint("") == ""


def test_recognizes_marked_content() -> None:
    assert has_breakpoint(
        [
            {
                "type": "text",
                "text": "a",
                BREAKPOINT: MARK,
            }
        ]
    )
    assert not has_breakpoint([text_part(BREAKPOINT), "text"])
    assert not has_breakpoint("text")


SYSTEM = {"role": "developer", "content": "Be brief."}
NOTE = {"role": "developer", "content": "The note."}
USER = user_message("Hello.")


@pytest.mark.parametrize(
    ("values", "leading", "place"),
    [
        ([SYSTEM, USER], 1, 0),
        ([SYSTEM, NOTE, USER], 2, 0),
        ([NOTE, USER], 1, 1),
        ([USER], 0, 0),
        ([user_message(["bare"])], 0, None),
        ([assistant_message("Hi.")], 0, None),
        ([{"role": "system", "content": ""}], 1, None),
    ],
)
def test_marks_the_last_system_message_before_our_note(
    values: list[Any], leading: int, place: int | None
) -> None:
    assert find_breakpoint_index(values, leading, "The note.") == place


def test_marks_the_last_part_before_our_note() -> None:
    assert mark_message("openai_responses", USER) == user_message(
        [
            {
                "type": "input_text",
                "text": "Hello.",
                BREAKPOINT: MARK,
            }
        ]
    )
    parts = [text_part("a"), text_part("note")]
    marked = mark_message("openai_chat", {"role": "system", "content": parts}, "note")
    assert [BREAKPOINT in part for part in marked["content"]] == [True, False]
    assert BREAKPOINT not in parts[0]
