"""The model that a name chooses."""

from __future__ import annotations

import pytest

from everthread.config import parse_config
from everthread.factory.model_setup import choose_from_section


@pytest.mark.parametrize(
    ("settings", "model", "provider"),
    [
        ("provider: local, default: smollm2-135m", "gpt-5", "openai"),
        (
            "provider: local, default: smollm2-135m",
            "anthropic/claude-sonnet-4-5",
            "anthropic",
        ),
        ("provider: local, default: smollm2-135m", "claude-sonnet-4-5", "anthropic"),
        ("provider: openai, default: gpt-5", "claude-sonnet-4-5", "anthropic"),
        ("provider: openai, default: gpt-5", "local/smollm2-135m", "local"),
        ("provider: openai, default: gpt-5", "gpt-4o", "openai"),
        (
            "provider: openrouter, default: openai/gpt-5",
            "anthropic/claude-sonnet-4-5",
            "openrouter",
        ),
        (
            "provider: custom, base_url: 'http://localhost:8000/v1', default: mine",
            "gpt-5",
            "custom",
        ),
        (
            "provider: custom, base_url: 'http://localhost:8000/v1', default: mine",
            "smollm2-135m",
            "local",
        ),
        ("provider: local, default: smollm2-135m", None, "local"),
    ],
)
def test_the_name_of_a_model_wins_over_the_provider_of_another(
    settings: str, model: str | None, provider: str
) -> None:
    config = parse_config(f"model: {{{settings}}}")
    assert choose_from_section(config.model, model).provider == provider
