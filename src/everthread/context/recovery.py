"""After a refusal: what to try next, as a step with its reason. Conversation and gateway carry it out.

At most three compactions for one request, each stronger than the one before; a smaller output cap at most three times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from everthread.compaction.pruning import prune
from everthread.compaction.summary import CompactionLevel
from everthread.core.messages import Message, results_of
from everthread.core.outputs import ToStore, edit_results, to_store, with_text
from everthread.core.provider_errors import ErrorVerdict
from everthread.core.transcript import latest_user_index

ATTEMPTS = (CompactionLevel.NORMAL, CompactionLevel.HALF_TAIL, CompactionLevel.LATEST_GROUP)
MOST_CAPS = 3
SMALLEST_CAP = 256
"""With less left for the answer, the prompt is what is too long."""
BIG_RESULT = 4_000
"""Characters; where bytes are the trouble, results beyond this are stored and cited."""
TOO_LARGE = frozenset({"prompt_too_long", "max_tokens_too_large", "payload_too_large"})
"""The kinds of refusal a smaller request may mend."""
NEAR_LIMIT = 0.85
"""From this share of the window on a refusal without a word is one for size."""


@dataclass(frozen=True, slots=True)
class RecoveryStep:
    """What to do about a refused request."""

    action: Literal["lower_cap", "slim", "compact", "give_up"]
    text: str = ""
    """For a person."""
    attempt: int = 1
    cap: int | None = None
    level: CompactionLevel = CompactionLevel.NORMAL


GIVE_UP = RecoveryStep("give_up")


@dataclass(slots=True)
class RecoveryAttempts:
    """What was tried for one request."""

    compactions: int = 0
    done: int = 0
    """Compactions that made the request smaller."""
    caps: int = 0
    cap: int | None = None
    """The output cap for the next try."""
    slimmed: bool = False

    def next_step(
        self, verdict: ErrorVerdict, *, asked: int | None, enabled: bool, thinking: int | None = None
    ) -> RecoveryStep:
        """What to try now. Asked again for the same refusal, it gives the next step.

        `asked`: the output cap of the request; `thinking`: the budget the client set, which no cap may fall below.
        """
        if verdict.kind not in TOO_LARGE:
            return GIVE_UP
        if verdict.kind == "max_tokens_too_large":
            self.caps += 1
            room = output_room(verdict, self.cap or asked, thinking)
            if room is not None and self.caps <= MOST_CAPS:
                self.cap = room
                return RecoveryStep("lower_cap", f"asked for at most {room:,} tokens of output", self.caps, room)
        if not enabled:
            return GIVE_UP
        if verdict.kind == "payload_too_large" and not self.slimmed:
            self.slimmed = True
            return RecoveryStep("slim", "dropped old images and stored big results")
        if self.compactions == len(ATTEMPTS):
            return GIVE_UP
        level = ATTEMPTS[self.compactions]
        self.compactions += 1
        words = f"compaction, {level.name.lower().replace('_', ' ')}"
        return RecoveryStep("compact", words, self.compactions, level=level)

    @property
    def failure_text(self) -> str:
        """How far it came, for a person."""
        if not self.done:
            return "and nothing in it could be made smaller"
        return f"even after {self.done} compaction{'s' if self.done > 1 else ''}"


def output_room(verdict: ErrorVerdict, asked: int | None, thinking: int | None = None) -> int | None:
    """The output cap to try next, after one that was too large; None where too little is left to be of use."""
    room = verdict.available_output
    if room is None and verdict.context_limit and verdict.input_tokens:
        room = verdict.context_limit - verdict.input_tokens
    if room is None:
        room = asked // 2 if asked else 0
    return room if room >= max(SMALLEST_CAP, (thinking or 0) + 1) else None


def lasting_cap(verdict: ErrorVerdict, cap: int) -> int:
    """What to remember of a cap that was lowered.

    Where only this prompt left no room for it, that is a quarter of the window, which is kept free for answers anyway:
    the room that one long prompt left says nothing of the next.
    """
    return max(cap, verdict.context_limit // 4) if verdict.context_limit else cap


def slim_messages(bodies: Sequence[Message], preview_chars: int) -> tuple[list[Message], list[ToStore]]:
    """The same messages in fewer bytes, and what must be stored first; those that stay as they are are the same."""
    latest = latest_user_index(bodies)
    slim = prune(bodies, protect_from=len(bodies) if latest is None else latest, results=False).messages
    stored: list[ToStore] = []
    return [_cite_results(index, message, preview_chars, stored) for index, message in enumerate(slim)], stored


def _cite_results(index: int, message: Message, preview_chars: int, stored: list[ToStore]) -> Message:
    if not any(len(result.text) > BIG_RESULT for result in results_of(message)):
        return message

    def replaced(result: Any, _holder: object) -> Any:
        big = len(result.text) > BIG_RESULT
        item = to_store(index, result.call_id, result.text, preview_chars=preview_chars) if big else None
        if item is None:
            return result.content
        stored.append(item)
        return with_text(result.content, item.replacement)

    return edit_results(message, replaced)
