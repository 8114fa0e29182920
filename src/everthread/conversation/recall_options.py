"""What may be recalled before a call, and how much. Named as in the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RecallScope = Literal["thread", "tenant"]
MAX_TOKENS = 800
"""About four excerpts. Nothing of it is cached, so that it is paid for in full with every call that has it."""
CLOSENESS = 0.5
SIMILARITY = 0.7
EXCERPTS = 4
EXCERPT_CHARS = 600


@dataclass(frozen=True, slots=True)
class RecallOptions:
    enabled: bool = True
    scope: RecallScope = "thread"
    max_tokens: int = MAX_TOKENS
    closeness: float = CLOSENESS
    """Nothing is injected unless one place holds so much of what was asked, its rarest words counting most."""
    similarity: float = SIMILARITY
    """From which cosine on a place is as close by its vector, where vectors are made."""
