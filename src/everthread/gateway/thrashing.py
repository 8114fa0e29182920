"""No thrashing: two rewrites in a row that hardly help pause the next ones, until more has been said or time passed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from everthread.compaction.pacing import EFFECTIVE, PAUSE_GROWTH, PAUSE_SECONDS, STRIKES


@dataclass(slots=True)
class Pause:
    """What a thread's rewrites brought. Times are of the wall: another process goes on with them."""

    judged: int = 0
    """The last compaction whose effect is known."""
    strikes: int = 0
    since: float | None = None
    tokens: int = 0
    """The prompt's size when it began."""

    def judge(self, depth: int, before: int, reported: int, now: float) -> bool:
        """Take note of the prompt the provider counted after a new rewrite; True where a pause begins with it."""
        if depth <= self.judged:
            return False
        self.judged = depth
        self.strikes = 0 if reported <= EFFECTIVE * before else self.strikes + 1
        if self.strikes < STRIKES:
            return False
        self.since, self.tokens = now, reported
        return True

    def exempt(self, depth: int) -> None:
        """A rewrite after an overflow is not judged by what it brings."""
        self.judged = max(self.judged, depth)

    def holds(self, tokens: int, now: float) -> bool:
        """Whether rewrites pause for a prompt of this size."""
        if self.since is None:
            return False
        if tokens < PAUSE_GROWTH * self.tokens and 0 <= now - self.since < PAUSE_SECONDS:
            return True
        self.strikes, self.since, self.tokens = 0, None, 0
        return False

    def dump(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def load(cls, state: Any) -> Pause:
        """From what `dump` gave; whatever is not of that shape is as if it had never been."""
        if not isinstance(state, Mapping):
            return cls()
        numbers = {name: value for name, value in state.items() if isinstance(value, int | float)}
        since = numbers.get("since")
        return cls(
            int(numbers.get("judged", 0)),
            int(numbers.get("strikes", 0)),
            None if since is None else float(since),
            int(numbers.get("tokens", 0)),
        )


def paused_text(tokens: int) -> str:
    return (
        f"Automatic compaction is paused: two in a row made the prompt hardly smaller ({tokens:,} tokens). It resumes "
        "when the history has grown by a tenth or after five minutes."
    )


def fading_text(count: int) -> str:
    return (
        f"This conversation was compacted {count} times; older detail may fade. A new conversation starts afresh; "
        "what must last belongs into the system prompt or a memory."
    )
