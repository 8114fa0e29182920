"""Ask a provider why its cache missed, and read the reason.

Anthropic compares a request with the one that an earlier answer belongs to
(`diagnostics.previous_message_id`), and so does OpenAI from GPT-5.6 on
(`prompt_cache_options.comparison_response_id`, Responses only).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from everthread.core.caching.cache_lifetimes import (
    CACHE_OPTIONS_FIELD,
    bills_cache_writes,
)
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.types import Api
from everthread.core.urls import host_of

_HOST_BY_API = {"anthropic": "api.anthropic.com", "openai_responses": "api.openai.com"}
_PROVIDER_BY_API = {"anthropic": "anthropic", "openai_responses": "openai"}
_UNINFORMATIVE_REASONS = frozenset(
    {"unavailable", "previous_message_not_found", "comparison_response_not_found"}
)
"""Values that give no reason."""


def ask_for_diagnosis(
    api: Api, model: str, provider: str, base_url: str, *, previous_id: str
) -> dict[str, Any]:
    """Return the request field that asks why the cache missed, or an empty dict if the route does not support it.

    `previous_id`: the id of the answer to compare with. An empty one is sent to Anthropic too, which then remembers the
    request for the next comparison.
    """
    host = host_of(base_url) if base_url else ""
    if host != _HOST_BY_API.get(api) and (host or provider != _PROVIDER_BY_API.get(api)):
        return {}
    if api == "anthropic":
        return {"diagnostics": {"previous_message_id": previous_id or None}}
    if not previous_id or not bills_cache_writes(model):
        return {}
    return {CACHE_OPTIONS_FIELD: {"comparison_response_id": previous_id}}


def read_diagnosis(raw: Mapping[str, Any]) -> str:
    """Return the reason in an answer, such as `tools changed`, or an empty string if it gives none."""
    reason: Any = None
    anthropic_diagnostics = raw.get("diagnostics")
    if isinstance(anthropic_diagnostics, Mapping):
        miss_reason = anthropic_diagnostics.get("cache_miss_reason")
        reason = miss_reason.get("type") if isinstance(miss_reason, Mapping) else None
    openai_diagnostics = raw.get("prompt_cache_diagnostics")
    if isinstance(openai_diagnostics, Mapping) and openai_diagnostics.get("type") == "cache_miss":
        reason = openai_diagnostics.get("reason")
    if not isinstance(reason, str) or reason in _UNINFORMATIVE_REASONS:
        return ""
    return reason[:100].replace("_", " ")


def with_diagnosis(usage: CanonicalUsage, raw: Mapping[str, Any]) -> CanonicalUsage:
    """Return the usage of an answer with the reason that the answer gives."""
    reason = read_diagnosis(raw)
    return replace(usage, cache_miss=reason) if reason else usage
