"""What a check-up says of one thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["good", "note", "broken"]
MARKS: dict[State, tuple[str, str]] = {"good": ("✓", "green"), "note": ("·", "dim"), "broken": ("✗", "bold red")}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. A `note` is neither good nor bad; `advice` says what to do."""

    what: str
    state: State
    text: str
    advice: str = ""
