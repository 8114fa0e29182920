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
PAUSE_GROWTH = 1.10


@dataclass(slots=True)
class CompactionPause:
    """Prevent thrashing: two compactions in a row that hardly help pause the next ones.

    Wall-clock times, so that another process can resume.
    """

    judged: int = 0
    """The last compaction whose effect is known."""
    strikes: int = 0
    since: float | None = None
    tokens: int = 0
    """The prompt's size when it began."""
    relieved: int = 0
    """The prompt before a compaction whose effect is not reported yet."""

    def judge(self, depth: int, before: int, reported: int, now: float) -> bool:
        """Take note of the prompt that the provider counted after a compaction; return whether a pause begins."""
        if depth <= self.judged:
            return False
        self.judged = depth
        self.strikes = (
            0 if reported <= MAX_EFFECTIVE_SHARE * before else self.strikes + 1
        )
        if self.strikes < MAX_STRIKES:
            return False
        self.since = now
        self.tokens = reported
        return True

    def report(self, reported: int, now: float) -> bool:
        """Take note of the first prompt after a compaction of `relieved` tokens; return whether a pause begins."""
        before = self.relieved
        self.relieved = 0
        return before > 0 and self.judge(self.judged + 1, before, reported, now)

    def exempt(self, depth: int) -> None:
        """Do not judge a compaction after an overflow by its savings."""
        self.judged = max(self.judged, depth)

    def holds(self, tokens: int, now: float) -> bool:
        """Return whether compactions pause for a prompt of this size."""
        if self.since is None:
            return False
        if (
            tokens < PAUSE_GROWTH * self.tokens
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


def paused_text(tokens: int) -> str:
    return (
        f"Automatic compaction is paused: two in a row made the prompt hardly smaller ({tokens:,} tokens). It resumes "
        "when the history has grown by a tenth or after five minutes."
    )
