"""Pause automatic compaction after two in a row that hardly helped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_EFFECTIVE_SHARE = 0.90
"""A compaction is effective if the next reported prompt has at most this share of the one before."""
MAX_STRIKES = 2
"""Ineffective compactions in a row that begin a pause."""
PAUSE_SECONDS = 300.0
PAUSE_GROWTH_FACTOR = 1.10


@dataclass(slots=True)
class CompactionPause:
    """Prevent thrashing: two compactions in a row that hardly help pause the next ones.

    Wall-clock times, so that another process can resume.
    """

    judged: int = 0
    """Number of the last compaction whose effect was judged."""
    strikes: int = 0
    since: float | None = None
    tokens: int = 0
    """Size of the prompt when the pause began."""
    relieved: int = 0
    """Size of the prompt before a compaction that was not judged yet."""

    def judge_compaction(
        self, compaction_number: int, tokens_before: int, tokens_after: int, now: float
    ) -> bool:
        """Record the size that the provider counted after a compaction; return whether a pause begins."""
        if compaction_number <= self.judged:
            return False
        self.judged = compaction_number
        self.strikes = (
            0
            if tokens_after <= MAX_EFFECTIVE_SHARE * tokens_before
            else self.strikes + 1
        )
        if self.strikes < MAX_STRIKES:
            return False
        self.since = now
        self.tokens = tokens_after
        return True

    def judge_first_prompt(self, tokens_after: int, now: float) -> bool:
        """Judge the last compaction by the first prompt after it; return whether a pause begins."""
        tokens_before = self.relieved
        self.relieved = 0
        return tokens_before > 0 and self.judge_compaction(
            self.judged + 1, tokens_before, tokens_after, now
        )

    def skip_judging(self, compaction_number: int) -> None:
        """Mark a compaction as judged, because one after an overflow is not judged by its savings."""
        self.judged = max(self.judged, compaction_number)

    def is_active(self, tokens: int, now: float) -> bool:
        """Return whether compactions pause for a prompt of this size."""
        if self.since is None:
            return False
        if (
            tokens < PAUSE_GROWTH_FACTOR * self.tokens
            and 0 <= now - self.since < PAUSE_SECONDS
        ):
            return True
        self.strikes = 0
        self.since = None
        self.tokens = 0
        return False

    def dump(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def load(cls, state: Any) -> CompactionPause:
        """Restore the result of `dump`; ignore values of any other shape."""
        values = state if isinstance(state, Mapping) else {}
        numbers = {
            name: values[name]
            for name in cls.__slots__
            if isinstance(values.get(name), int | float)
        }
        since = numbers.pop("since", None)
        counts = {name: int(value) for name, value in numbers.items()}
        return cls(**counts, since=None if since is None else float(since))


def make_pause_notice(tokens: int) -> str:
    return (
        f"Automatic compaction is paused: two in a row made the prompt hardly smaller ({tokens:,} tokens). It resumes "
        "when the history has grown by a tenth or after five minutes."
    )
