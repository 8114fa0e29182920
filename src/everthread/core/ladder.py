"""What is given up, in order, when what must be kept is too large; every step is told.

1. Oversized tool results of the tail are stored and cited; not the answers of lookups, which would be looked up again.
2. The last n messages are no longer protected (that alone never goes beyond the limit), and the tail is halved.
3. Only the latest group is kept; if even that is beyond the threshold, with its long arguments and images cut, and if
   that does not help either, not at all.
4. Of oversized user messages the middle is stored; start and end stay.

Nothing is stored here: the result names what must be stored before its citations are used.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from everthread.core.boundaries import Boundaries, Count, Room, choose, without_earlier_summary, without_tail
from everthread.core.lookup import is_answer
from everthread.core.messages import Message, Messages, Result, calls_of, kind_of, results_of, text_of, with_content
from everthread.core.outputs import ToStore, cut_middle, edit_results, output_id, to_store, with_text
from everthread.core.pruning import prune
from everthread.core.transcript import is_user_message


class Strength(IntEnum):
    """How hard a compaction begins: after an overflow each attempt is stronger than the one before."""

    NORMAL = 0
    HALF_TAIL = 1
    LATEST_GROUP = 2


@dataclass(frozen=True, slots=True)
class Descent:
    """Where to cut and what must be stored, after as many steps as were needed.

    `messages` keep the places of the input and differ from it only in what is kept. `fits`: the compacted request
    stays within the limit.
    """

    messages: list[Message]
    boundaries: Boundaries
    to_store: tuple[ToStore, ...]
    steps: tuple[str, ...]
    fits: bool


def descend(
    messages: Messages, room: Room, count: Count, *, preview_chars: int, strength: Strength = Strength.NORMAL
) -> Descent:
    """Cut the transcript so that what is kept fits, giving up no more than that takes."""
    half = replace(room, protect_last_n=0, tail=room.tail // 2)
    unprotected = f"no longer protected the last {room.protect_last_n} messages"
    rungs = [
        (room, 0, ""),
        (half, 0, f"{unprotected} and halved the tail to {half.tail:,} tokens"),
        (half, len(messages), "kept only the latest group"),
    ]
    now, earliest, step = rungs[strength]
    cut = choose(messages, now, count, earliest=earliest)
    steps = [step] if step else []
    work = _Kept(list(messages), cut, room, count, preview_chars)
    work.store_results()
    for now, earliest, step in rungs[strength + 1 :]:
        if work.cut.tokens <= room.limit:
            break
        further = choose(work.messages, now, count, earliest=max(work.cut.tail_start, earliest))
        if further.tail_start > work.cut.tail_start:
            work.cut = further
            steps.append(step)
    work.forget_middle(messages)
    pruned = work.prune_tail()
    if work.give_up_tail(messages):
        steps.append("kept no tail: even the latest group is too large")
    elif pruned:
        steps.append("cut long arguments and images of the tail")
    results = len(work.stored)
    work.store_users()
    steps = [
        *([f"stored {results} oversized tool results of the tail"] if results else []),
        *steps,
        *(["stored the middle of oversized user messages"] if len(work.stored) > results else []),
    ]
    return Descent(work.messages, work.cut, tuple(work.stored), tuple(steps), work.cut.tokens <= room.limit)


@dataclass(slots=True)
class _Kept:
    """What is kept, and how it is made smaller. `messages` is a list of our own."""

    messages: list[Message]
    cut: Boundaries
    room: Room
    count: Count
    preview_chars: int
    stored: list[ToStore] = field(default_factory=list)

    def store_results(self) -> None:
        """Store oversized results of the tail, the largest first, until the rest fits."""
        if self.cut.tokens <= self.room.limit:
            return
        for number, stored in sorted(self._oversized(), key=lambda item: -len(item[1].text)):
            if self.cut.tokens <= self.room.limit:
                break
            self._put(stored.index, _with_result(self.messages[stored.index], number, stored.replacement))
            self.stored.append(stored)

    def store_users(self) -> None:
        """Store the middle of kept user messages, the largest first, until the rest is below the threshold."""
        places = [*range(self.cut.head_end), *range(self.cut.tail_start, len(self.messages))]
        if self.cut.keep_after_summary is not None:
            places.append(self.cut.keep_after_summary)
        spoken = [place for place in places if is_user_message(self.messages[place])]
        for place in sorted(spoken, key=lambda place: -len(text_of(self.messages[place]))):
            if self.cut.tokens < self.room.most:
                break
            message, stored = _cut_user(place, self.messages[place], self.preview_chars)
            self._put(place, message)
            self.stored += stored

    def forget_middle(self, original: Messages) -> None:
        """What fell out of the tail after all is replaced as it was, and need not be stored."""
        self.messages[: self.cut.tail_start] = original[: self.cut.tail_start]
        self.stored = [stored for stored in self.stored if stored.index >= self.cut.tail_start]

    def prune_tail(self) -> bool:
        """Make the calls and images of the tail small, where it is beyond the threshold; whether that changed it."""
        if self.cut.tokens < self.room.most:
            return False
        pruned = prune(self.messages, protect_from=len(self.messages), start=self.cut.tail_start, results=False)
        for saving in pruned.savings:
            self._put(saving.index, pruned.messages[saving.index])
        return bool(pruned.savings)

    def give_up_tail(self, original: Messages) -> bool:
        """Replace even the latest group, where everything else is below the threshold without it."""
        cut = without_tail(original, self.cut, self.room, self.count) if self.cut.tokens >= self.room.most else None
        if cut is None or cut.tokens >= self.room.most:
            return False
        self.cut = cut
        self.forget_middle(original)
        return True

    def _oversized(self) -> Iterator[tuple[int, ToStore]]:
        """Results at least twice as long as what would stand for them, each with its number in its message."""
        tools = {call.id: call.name for message in self.messages for call in calls_of(message)}
        for index in range(self.cut.tail_start, len(self.messages)):
            for number, result in enumerate(results_of(self.messages[index])):
                if is_answer(result.name or tools.get(result.call_id, ""), result.text):
                    continue
                stored = to_store(index, result.call_id, result.text, preview_chars=self.preview_chars)
                if stored and 2 * len(stored.replacement) <= len(stored.text):
                    yield number, stored

    def _put(self, place: int, message: Message) -> None:
        self.messages[place] = message
        user = self.cut.kept_user(self.messages)
        kept = [*self.cut.head(self.messages), *([user] if user else []), *self.cut.tail(self.messages)]
        self.cut = replace(self.cut, tokens=self.room.fixed + sum(map(self.count, kept)))


def _with_result(message: Message, number: int, text: str) -> Message:
    numbers = itertools.count()

    def edit(result: Result, _: Mapping[str, Any]) -> Any:
        return with_text(result.content, text) if next(numbers) == number else result.content

    return edit_results(message, edit)


def _cut_user(place: int, message: Message, preview_chars: int) -> tuple[Message, list[ToStore]]:
    """A user message of which only start and end stay, and its middle, where that is most of it."""
    spoken = without_earlier_summary(message) or message
    stored: list[ToStore] = []

    def shorter(text: str) -> str:
        replacement, middle = cut_middle(text, keep=min(preview_chars, len(text) // 8))
        if 2 * len(replacement) > len(text):
            return text
        stored.append(ToStore(place, "", output_id(middle), middle, replacement))
        return replacement

    content: Any = spoken.get("content")
    if isinstance(content, list):
        content = [{**part, "text": shorter(part["text"])} if _is_text(part) else part for part in content]
    else:
        content = shorter(content)
    return (with_content(spoken, content) if stored else message), stored


def _is_text(part: Any) -> bool:
    return kind_of(part) == "text" and isinstance(part.get("text"), str)
