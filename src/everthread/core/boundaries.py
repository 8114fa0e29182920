"""Where a transcript is cut: what is kept at the start, what is replaced, what is kept at the end.

A cut never separates tool calls from their results, an earlier summary is always replaced, and the latest user
message always survives word for word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everthread.core.messages import (
    RESULT_BLOCKS,
    Message,
    Messages,
    calls_of,
    kind_of,
    part_text,
    results_of,
    with_content,
)
from everthread.core.summary import is_summary, without_summary
from everthread.core.transcript import Span, head_length, latest_user_index, spans

Count = Callable[[Message], int]
"""The tokens of one message."""


@dataclass(frozen=True, slots=True)
class Room:
    """How much may be kept, in tokens."""

    tail: int
    """The tail is walked back until this is used."""
    protect_last_n: int
    """So many messages are tail as long as the compacted request stays within `limit`."""
    limit: int
    """What the compacted request should not exceed (75 % of the threshold)."""
    most: int
    """What it must stay below (the threshold)."""
    fixed: int = 0
    """What the request holds besides kept messages: system prompt, tools, the summary to come."""


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Head `[0, head_end)`, middle `[head_end, tail_start)`, tail `[tail_start, …)`, and why.

    `keep_after_summary` is the latest user message where it stands in the middle: it is kept directly after the
    summary. `has_middle`: there is something to replace besides that message and earlier summaries. `tokens`: what
    the compacted request will have, `Room.fixed` included.
    """

    head_end: int
    tail_start: int
    latest_user: int | None
    keep_after_summary: int | None
    has_middle: bool
    tokens: int
    reasons: tuple[str, ...]

    def head(self, messages: Messages) -> list[Message]:
        """The kept start, without an earlier summary that was merged into it."""
        return _without_summaries(messages[: self.head_end])

    def middle(self, messages: Messages) -> list[Message]:
        """What is replaced, earlier summaries included."""
        return list(messages[self.head_end : self.tail_start])

    def kept_user(self, messages: Messages) -> Message | None:
        """The message to put directly after the summary."""
        return None if self.keep_after_summary is None else _spoken(messages[self.keep_after_summary])

    def tail(self, messages: Messages) -> list[Message]:
        """The kept end, without an earlier summary that was merged into it."""
        return _without_summaries(messages[self.tail_start :])


def choose(messages: Messages, room: Room, count: Count, *, earliest: int = 0) -> Boundaries:
    """Where to cut. The tail begins at `earliest` or later, but always holds the latest piece and open calls."""
    pieces = spans(messages)
    head_end = _head_end(messages, pieces)
    user = latest_user_index(messages)
    size = _Size(messages, count, head_end, user, room.fixed)
    least = max(latest_piece(messages, pieces), head_end)
    start, used = least, size.of(least, len(messages))
    by_tokens = start
    for piece in reversed(pieces):
        if piece.end > start:
            continue
        if piece.start < max(head_end, earliest) or _holds_summary(messages, piece):
            break
        too_few = len(messages) - start < room.protect_last_n
        wider = used + size.of(piece.start, piece.end)
        if used + size.of(piece.end - 1, piece.end) <= room.tail:
            by_tokens = piece.start
        elif not too_few or size.request(piece.start, wider) > room.limit:
            break
        start, used = piece.start, wider
    apart = user if user is not None and head_end <= user < start else None
    middle = (messages[index] for index in range(head_end, start) if index != apart)
    return Boundaries(
        head_end=head_end,
        tail_start=start,
        latest_user=user,
        keep_after_summary=apart,
        has_middle=any(without_earlier_summary(message) is not None for message in middle),
        tokens=size.request(start, used),
        reasons=(
            f"The head is {_messages(head_end)}.",
            _tail_reason(room, used, kept=len(messages) - start, widened=start < by_tokens, least=start == least),
            _user_reason(user, head_end, start),
        ),
    )


def without_tail(messages: Messages, cut: Boundaries, room: Room, count: Count) -> Boundaries | None:
    """The cut moved to the very end; None where the end must stay: calls are open, or it is what the user said last."""
    end, user = len(messages), cut.latest_user
    if open_group(messages) is not None or (user is not None and user >= cut.tail_start) or cut.tail_start == end:
        return None
    return replace(
        cut,
        tail_start=end,
        keep_after_summary=user if user is not None and user >= cut.head_end else None,
        has_middle=True,
        tokens=_Size(messages, count, cut.head_end, user, room.fixed).request(end, 0),
        reasons=(cut.reasons[0], "There is no tail.", _user_reason(user, cut.head_end, end)),
    )


