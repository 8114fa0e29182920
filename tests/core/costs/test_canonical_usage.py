"""Usage in one form: the buckets are disjoint, add up to what was reported, and are never negative."""

from __future__ import annotations

import copy
import json
import math
from types import SimpleNamespace
from typing import Any

import anthropic.types
import openai.types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.costs.canonical_usage import CanonicalUsage, normalize_usage
from tests.shared_data import shared_path


def buckets(raw: Any, api: str | None = None) -> tuple[int, int, int, int, int]:
    usage = normalize_usage(raw, api=api)
    return (
        usage.input_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
    )


ANTHROPIC = {
    "input_tokens": 10,
    "cache_read_input_tokens": 800,
    "cache_creation_input_tokens": 190,
    "output_tokens": 50,
    "cache_creation": {
        "ephemeral_5m_input_tokens": 90,
        "ephemeral_1h_input_tokens": 100,
    },
}
RESPONSES = {
    "input_tokens": 1000,
    "input_tokens_details": {"cached_tokens": 800, "cache_creation_tokens": 150},
    "output_tokens": 60,
    "output_tokens_details": {"reasoning_tokens": 40},
    "total_tokens": 1060,
}
CHAT = {
    "prompt_tokens": 1000,
    "prompt_tokens_details": {"cached_tokens": 800, "cache_write_tokens": 150},
    "completion_tokens": 60,
    "completion_tokens_details": {"reasoning_tokens": 40},
    "total_tokens": 1060,
}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (ANTHROPIC, (10, 800, 190, 50, 0)),
        (RESPONSES, (50, 800, 150, 60, 40)),
        (CHAT, (50, 800, 150, 60, 40)),
        # Anthropic's names beside a prompt figure that contains the cache already
        (
            {
                "prompt_tokens": 1000,
                "completion_tokens": 5,
                "cache_read_input_tokens": 700,
                "cache_creation_input_tokens": 200,
            },
            (100, 700, 200, 5, 0),
        ),
        (
            {**CHAT, "cache_read_input_tokens": 800, "cached_tokens": 800},
            (50, 800, 150, 60, 40),
        ),
        # dialects
        (
            {
                "prompt_tokens": 90,
                "completion_tokens": 5,
                "prompt_cache_hit_tokens": 64,
                "prompt_cache_miss_tokens": 26,
            },
            (26, 64, 0, 5, 0),
        ),
        (
            {
                "prompt_cache_hit_tokens": 64,
                "prompt_cache_miss_tokens": 26,
                "completion_tokens": 5,
            },
            (26, 64, 0, 5, 0),
        ),
        (
            {"prompt_tokens": 90, "completion_tokens": 5, "cached_tokens": 50},
            (40, 50, 0, 5, 0),
        ),
        (
            {
                "promptTokenCount": 100,
                "toolUsePromptTokenCount": 20,
                "cachedContentTokenCount": 30,
                "candidatesTokenCount": 7,
                "thoughtsTokenCount": 9,
            },
            (90, 30, 0, 16, 9),
        ),
        (
            {
                "inputTokens": 5,
                "outputTokens": 6,
                "cacheReadInputTokens": 70,
                "cacheWriteInputTokens": 8,
            },
            (5, 70, 8, 6, 0),
        ),
        (
            {
                "inputTokens": 75,
                "outputTokens": 6,
                "cachedInputTokens": 70,
                "reasoningTokens": 2,
            },
            (5, 70, 0, 6, 2),
        ),
        (
            {
                "prompt_eval_count": 26,
                "eval_count": 12,
                "eval_duration": 10**9,
            },
            (26, 0, 0, 12, 0),
        ),
        ({"prompt_n": 26, "cache_n": 100, "predicted_n": 12}, (26, 100, 0, 12, 0)),
        (
            {
                "input": 3,
                "output": 4,
                "cache_read": 5,
                "cache_write": 6,
                "cost_usd": 0.1,
            },
            (3, 5, 6, 4, 0),
        ),
        (
            {
                "billed_units": {"input_tokens": 1},
                "tokens": {"input_tokens": 30, "output_tokens": 4},
            },
            (30, 0, 0, 4, 0),
        ),
        (
            {"input_tokens": 90, "output_tokens": 5, "cached_tokens": 50},
            (40, 50, 0, 5, 0),
        ),
        (
            {
                "input_tokens": 90,
                "output_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 50},
            },
            (40, 50, 0, 5, 0),
        ),
        (
            {
                "prompt_tokens": 90,
                "completion_tokens": 5,
                "cache_read_tokens": 50,
                "cache_write_tokens": 10,
            },
            (30, 50, 10, 5, 0),
        ),
        # inside an answer
        ({"id": "msg", "usage": ANTHROPIC}, (10, 800, 190, 50, 0)),
        ({"usageMetadata": {"promptTokenCount": 10}}, (10, 0, 0, 0, 0)),
        # parts of a stream
        ({"output_tokens": 57}, (0, 0, 0, 57, 0)),
        (
            {"input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": 500},
            (0, 500, 0, 0, 0),
        ),
        # zeros and nulls in one form, figures in another
        (
            {
                "prompt_tokens": 0,
                "completion_tokens": None,
                "input_tokens": 20,
                "output_tokens": 3,
            },
            (20, 0, 0, 3, 0),
        ),
    ],
)
def test_reads_every_providers_usage(raw: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert buckets(raw) == expected


def test_api_decides_between_ambiguous_fields() -> None:
    raw = {"input_tokens": 1000, "cache_read_input_tokens": 900, "output_tokens": 1}
    assert buckets(raw) == buckets(raw, "anthropic") == (1000, 900, 0, 1, 0)
    assert buckets(raw, "openai_responses") == buckets(raw, "openai") == (100, 900, 0, 1, 0)
    assert buckets(RESPONSES, "openai") == buckets(RESPONSES)
    assert buckets(CHAT, "chat_completions") == buckets(CHAT, "anthropic_messages") == buckets(CHAT)
    assert buckets({**RESPONSES}, "anthropic")[0] == 1000


@pytest.mark.parametrize("api", ["openai_chat", "anthropic", "nobody", 7])
def test_api_without_matching_fields_is_ignored(api: Any) -> None:
    assert buckets({"promptTokenCount": 10, "candidatesTokenCount": 2}, api) == (
        10,
        0,
        0,
        2,
        0,
    )


def test_prompt_and_total_are_sums_and_reasoning_is_neither_added_nor_subtracted() -> None:
    usage = normalize_usage(CHAT)
    assert (usage.prompt_tokens, usage.total_tokens) == (1000, 1060)
    assert normalize_usage(ANTHROPIC).prompt_tokens == 1000
    more = normalize_usage({"prompt_tokens": 5, "completion_tokens": 5, "reasoning_tokens": 99})
    assert (more.output_tokens, more.reasoning_tokens, more.total_tokens) == (5, 99, 10)


def test_reads_one_hour_writes() -> None:
    assert normalize_usage(ANTHROPIC).cache_write_1h_tokens == 100
    split_only = {
        "input_tokens": 1,
        "cache_creation": {
            "ephemeral_1h_input_tokens": 7,
            "ephemeral_5m_input_tokens": 3,
        },
    }
    usage = normalize_usage(split_only)
    assert (usage.cache_write_tokens, usage.cache_write_1h_tokens) == (10, 7)


def test_clamps_cached_tokens_to_the_prompt() -> None:
    raw = {
        "prompt_tokens": 100,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 150, "cache_write_tokens": 9},
    }
    assert buckets(raw) == (0, 100, 0, 1, 0)
    raw["prompt_tokens_details"] = {"cached_tokens": 60, "cache_write_tokens": 90}
    assert buckets(raw) == (0, 60, 40, 1, 0)
    assert buckets({"prompt_tokens": None, "completion_tokens": 1, "cached_tokens": 60}) == (
        0,
        60,
        0,
        1,
        0,
    )


