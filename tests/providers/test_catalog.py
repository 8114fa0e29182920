"""Facts derived from the name of a model."""

from __future__ import annotations

import pytest

from everthread.providers.catalog import (
    find_known_model,
    list_families,
    normalize_model_name,
)


@pytest.mark.parametrize(
    "name",
    [
        "claude-sonnet-4-20250514",
        "anthropic/claude-sonnet-4",
        "openrouter/anthropic/claude-sonnet-4:beta",
        "us.anthropic.claude-sonnet-4-20250514-v1:0",
        "anthropic.claude-sonnet-4-20250514-v1:0",
        "claude-sonnet-4@20250514",
        "Claude-Sonnet-4",
    ],
)
def test_one_model_under_all_its_names(name: str) -> None:
    model = find_known_model(name)
    assert model is not None
    assert (model.family, model.window, model.max_output, model.is_exact) == (
        "claude-sonnet-4",
        200_000,
        64_000,
        True,
    )


@pytest.mark.parametrize(
    ("name", "window", "max_output"),
    [
        ("gpt-4o-2024-08-06", 128_000, 16_384),
        ("gpt-4o-mini", 128_000, 16_384),
        ("gpt-4-0613", 8_192, None),
        ("gpt-4-1106-preview", 128_000, 4_096),
        ("gpt-4.1-mini", 1_000_000, 32_768),
        ("o3-mini", 200_000, 100_000),
        ("gpt-5", 400_000, 128_000),
        ("anthropic/claude-3.5-haiku", 200_000, 8_192),
        ("claude-opus-4-5-20251101", 200_000, 64_000),
        ("deepseek/deepseek-chat-v3.1:free", 128_000, 8_192),
        ("z-ai/glm-4.6", 202_752, 131_072),
        ("moonshotai/kimi-k2-0905", 262_144, None),
        ("Qwen/Qwen2.5-7B-Instruct", 131_072, 8_192),
        ("meta-llama/Llama-3.3-70B-Instruct", 131_072, None),
        ("llama3.1:8b", 131_072, None),
        ("google/gemini-2.5-pro", 1_048_576, 65_536),
    ],
)
def test_knows_window_and_output_cap(name: str, window: int, max_output: int | None) -> None:
    model = find_known_model(name)
    assert model is not None
    assert (model.window, model.max_output) == (window, max_output)


def test_a_newer_model_of_a_family_has_the_window_of_the_price_table() -> None:
    """The catalog has no line for `gpt-5.4-pro`; its family `gpt-5` is smaller."""
    newer = find_known_model("gpt-5.4-pro")
    assert newer is not None
    assert newer.window == 1_050_000
    assert not newer.is_exact


def test_a_model_only_the_price_table_knows_is_known() -> None:
    model = find_known_model("perplexity/sonar-pro") or find_known_model("sonar-pro")
    assert model is not None
    assert model.window
    assert model.max_output is None


def test_a_name_begins_at_a_word() -> None:
    """`o10` does not count as a model of `o1`, nor `gpt-4o` of `gpt-4`."""
    assert find_known_model("o10x-unheard-of") is None
    four_o = find_known_model("gpt-4o")
    four = find_known_model("gpt-4")
    assert four_o is not None
    assert four is not None
    assert four_o.family != four.family


@pytest.mark.parametrize("name", ["", "my-own-model", "???", "/"])
def test_returns_none_for_unknown_names(name: str) -> None:
    assert find_known_model(name) is None


def test_how_claude_caches() -> None:
    minimums = {
        name: find_known_model(name)
        for name in ("claude-opus-4-5", "claude-sonnet-4-5", "claude-3-haiku")
    }
    assert {name: model and model.cache_min for name, model in minimums.items()} == {
        "claude-opus-4-5": 4_096,
        "claude-sonnet-4-5": 1_024,
        "claude-3-haiku": 2_048,
    }
    assert all(model and model.cache == "marks" for model in minimums.values())


def test_the_table_is_sound() -> None:
    table = list_families()
    assert len({entry.family for entry in table}) == len(table) > 100
    for entry in table:
        assert entry.family == normalize_model_name(entry.family)
        assert entry.window
        assert entry.window >= 4_096
        assert entry.max_output is None or entry.max_output < entry.window
        assert entry.cache in (None, "marks", "automatic")
        assert entry.cache is not None or entry.cache_min is None
