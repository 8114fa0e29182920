"""The reasons for compactions, which are stored with them."""

from __future__ import annotations

from enum import StrEnum


class CompactionReason(StrEnum):
    """Why a thread is compacted."""

    IN_LOOP = "in-loop"
    PREFLIGHT = "preflight"
    BEFORE_INCOMING = "hygiene"
    COLD_CACHE = "cold-cache"
    IDLE = "idle"
    OVERFLOW = "overflow"
    PAYLOAD = "payload"
    MANUAL = "manual"
    PREVIEW = "preview"


AUTOMATIC_REASONS = frozenset(
    {
        CompactionReason.IN_LOOP,
        CompactionReason.PREFLIGHT,
        CompactionReason.BEFORE_INCOMING,
        CompactionReason.COLD_CACHE,
        CompactionReason.IDLE,
    }
)
"""The policy chose the time of these compactions."""
_TEXT_BY_REASON: dict[str, str] = {
    CompactionReason.IN_LOOP: "the prompt had reached the threshold during a turn",
    CompactionReason.PREFLIGHT: "the new message took the prompt to the threshold",
    CompactionReason.BEFORE_INCOMING: "the stored history was over 85 % of the window before a message came in",
    CompactionReason.COLD_CACHE: "the provider's cache had expired, so a rewrite cost nothing there",
    CompactionReason.IDLE: "the provider's cache was about to expire",
    CompactionReason.OVERFLOW: "the provider refused the request as too long",
    CompactionReason.PAYLOAD: "the provider refused the request as too many bytes",
    CompactionReason.MANUAL: "requested by hand",
}


def describe_reason(stored_reason: str) -> str:
    """Describe a stored reason for people; return an unknown one unchanged."""
    return _TEXT_BY_REASON.get(stored_reason, stored_reason)
