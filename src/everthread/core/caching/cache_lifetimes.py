"""How long providers keep a cached prefix, and which models bill cache writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

CACHE_SECONDS = {"5m": 300.0, "1h": 3_600.0}
"""How long a provider keeps a cached prefix that is not asked for, by its `cache_ttl`."""
AUTOMATIC_SECONDS = 1_800.0
"""How long OpenAI keeps a prefix of the models that bill cache writes."""
EXTENDED_SECONDS = 43_200.0
"""How long it keeps it if the request asks for `ttl: "12h"`."""
OPTIONS = "prompt_cache_options"
"""The field of a request in which a client of these models asks for a lifetime."""
_OPENAI_MODEL = re.compile(
    r"(?:^|/)gpt-(?P<major>\d+)(?:[.-](?P<minor>\d{1,2})(?!\d))?"
)
_FIRST_BILLED = (5, 6)


def bills_writes(model: str) -> bool:
    """Return whether OpenAI bills what it writes to the cache for this model: from GPT-5.6 on."""
    version = _OPENAI_MODEL.search(model.lower())
    return (
        version is not None
        and (int(version["major"]), int(version["minor"] or 0)) >= _FIRST_BILLED
    )


def automatic_lifetime(params: Mapping[str, Any]) -> float:
    """Return how many seconds OpenAI keeps the prefix of a request with these parameters."""
    options = params.get(OPTIONS)
    is_extended = isinstance(options, Mapping) and options.get("ttl") == "12h"
    return EXTENDED_SECONDS if is_extended else AUTOMATIC_SECONDS


def cache_lifetime(model: str, ttl: str, params: Mapping[str, Any]) -> float:
    """Return how many seconds a provider keeps an unused prefix, before any call has shown it.

    `ttl`: of the marks that we set. `params`: those of the request.
    """
    return automatic_lifetime(params) if bills_writes(model) else CACHE_SECONDS[ttl]
