"""How long providers keep a cached prefix, and which models bill cache writes."""

from __future__ import annotations

import pytest

from everthread.core.caching.cache_lifetimes import (
    bills_cache_writes,
    compute_cache_lifetime,
)


@pytest.mark.parametrize(
    ("model", "bills"),
    [
        ("gpt-5.6", True),
        ("openai/gpt-5-6-codex", True),
        ("gpt-6.1", True),
        ("gpt-5.5", False),
        ("gpt-5", False),
        ("gpt-4o", False),
        ("gpt-5-2025-08-07", False),
        ("claude-opus-5", False),
    ],
)
def test_openai_cache_billing_and_lifetime(model: str, bills: bool) -> None:
    assert bills_cache_writes(model) is bills
    assert compute_cache_lifetime(model, "5m", {}) == (1_800 if bills else 300)
    asked = {"prompt_cache_options": {"ttl": "12h"}}
    assert compute_cache_lifetime(model, "5m", asked) == (43_200 if bills else 300)
    usual = {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}}
    assert compute_cache_lifetime(model, "5m", usual) == (1_800 if bills else 300)
