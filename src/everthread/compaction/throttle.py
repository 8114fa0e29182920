"""When to compact: at the threshold, and not again and again in vain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from everthread.compaction.engine import Services
from everthread.compaction.summary import Compaction
from everthread.core.pricing.usage import CanonicalUsage

EFFECTIVE = 0.90
"""A compaction is effective if the next reported prompt has at most this share of the one before."""
PAUSE_SECONDS = 300.0
PAUSE_GROWTH = 1.10
STRIKES = 2


@dataclass(frozen=True, slots=True)
class ThrottleState:
    """What another process needs to continue."""

    compactions: int = 0
    strikes: int = 0
    prompt_tokens: int = 0
    awaiting: int = 0
    """The prompt's size before the last automatic compaction, until the next report tells what it brought."""
    paused_at: float | None = None
    paused_tokens: int = 0


class CompactionThrottle:
    """Counts what is reported, and pauses after two compactions in a row that brought hardly anything."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._state = ThrottleState()

    def update_from_response(self, usage: CanonicalUsage) -> None:
        """Output and reasoning never count: they do not fill the next prompt as such."""
        tokens = usage.prompt_tokens
        if tokens <= 0:
            return
        state = self._state
        if state.awaiting:
            strikes = 0 if tokens <= EFFECTIVE * state.awaiting else state.strikes + 1
            state = replace(state, strikes=strikes, awaiting=0)
            if strikes == STRIKES:
                state = replace(state, paused_at=self._services.clock(), paused_tokens=tokens)
                self._services.events(
                    "notice",
                    text="Automatic compaction is paused: two in a row made the prompt hardly smaller "
                    f"({tokens:,} tokens). It resumes when the history has grown by a tenth or after five minutes; "
                    "/compress works at any time.",
                )
        self._state = replace(state, prompt_tokens=tokens)

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        tokens = self._state.prompt_tokens if prompt_tokens is None else prompt_tokens
        if tokens < self._services.budget.threshold:
            return False
        return not self._paused(tokens)

    def _paused(self, tokens: int) -> bool:
        state = self._state
        if state.paused_at is None:
            return False
        grown = tokens >= PAUSE_GROWTH * state.paused_tokens
        if grown or self._services.clock() - state.paused_at >= PAUSE_SECONDS:
            self._state = replace(state, paused_at=None, paused_tokens=0, strikes=0)
            return False
        return True

    def on_compacted(self, compaction: Compaction) -> None:
        """One more; what an automatic one brought shows at the next report."""
        state = replace(self._state, compactions=self._state.compactions + 1, prompt_tokens=0)
        if compaction.reason == "automatic":
            state = replace(state, awaiting=self._state.prompt_tokens or compaction.tokens_before)
        self._state = state

    def update_model(self, services: Services) -> None:
        """Another window, another tokenizer: what was reported before no longer counts."""
        self._services = services
        self._state = replace(self._state, prompt_tokens=0, awaiting=0)

    @property
    def compactions(self) -> int:
        return self._state.compactions

    def dump(self) -> dict[str, Any]:
        return asdict(self._state)

    def load(self, state: Mapping[str, Any]) -> None:
        known = {field.name for field in fields(ThrottleState)}
        self._state = ThrottleState(**{key: value for key, value in state.items() if key in known})
