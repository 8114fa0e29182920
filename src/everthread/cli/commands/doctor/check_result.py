"""The result of one check of the setup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CheckState = Literal["good", "note", "broken"]


STATE_MARKS: dict[CheckState, tuple[str, str]] = {
    "good": ("✓", "green"),
    "note": ("·", "dim"),
    "broken": ("✗", "bold red"),
}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. A `note` is neither good nor bad, and `advice` says what to do."""

    name: str
    state: CheckState
    text: str
    advice: str = ""

    def as_json(self) -> dict[str, str]:
        return {
            "what": self.name,
            "state": self.state,
            "text": self.text,
            "advice": self.advice,
        }
