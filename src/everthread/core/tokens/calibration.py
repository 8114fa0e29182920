"""Project the size of a prompt from the provider's reports and our estimates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_PRIOR_TOKENS = 2_000.0
"""Weight of the initial factor of one, in tokens of evidence."""
_MEMORY_TOKENS = 100_000.0
"""Tokens of evidence after which older evidence fades."""
_MAX_DEVIATION = 3.0
"""A larger deviation means that the report covers something else."""
_MAX_REPORT = 1e12
"""Reports above this, or that are not numbers, are ignored."""


@dataclass(slots=True)
class _Evidence:
    reported: float = 0.0
    estimated: float = 0.0

    def learn(self, reported: float, estimated: float) -> None:
        self.reported += reported
        self.estimated += estimated
        if self.estimated > _MEMORY_TOKENS:
            self.reported /= 2
            self.estimated /= 2

    @property
    def factor(self) -> float:
        return (_PRIOR_TOKENS + self.reported) / (_PRIOR_TOKENS + self.estimated)


@dataclass(slots=True)
class Calibration:
    """The usage reported for one conversation, and the corrections of estimates learnt for each model.

    projected = last reported + factor × (estimate now − estimate then): the report covers everything that an estimate
    cannot see (the provider's own prompt, its tokenizer); the factor learns how far estimates of this model are off.
    """

    _evidence: dict[str, _Evidence] = field(default_factory=dict)
    _last: tuple[str, float, float] | None = None

    def observe(self, model: str | None, reported: Any, estimate: float) -> None:
        """Record the prompt tokens reported for a call to `model`, and the estimate of the same prompt.

        Ignore a report that is missing, zero, or too small to be the whole prompt (only the part that missed the cache,
        say). If the prompt shrank, or grew quite otherwise than estimated (something was dropped, added or replaced
        unseen), it becomes the new base and nothing is learnt from the difference.
        """
        name = model or ""
        if (
            not _is_amount(reported)
            or not reported
            or reported < estimate / _MAX_DEVIATION
        ):
            return
        if self._last is not None and self._last[0] == name:
            grown = reported - self._last[1]
            expected = estimate - self._last[2]
            if (
                expected > 0
                and expected / _MAX_DEVIATION <= grown <= expected * _MAX_DEVIATION
            ):
                self._evidence.setdefault(name, _Evidence()).learn(grown, expected)
        self._last = name, float(reported), float(estimate)

    def project(self, model: str | None, estimate: float) -> int:
        """Return the expected prompt tokens; the scaled estimate if nothing is reported yet."""
        name = model or ""
        factor = self.factor(name)
        if self._last is None or self._last[0] != name:
            return round(factor * estimate)
        return max(0, round(self._last[1] + factor * (estimate - self._last[2])))

    def unreported(self, model: str | None, estimate: float) -> int:
        """Return the projected tokens that no report covers: those added or removed since the last one."""
        projected = self.project(model, estimate)
        return (
            abs(projected - round(self._last[1]))
            if self._last and self.reported(model)
            else projected
        )

    def reported(self, model: str | None) -> bool:
        """Return whether this model reported the last call: then a projection builds on that."""
        return self._last is not None and self._last[0] == (model or "")

    def factor(self, model: str | None) -> float:
        """Return the factor by which estimates for this model are multiplied."""
        return self._evidence.get(model or "", _Evidence()).factor

    def reset(self) -> None:
        """Forget the last report but not the factors: after a compaction it describes another prompt."""
        self._last = None

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON values, for another process to continue with."""
        evidence = {
            name: [item.reported, item.estimated]
            for name, item in self._evidence.items()
        }
        return {"evidence": evidence, "last": list(self._last) if self._last else None}

    @classmethod
    def load(cls, state: Any) -> Calibration:
        """Return the calibration that `dump` wrote; ignore values of another shape."""
        state = state if isinstance(state, Mapping) else {}
        evidence = state.get("evidence")
        last = state.get("last")
        loaded = cls()
        for name, sums in evidence.items() if isinstance(evidence, Mapping) else ():
            if (
                isinstance(sums, list | tuple)
                and len(sums) == 2
                and all(map(_is_amount, sums))
            ):
                loaded._evidence[str(name)] = _Evidence(*map(float, sums))
        if (
            isinstance(last, list | tuple)
            and len(last) == 3
            and all(map(_is_amount, last[1:]))
        ):
            loaded._last = str(last[0]), float(last[1]), float(last[2])
        return loaded


def _is_amount(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value <= _MAX_REPORT
    )
