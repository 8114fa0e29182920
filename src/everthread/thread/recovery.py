"""The steps after a refusal for size, each with its reason.

At most three compactions for one request, each stronger than the one before; a smaller output cap at most three times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from everthread.compaction.pruning import drop_media, prune
from everthread.compaction.summary import CompactionLevel
from everthread.core.messages import (
    Message,
    edit_results,
    kind_of,
    results_of,
    with_content,
    with_text,
)
from everthread.core.outputs import ToStore, to_store
from everthread.core.provider_errors.classification import ErrorVerdict
from everthread.core.transcript import latest_user_index
from everthread.wire.definitions import loads_tools

ATTEMPTS = (
    CompactionLevel.NORMAL,
    CompactionLevel.HALF_TAIL,
    CompactionLevel.LATEST_GROUP,
)
_LEVEL_TEXTS = {
    CompactionLevel.NORMAL: "compacting the history",
    CompactionLevel.HALF_TAIL: "keeping half as many recent messages",
    CompactionLevel.LATEST_GROUP: "keeping only the latest messages",
}
MAX_CAPS = 3
MIN_CAP = 256
"""If less is left for the answer, the prompt itself is too long."""
BIG_RESULT_CHARS = 4_000
"""If a request has too many bytes, results with more characters than this are stored and cited."""
TOO_LARGE = frozenset({"prompt_too_long", "max_tokens_too_large", "payload_too_large"})
"""Kinds of refusal that a smaller request may fix."""
DOCUMENT_BLOCKS = frozenset({"document", "file", "input_file"})
REPORTED_MARGIN = 50
UNREPORTED_MARGIN = 3
"""Parts of a prompt (1/50) and of its tokens not yet counted by the provider (1/3) to keep free beside it."""
NEAR_LIMIT = 0.85
"""From this share of the window on, a refusal without a reason counts as one for size."""


@dataclass(frozen=True, slots=True)
class RecoveryStep:
    """The next attempt after a refused request."""

    action: Literal["lower_cap", "slim", "compact", "give_up"]
    text: str = ""
    """A message for the user."""
    attempt: int = 1
    cap: int | None = None
    level: CompactionLevel = CompactionLevel.NORMAL


GIVE_UP = RecoveryStep("give_up")


@dataclass(slots=True)
class RecoveryAttempts:
    """The attempts for one request."""

    compactions: int = 0
    done: int = 0
    """Compactions that made the request smaller."""
    caps: int = 0
    cap: int | None = None
    """The output cap for the next try."""
    slimmed: bool = False

    def next_step(
        self,
        verdict: ErrorVerdict,
        *,
        output_cap: int | None,
        enabled: bool,
        thinking: int | None = None,
    ) -> RecoveryStep:
        """Return the next step; a repeated call for the same refusal returns the one after it.

        `output_cap`: the cap of the request; `thinking`: the budget the client set, which no cap may fall below.
        """
        if verdict.kind not in TOO_LARGE:
            return GIVE_UP
        if verdict.kind == "max_tokens_too_large":
            self.caps += 1
            room = output_room(verdict, self.cap or output_cap, thinking)
            if room is not None and self.caps <= MAX_CAPS:
                self.cap = room
                return RecoveryStep(
                    "lower_cap",
                    f"asking for at most {room:,} tokens of output",
                    self.caps,
                    room,
                )
        if not enabled:
            return GIVE_UP
        if verdict.kind == "payload_too_large" and not self.slimmed:
            self.slimmed = True
            return RecoveryStep("slim", "dropping old images and storing big results")
        if self.compactions == len(ATTEMPTS):
            return GIVE_UP
        level = ATTEMPTS[self.compactions]
        self.compactions += 1
        return RecoveryStep(
            "compact", _LEVEL_TEXTS[level], self.compactions, level=level
        )

    @property
    def failure_text(self) -> str:
        """The attempts, in a sentence for a person."""
        if not self.done:
            return "and nothing in it could be made smaller"
        return f"even after {self.done} compaction{'s' if self.done > 1 else ''}"


def output_room(
    verdict: ErrorVerdict, output_cap: int | None, thinking: int | None = None
) -> int | None:
    """Return the output cap to try after one that was too large; None if too little is left."""
    room = verdict.available_output
    if room is None and verdict.context_limit and verdict.input_tokens:
        room = verdict.context_limit - verdict.input_tokens
    if room is None:
        room = output_cap // 2 if output_cap else 0
    return room if room >= max(MIN_CAP, (thinking or 0) + 1) else None


def room_for_output(window: int, prompt: int, *, unreported: int) -> int:
    """Return the largest output cap that fits beside a prompt in a learnt window.

    `unreported`: how many tokens of the prompt are estimated, because the provider has not counted them yet.
    """
    margin = prompt // REPORTED_MARGIN + unreported // UNREPORTED_MARGIN
    return max(window - prompt - margin, MIN_CAP)


def slim_messages(
    bodies: Sequence[Message], preview_chars: int
) -> tuple[list[Message], list[ToStore]]:
    """Return the same messages in fewer bytes and with fewer attachments, and the texts to store first.

    Images and documents stay in the latest user message and in the latest results.
    """
    latest = latest_user_index(bodies)
    slim = prune(
        bodies, protect_from=len(bodies) if latest is None else latest, results=False
    )
    newest = max(
        (at for at, message in enumerate(bodies) if message.get("role") == "assistant"),
        default=0,
    )
    slim[:newest] = [
        _drop_attachments(message, is_latest=at == latest)
        for at, message in enumerate(slim[:newest])
    ]
    stored: list[ToStore] = []
    return [
        _cite_results(index, message, preview_chars, stored)
        for index, message in enumerate(slim)
    ], stored


def _drop_attachments(message: Message, *, is_latest: bool) -> Message:
    """Replace the documents of a message, and the images in its tool results, by placeholders."""
    message = edit_results(
        message, lambda result, _holder: drop_media(result.content)[0]
    )
    parts = message.get("content")
    if (
        is_latest
        or not isinstance(parts, list)
        or not any(kind_of(part) in DOCUMENT_BLOCKS for part in parts)
    ):
        return message
    return with_content(
        message,
        [
            _document_label(part) if kind_of(part) in DOCUMENT_BLOCKS else part
            for part in parts
        ],
    )


def _document_label(part: Mapping[str, Any]) -> dict[str, str]:
    file = part.get("file")
    names = file if isinstance(file, Mapping) else part
    name = next(
        (
            names[key]
            for key in ("title", "filename")
            if isinstance(names.get(key), str)
        ),
        "",
    )
    return {
        "type": "text",
        "text": f"[document removed: {name[:100]}]" if name else "[document removed]",
    }


def _cite_results(
    index: int, message: Message, preview_chars: int, stored: list[ToStore]
) -> Message:
    if loads_tools(message) or not any(
        len(result.text) > BIG_RESULT_CHARS for result in results_of(message)
    ):
        return message

    def replaced(result: Any, _holder: object) -> Any:
        big = len(result.text) > BIG_RESULT_CHARS
        item = (
            to_store(index, result.call_id, result.text, preview_chars=preview_chars)
            if big
            else None
        )
        if item is None:
            return result.content
        stored.append(item)
        return with_text(result.content, item.replacement)

    return edit_results(message, replaced)
