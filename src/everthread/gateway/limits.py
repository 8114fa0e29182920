"""How much, how long and how many: what clients can ask of the gateway."""

from __future__ import annotations

from dataclasses import dataclass

BODY_BYTES = 64 * 1024 * 1024
HEADER_BYTES = 64 * 1024
CONCURRENT = 256
HEADER_SECONDS = 15.0
BODY_SECONDS = 120.0
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 600.0
WRITE_SECONDS = 60.0
MANAGE_SECONDS = 180.0
HOLD_SECONDS = 10.0
KEEPALIVE_SECONDS = 3.0
SILENCE_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes are counted as they come and again once decoded; seconds are those of waiting, not of a whole answer."""

    body_bytes: int = BODY_BYTES
    header_bytes: int = HEADER_BYTES
    concurrent: int = CONCURRENT
    header_seconds: float = HEADER_SECONDS
    """Until a request's headers are complete."""
    body_seconds: float = BODY_SECONDS
    """Until its body is."""
    connect_seconds: float = CONNECT_SECONDS
    answer_seconds: float = ANSWER_SECONDS
    """Between two pieces of an upstream's answer."""
    write_seconds: float = WRITE_SECONDS
    """Until a client took one piece of it."""
    manage_seconds: float = MANAGE_SECONDS
    """For a decision of the manager, summary included; then the original goes."""
    hold_seconds: float = HOLD_SECONDS
    """How long the first events of a stream are held at most."""
    keepalive_seconds: float = KEEPALIVE_SECONDS
    """Between two comments to a client that waits for a stream."""
    silence_seconds: float = SILENCE_SECONDS
    """How long a compaction keeps such a client waiting without one; see `streaming`."""
