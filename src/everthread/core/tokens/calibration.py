"""Project the size of a prompt from the provider's reports and our estimates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from everthread.core.json_values import as_object

_PRIOR_TOKENS = 2_000.0
"""Weight of the initial factor of one, in tokens of evidence."""
_MAX_EVIDENCE_TOKENS = 100_000.0
"""Tokens of evidence after which older evidence fades."""
_MAX_DEVIATION = 3.0
"""A larger deviation means that the report covers something else."""
_MAX_REPORTED_TOKENS = 1e12
"""Reports above this, or that are not numbers, are ignored."""


@dataclass(slots=True)
class _Evidence:
    """The sums of reported and estimated tokens of one model, from which its factor follows."""

    reported_tokens: float = 0.0
    estimated_tokens: float = 0.0

    def learn(self, reported: float, estimated: float) -> None:
        self.reported_tokens += reported
        self.estimated_tokens += estimated
        if self.estimated_tokens > _MAX_EVIDENCE_TOKENS:
            self.reported_tokens /= 2
            self.estimated_tokens /= 2

    @property
    def factor(self) -> float:
        return (_PRIOR_TOKENS + self.reported_tokens) / (_PRIOR_TOKENS + self.estimated_tokens)


@dataclass(slots=True)
class Calibration:
    """The usage reported for one conversation, and the corrections of estimates learnt for each model.

    projected = last reported + factor × (estimate now − estimate then): the report covers everything that an estimate
    cannot see (the provider's own prompt, its tokenizer); the factor learns how far estimates of this model are off.
    """

    _evidence: dict[str, _Evidence] = field(default_factory=dict)
    _last_report: tuple[str, float, float] | None = None

    def observe(self, model: str | None, reported: Any, estimate: float) -> None:
        """Record the prompt tokens reported for a call to `model`, and the estimate of the same prompt.

        Ignore a report that is missing, zero, or too small to be the whole prompt (for example only the uncached part).
        If the prompt shrank, or its growth differs widely from the estimate, because something was dropped or replaced,
        the report becomes the new base and nothing is learnt from the difference.
        """
        name = model or ""
        if not _is_amount(reported) or not reported or reported < estimate / _MAX_DEVIATION:
            return
        if self._last_report is not None and self._last_report[0] == name:
            reported_growth = reported - self._last_report[1]
            estimated_growth = estimate - self._last_report[2]
            if (
                estimated_growth > 0
                and estimated_growth / _MAX_DEVIATION
                <= reported_growth
                <= estimated_growth * _MAX_DEVIATION
            ):
                self._evidence.setdefault(name, _Evidence()).learn(
                    reported_growth, estimated_growth
                )
        self._last_report = name, float(reported), float(estimate)

    def project(self, model: str | None, estimate: float) -> int:
        """Return the expected prompt tokens; the scaled estimate if nothing is reported yet."""
        name = model or ""
        factor = self.factor(name)
        if self._last_report is None or self._last_report[0] != name:
            return round(factor * estimate)
        return max(0, round(self._last_report[1] + factor * (estimate - self._last_report[2])))

    def count_unreported_tokens(self, model: str | None, estimate: float) -> int:
        """Return the projected tokens that no report covers: added or removed since the last one."""
        projected = self.project(model, estimate)
        if self._last_report is None or not self.has_report(model):
            return projected
        return abs(projected - round(self._last_report[1]))

    def has_report(self, model: str | None) -> bool:
        """Return whether the last report is from this model, so that a projection builds on it."""
        return self._last_report is not None and self._last_report[0] == (model or "")

    def factor(self, model: str | None) -> float:
        """Return the factor by which estimates for this model are multiplied."""
        return self._evidence.get(model or "", _Evidence()).factor

    def reset(self) -> None:
        """Forget the last report but not the factors: after a compaction it describes another prompt."""
        self._last_report = None

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON values, for another process to continue with."""
        evidence = {
            name: [item.reported_tokens, item.estimated_tokens]
            for name, item in self._evidence.items()
        }
        return {
            "evidence": evidence,
            "last": list(self._last_report) if self._last_report else None,
        }

    @classmethod
    def load(cls, state: Any) -> Calibration:
        """Return the calibration that `dump` wrote; ignore values of another shape."""
        fields = as_object(state)
        calibration = cls()
        for name, amounts in as_object(fields.get("evidence")).items():
            if _are_amounts(amounts):
                calibration._evidence[name] = _Evidence(float(amounts[0]), float(amounts[1]))
        last_report = fields.get("last")
        if isinstance(last_report, list | tuple) and _are_amounts(last_report[1:]):
            model, reported_tokens, estimated_tokens = last_report
            calibration._last_report = (
                str(model),
                float(reported_tokens),
                float(estimated_tokens),
            )
        return calibration


def _are_amounts(values: Any) -> bool:
    """Return whether these are two amounts: of reported and of estimated tokens."""
    return isinstance(values, list | tuple) and len(values) == 2 and all(map(_is_amount, values))


def _is_amount(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value <= _MAX_REPORTED_TOKENS
    )
