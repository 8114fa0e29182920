"""How long a provider's cache keeps an entry that is not used."""

from __future__ import annotations

from everthread.lab.provider.cache import CLAUDE_TTL_SECONDS, find_prefix_seconds


def caches_by_marks(model: str) -> bool:
    """Return whether the provider caches only marked prefixes, as for Claude; other caches need no marks."""
    return "claude" in model.lower()


def find_cache_seconds(model: str, ttl: str) -> float:
    """Return the lifetime of an unused entry in the model's cache, in seconds."""
    if not caches_by_marks(model):
        return find_prefix_seconds(model)
    return CLAUDE_TTL_SECONDS["1h" if ttl == "1h" else "5m"]