@pytest.mark.parametrize(
    "bad",
    [
        None,
        -5,
        math.nan,
        math.inf,
        -math.inf,
        True,
        "many",
        "",
        [],
        {},
        object(),
        10**30,
    ],
)
def test_ignores_values_that_are_not_counts(bad: Any) -> None:
    assert buckets({"prompt_tokens": bad, "completion_tokens": 3}) == (0, 0, 0, 3, 0)
    assert buckets(
        {
            "prompt_tokens": 9,
            "prompt_tokens_details": bad,
            "completion_tokens": bad,
        }
    ) == (9, 0, 0, 0, 0)
    assert buckets(bad) == (0, 0, 0, 0, 0)


def test_accepts_floats_and_digits() -> None:
    assert buckets({"prompt_tokens": 9.0, "completion_tokens": "3"}) == (9, 0, 0, 3, 0)


def test_reads_sdk_objects() -> None:
    chat = openai.types.CompletionUsage.model_validate(CHAT)
    assert buckets(chat) == (50, 800, 150, 60, 40)
    assert buckets(anthropic.types.Usage.model_validate(ANTHROPIC)) == (
        10,
        800,
        190,
        50,
        0,
    )
    assert (
        normalize_usage(anthropic.types.Usage.model_validate(ANTHROPIC)).cache_write_1h_tokens
        == 100
    )