def latest_piece(messages: Messages, pieces: Sequence[Span] | None = None) -> int:
    """Where the least tail begins: at the latest group or message, or at the calls that are still open.

    An earlier summary at the very end is no tail.
    """
    pieces = spans(messages) if pieces is None else pieces
    start = pieces[-1].start if pieces else 0
    if all(without_earlier_summary(message) is None for message in messages[start:]):
        start = len(messages)
    unanswered = open_group(messages)
    if unanswered is not None:
        start = min(start, next(piece.start for piece in pieces if piece.end > unanswered))
    return start


def open_group(messages: Messages) -> int | None:
    """The assistant message whose calls may still be answered: some are not, and no assistant message follows it."""
    last = next((at for at in range(len(messages) - 1, -1, -1) if messages[at].get("role") == "assistant"), None)
    if last is None:
        return None
    waiting = [call.id for call in calls_of(messages[last])]
    for result in (result for message in messages[last + 1 :] for result in results_of(message)):
        if result.call_id in waiting:
            waiting.remove(result.call_id)
    return last if waiting else None


def without_earlier_summary(message: Message) -> Message | None:
    """The message without an earlier summary in it; None where it is nothing else."""
    if not is_summary(message):
        return message
    content = message.get("content")
    rest: Any
    if isinstance(content, list):
        rest = [kept for part in content if (kept := _strip_part(part)) is not None]
    else:
        rest = without_summary(str(content)).strip()
    return with_content(message, rest or None) if rest or message.get("tool_calls") else None


@dataclass(frozen=True, slots=True)
class _Size:
    """Tokens of what would be kept."""

    messages: Messages
    count: Count
    head_end: int
    user: int | None
    fixed: int

    def of(self, start: int, end: int) -> int:
        return sum(map(self.count, _without_summaries(self.messages[start:end])))

    def request(self, tail_start: int, tail: int) -> int:
        """The compacted request with this tail; the latest user message counts wherever it is kept."""
        apart = self.user is not None and self.head_end <= self.user < tail_start
        spoken = self.count(_spoken(self.messages[self.user or 0])) if apart else 0
        return self.fixed + self.of(0, self.head_end) + spoken + tail


def _head_end(messages: Messages, pieces: list[Span]) -> int:
    """The protected start, ending before an earlier summary and never inside a group."""
    end = head_length(messages)
    end = next((index for index in range(end) if without_earlier_summary(messages[index]) is None), end)
    return next((piece.start for piece in pieces if piece.start < end < piece.end), end)


def _holds_summary(messages: Messages, piece: Span) -> bool:
    return any(without_earlier_summary(message) is None for message in messages[piece.start : piece.end])


def _without_summaries(messages: Messages) -> list[Message]:
    return [kept for message in messages if (kept := without_earlier_summary(message)) is not None]


def _strip_part(part: Any) -> Any:
    text = part_text(part)
    rest = without_summary(text)
    if rest == text:
        return part
    return {"type": "text", "text": rest.strip()} if rest.strip() else None


def _spoken(message: Message) -> Message:
    """What the user says in a message: tool results it carries stay with their calls."""
    content = message.get("content")
    if isinstance(content, list) and any(kind_of(part) in RESULT_BLOCKS for part in content):
        message = with_content(message, [part for part in content if kind_of(part) not in RESULT_BLOCKS])
    return without_earlier_summary(message) or message


def _messages(number: int) -> str:
    return "1 message" if number == 1 else f"{number} messages"


def _tail_reason(room: Room, used: int, *, kept: int, widened: bool, least: bool) -> str:
    figure = f"The tail is {_messages(kept)}, {used:,} tokens of {room.tail:,}"
    if least:
        return f"{figure}: the latest group or message, which always stays."
    if widened:
        return f"{figure}: widened towards the last {room.protect_last_n} messages, up to {room.limit:,} tokens in all."
    if used > room.tail:
        return f"{figure}: the cut moved back so that tool calls stay with their results."
    return f"{figure}."


def _user_reason(user: int | None, head_end: int, tail_start: int) -> str:
    if user is None:
        return "There is no user message to keep."
    if user < head_end:
        return f"The latest user message ({user}) stays in the head."
    if user >= tail_start:
        return f"The latest user message ({user}) stays in the tail."
    return f"The latest user message ({user}) is older than the tail: it is kept word for word after the summary."
