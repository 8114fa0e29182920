"""Why a provider's cache missed, as the provider itself says.

Anthropic compares a request with the one that an earlier answer belongs to
(`diagnostics.previous_message_id`), and so does OpenAI from GPT-5.6 on
(`prompt_cache_options.comparison_response_id`, Responses only).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from everthread.core.caching.cache_lifetimes import OPTIONS, bills_writes
from everthread.core.caching.claude_cache_marks import host_of
from everthread.core.canonical_usage import CanonicalUsage
from everthread.core.types import Api

_HOSTS = {"anthropic": "api.anthropic.com", "openai_responses": "api.openai.com"}
_PROVIDERS = {"anthropic": "anthropic", "openai_responses": "openai"}
_UNKNOWN = frozenset(
    {"unavailable", "previous_message_not_found", "comparison_response_not_found"}
)
"""Answers that give no reason."""


def ask_for_diagnosis(
    api: Api, model: str, provider: str, base_url: str, *, previous_id: str
) -> dict[str, Any]:
    """Return the field that asks why the cache missed; empty if a route does not know it.

    `previous_id`: the id of the answer to compare with. An empty one is sent to Anthropic too, which then remembers the
    request for the next comparison.
    """
    host = host_of(base_url) if base_url else ""
    if host != _HOSTS.get(api) and (host or provider != _PROVIDERS.get(api)):
        return {}
    if api == "anthropic":
        return {"diagnostics": {"previous_message_id": previous_id or None}}
    if not previous_id or not bills_writes(model):
        return {}
    return {OPTIONS: {"comparison_response_id": previous_id}}


def read_diagnosis(raw: Mapping[str, Any]) -> str:
    """Return the reason in an answer, such as `tools changed`; empty if it gives none."""
    stated: Any = None
    asked = raw.get("diagnostics")
    if isinstance(asked, Mapping):
        reason = asked.get("cache_miss_reason")
        stated = reason.get("type") if isinstance(reason, Mapping) else None
    compared = raw.get("prompt_cache_diagnostics")
    if isinstance(compared, Mapping) and compared.get("type") == "cache_miss":
        stated = compared.get("reason")
    if not isinstance(stated, str) or stated in _UNKNOWN:
        return ""
    return stated[:100].replace("_", " ")


def with_diagnosis(usage: CanonicalUsage, raw: Mapping[str, Any]) -> CanonicalUsage:
    """Return the usage of an answer with the reason that the answer gives."""
    reason = read_diagnosis(raw)
    return replace(usage, cache_miss=reason) if reason else usage