def test_reads_any_object() -> None:
    details = SimpleNamespace(cached_tokens=4)
    assert buckets(
        SimpleNamespace(prompt_tokens=9, completion_tokens=1, prompt_tokens_details=details)
    ) == (
        5,
        4,
        0,
        1,
        0,
    )


class _Hostile:
    output_tokens = 8

    @property
    def input_tokens(self) -> int:
        raise RuntimeError("no")

    def model_dump(self) -> dict[str, Any]:
        raise RuntimeError("no")


def test_reads_the_rest_of_a_failing_object() -> None:
    assert buckets(_Hostile()) == (0, 0, 0, 8, 0)


def test_keeps_the_raw_report() -> None:
    raw = copy.deepcopy(CHAT)
    assert normalize_usage(raw).raw is raw
    assert raw == CHAT


def test_returns_canonical_usage_unchanged() -> None:
    usage = CanonicalUsage(1, 2, 3, 4, 5)
    assert normalize_usage(usage) is usage


def test_usages_add_up() -> None:
    total = sum([normalize_usage(CHAT), normalize_usage(ANTHROPIC)], CanonicalUsage())
    assert total == CanonicalUsage(60, 110, 1600, 340, 40, cache_write_1h_tokens=100)
    assert total.raw is None


_COUNTS = (
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=3)
)
_DETAILS = (
    st.dictionaries(
        st.sampled_from(["cached_tokens", "cache_write_tokens", "reasoning_tokens"]),
        _COUNTS,
    )
    | _COUNTS
)
_NAMES = [
    *ANTHROPIC,
    *RESPONSES,
    *CHAT,
    "prompt_cache_hit_tokens",
    "cached_tokens",
    "promptTokenCount",
    "usage",
    "prompt_n",
]
_RAW = st.dictionaries(st.sampled_from(_NAMES) | st.text(), _DETAILS)


@given(_RAW, st.sampled_from([None, "anthropic", "openai_responses", "openai_chat"]))
def test_no_report_raises_or_gives_a_negative_bucket(raw: dict[str, Any], api: str | None) -> None:
    usage = normalize_usage(raw, api=api)
    assert min(buckets(raw, api)) >= 0
    assert 0 <= usage.cache_write_1h_tokens <= usage.cache_write_tokens


@given(
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.integers(1, 10**9),
)
def test_the_prompt_is_the_reported_one(prompt: int, read: int, write: int, output: int) -> None:
    details = {"cached_tokens": read, "cache_write_tokens": write}
    chat = {
        "prompt_tokens": prompt,
        "prompt_tokens_details": details,
        "completion_tokens": output,
    }
    responses = {
        "input_tokens": prompt,
        "input_tokens_details": details,
        "output_tokens": output,
    }
    assert normalize_usage(chat).prompt_tokens == normalize_usage(responses).prompt_tokens == prompt


def test_reads_recorded_requests() -> None:
    for path in sorted(shared_path("requests").glob("*.json")):
        raw = json.loads(path.read_text("utf-8"))["response"]["usage"]
        usage = normalize_usage(raw)
        assert usage.prompt_tokens == raw["prompt_tokens"]
        assert usage.total_tokens == raw["total_tokens"]
        assert usage.cache_read_tokens == raw.get("prompt_cache_hit_tokens", 0)


def test_accepts_mixed_field_names() -> None:
    raw = {
        "prompt_tokens": 90,
        "output_tokens": 40,
        "output_tokens_details": {"reasoning_tokens": 30},
    }
    usage = normalize_usage({**raw, "input_tokens_details": {"cached_tokens": 50}})
    assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == (
        40,
        50,
        40,
    )
    assert usage.reasoning_tokens == 30
