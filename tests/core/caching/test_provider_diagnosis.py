"""Why the cache missed: asking a provider, and reading its answer."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.core.caching.provider_diagnosis import (
    ask_for_diagnosis,
    read_diagnosis,
    with_diagnosis,
)
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.types import Api

ANTHROPIC = "https://api.anthropic.com"
OPENAI = "https://api.openai.com/v1"


ROUTES: list[tuple[tuple[Api, str, str, str], str, dict[str, Any]]] = [
    (
        ("anthropic", "claude-opus-5", "auto", ANTHROPIC),
        "msg_1",
        {"diagnostics": {"previous_message_id": "msg_1"}},
    ),
    (
        ("anthropic", "claude-opus-5", "anthropic", ""),
        "",
        {"diagnostics": {"previous_message_id": None}},
    ),
    (("anthropic", "claude-opus-5", "anthropic", "http://127.0.0.1:1"), "msg_1", {}),
    (
        ("openai_responses", "gpt-5.6", "openai", OPENAI),
        "resp_1",
        {"prompt_cache_options": {"comparison_response_id": "resp_1"}},
    ),
    (("openai_responses", "gpt-5.6", "openai", OPENAI), "", {}),
    (("openai_responses", "gpt-5.5", "openai", OPENAI), "resp_1", {}),
    (("openai_chat", "gpt-5.6", "openai", ""), "chatcmpl-1", {}),
]


@pytest.mark.parametrize(("route", "previous", "field"), ROUTES)
def test_asks_only_routes_that_answer(
    route: tuple[Api, str, str, str], previous: str, field: dict[str, Any]
) -> None:
    assert ask_for_diagnosis(*route, previous_id=previous) == field


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (
            {"diagnostics": {"cache_miss_reason": {"type": "tools_changed"}}},
            "tools changed",
        ),
        ({"diagnostics": {"cache_miss_reason": None}}, ""),
        ({"diagnostics": {"cache_miss_reason": {"type": "unavailable"}}}, ""),
        ({"diagnostics": None}, ""),
        (
            {
                "prompt_cache_diagnostics": {
                    "type": "cache_miss",
                    "reason": "model_changed",
                }
            },
            "model changed",
        ),
        ({"prompt_cache_diagnostics": {"type": "cache_hit"}}, ""),
        ({}, ""),
    ],
)
def test_reads_the_reason(raw: dict[str, Any], reason: str) -> None:
    assert read_diagnosis(raw) == reason
    usage = with_diagnosis(CanonicalUsage(input_tokens=3), raw)
    assert usage.cache_miss == reason
    assert usage == CanonicalUsage(input_tokens=3), "it is not a number"
    assert (usage + usage).input_tokens == 6
