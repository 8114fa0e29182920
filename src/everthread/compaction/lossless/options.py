"""The engine's options, as `engines.lossless` names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from everthread.errors import ConfigError

FAN_IN = (2, 16)
LEAF_TOKENS = (200, 1_000_000)


@dataclass(frozen=True, slots=True)
class Options:
    """Checked when it is made."""

    fan_in: int = 4
    """So many nodes side by side at one level become one above them."""
    leaf_tokens: int | None = None
    """About so many tokens of messages make a leaf; None: an eighth of the threshold, at least 1,000."""

    def __post_init__(self) -> None:
        _check("fan_in", self.fan_in, FAN_IN)
        if self.leaf_tokens is not None:
            _check("leaf_tokens", self.leaf_tokens, LEAF_TOKENS)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        known = [field.name for field in fields(cls)]
        unknown = ", ".join(sorted(set(given) - set(known)))
        if unknown:
            raise ConfigError(f"engines.lossless: unknown option(s) {unknown}; known: {', '.join(known)}")
        return cls(**given)

    def leaf_size(self, threshold: int) -> int:
        return self.leaf_tokens or max(threshold // 8, 1_000)


def _check(name: str, value: Any, allowed: tuple[int, int]) -> None:
    low, high = allowed
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(
            f"engines.lossless.{name}: {value!r} is not allowed; it must be a whole number from {low:,} to {high:,}."
        )
