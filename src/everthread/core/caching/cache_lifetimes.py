"""How long providers keep a cached prefix, and which models bill cache writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

CACHE_SECONDS = {"5m": 300.0, "1h": 3_600.0}
"""Seconds that a provider keeps an unused cached prefix, by `cache_ttl`."""
AUTOMATIC_CACHE_SECONDS = 1_800.0
"""Seconds that OpenAI keeps a prefix, for models that bill cache writes."""
EXTENDED_CACHE_SECONDS = 43_200.0
"""Seconds that OpenAI keeps a prefix if the request asks for `ttl: "12h"`."""
CACHE_OPTIONS_FIELD = "prompt_cache_options"
"""Request field in which a client of these models asks for a lifetime."""
_OPENAI_MODEL_PATTERN = re.compile(r"(?:^|/)gpt-(?P<major>\d+)(?:[.-](?P<minor>\d{1,2})(?!\d))?")
_FIRST_BILLING_VERSION = (5, 6)


def bills_cache_writes(model: str) -> bool:
    """Return whether OpenAI bills cache writes for this model: from GPT-5.6 on."""
    version = _OPENAI_MODEL_PATTERN.search(model.lower())
    return (
        version is not None
        and (int(version["major"]), int(version["minor"] or 0)) >= _FIRST_BILLING_VERSION
    )


def compute_automatic_lifetime(params: Mapping[str, Any]) -> float:
    """Return how many seconds OpenAI keeps the prefix of a request with these parameters."""
    options = params.get(CACHE_OPTIONS_FIELD)
    is_extended = isinstance(options, Mapping) and options.get("ttl") == "12h"
    return EXTENDED_CACHE_SECONDS if is_extended else AUTOMATIC_CACHE_SECONDS


def compute_cache_lifetime(model: str, ttl: str, params: Mapping[str, Any]) -> float:
    """Return how many seconds a provider keeps an unused prefix, before any call has shown it.

    `ttl`: lifetime of Everthread's cache marks. `params`: parameters of the request.
    """
    return compute_automatic_lifetime(params) if bills_cache_writes(model) else CACHE_SECONDS[ttl]
