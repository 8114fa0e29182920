"""Where a transcript is cut: what is kept at the start, what is replaced, what is kept at the end.

A cut never separates tool calls from their results, an earlier summary is always replaced, and the latest user message
always survives word for word. In the tail the newest results stay whole; older ones are one line each, so that more of
the conversation fits. Where the rest is too large it is reduced step by step, and every step is reported.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everthread.compaction.pruning import Pruner, open_group, prune
from everthread.compaction.summary import CompactionLevel
from everthread.core.messages import (
    RESULT_BLOCKS,
    Message,
    Messages,
    Result,
    count_noun,
    edit_results,
    kind_of,
    results_of,
    text_of,
    with_content,
    with_text,
)
from everthread.core.outputs import ToStore, cut_middle, output_id, to_store
from everthread.core.tokens import TokenCounter
from everthread.core.transcript import Span, is_answer, without_summary


@dataclass(frozen=True, slots=True)
class Room:
    """How much may be kept, in tokens."""

    tail: int
    """The tail is walked back until this is used."""
    protect_last_n: int
    """So many messages are tail as long as the compacted request stays within `limit`."""
    limit: int
    """The compacted request should not exceed this."""
    most: int
    """The compacted request must stay below this: the threshold."""
    fixed: int = 0
    """Tokens of system prompt and tools."""
    summary: int = 0
    """For the summary without the user's words."""
    summary_least: int = 0
    words: int = 0
    """The user's words may take this much."""
    words_least: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """Head `[0, head_end)`, middle `[head_end, tail_start)`, tail `[tail_start, …)`, and why.

    From `whole_from` on the tail stands as it was; before that its old results are one line each. `kept_user` is the
    latest user message where it stands in the middle: it is kept directly after the summary. `tokens`: what the
    compacted request will have at most.
    """

    head_end: int
    tail_start: int
    whole_from: int
    kept_user: int | None
    has_middle: bool
    tokens: int
    reasons: tuple[str, ...]

    def user(self, messages: Messages) -> Message | None:
        """The message to put directly after the summary."""
        return None if self.kept_user is None else spoken_part(messages[self.kept_user])


@dataclass(frozen=True, slots=True)
class WordSizes:
    """Running sums of the tokens of the user's messages, earlier summaries included."""

    places: list[int]
    sums: list[int]
    """The sum before each place, and the sum of all: one more than `places`."""

    def before(self, index: int) -> int:
        """Tokens of the user's messages before an index."""
        return self.sums[bisect_left(self.places, index)]


@dataclass(frozen=True, slots=True)
class Fit:
    """Where to cut and what must be stored, after as many steps as were needed.

    `messages` keep the places of the input and differ from it only in what is kept. `room`: what is left for the
    summary and the user's words.
    """

    messages: list[Message]
    cut: Cut
    room: Room
    to_store: tuple[ToStore, ...]
    steps: tuple[str, ...]

    def without_middle(self, slim: Pruner) -> Fit:
        """The fit that keeps the middle too, its old results as one line each."""
        cut = self.cut
        uncut = replace(cut, tail_start=cut.head_end, kept_user=None, has_middle=False)
        messages = [
            *self.messages[: cut.head_end],
            *map(slim.message, range(cut.head_end, cut.whole_from)),
            *self.messages[cut.whole_from :],
        ]
        return replace(self, messages=messages, cut=uncut)


def latest_piece(messages: Messages, pieces: Sequence[Span]) -> int:
    """Where the least tail begins: at the latest group or message, or at the calls that are still open.

    An earlier summary at the very end is no tail.
    """
    start = pieces[-1].start if pieces else 0
    if all(without_summary(message) is None for message in messages[start:]):
        start = len(messages)
    unanswered = open_group(messages)
    if unanswered is not None:
        start = min(start, next(piece.start for piece in pieces if piece.end > unanswered))
    return start


def spoken_part(message: Message) -> Message:
    """What the user says in a message: tool results it carries stay with their calls."""
    content = message.get("content")
    if isinstance(content, list) and any(kind_of(part) in RESULT_BLOCKS for part in content):
        message = with_content(message, [part for part in content if kind_of(part) not in RESULT_BLOCKS])
    return without_summary(message) or message


class Fitter:
    """Cuts a transcript so that what is kept fits, giving up no more than that takes.

    `slim` gives the messages with old results as one line each, `words` what the user said outside the head. `messages`
    is a list of our own, `sizes` the tokens of what is kept of each.
    """

    def __init__(
        self, slim: Pruner, room: Room, counter: TokenCounter, words: WordSizes, *, preview_chars: int
    ) -> None:
        history = slim.history
        self.history, self.slim, self.room = history, slim, room
        self.counter, self.words, self.preview_chars = counter, words, preview_chars
        self.stored: list[ToStore] = []
        self.steps: list[str] = []
        self.messages, self.sizes = list(history.messages), list(history.sizes)
        for index in history.summaries:
            rest = history.facts[index].rest
            self.sizes[index] = 0 if rest is None else self.counter.message(rest)
        self.head_end, self.user = history.head_end, history.latest_user
        self.least = max(latest_piece(self.messages, history.pieces), self.head_end)
        self.head = sum(self.sizes[: self.head_end])
        self.has_summary = any(history.facts[index].rest is None for index in history.summaries)
        """Whether an earlier summary is a message of its own."""

    def fit(self, level: CompactionLevel) -> Fit:
        earliest = len(self.messages) if level == CompactionLevel.LATEST_GROUP else 0
        if level > CompactionLevel.NORMAL:
            self._halve()
        cut = self.choose(earliest)
        if cut.tokens > self.room.limit:
            cut = self._store_results(cut, self.room.tail // 2, earliest)
        if cut.tokens > self.room.limit and level == CompactionLevel.NORMAL:
            self._halve()
            cut = self.choose(earliest)
        cut = self._squeeze_summary(cut)
        cut = self._store_results(cut, 0, earliest)
        if cut.tokens > self.room.limit and earliest == 0:
            further = self.choose(len(self.messages))
            if further.tail_start > cut.tail_start:
                cut = further
                self.steps.append("kept only the latest group")
        self._forget_middle(cut)
        cut = self._shrink_tail(cut)
        cut = self._store_users(cut)
        # Old results of the tail are kept as one line each.
        slim = map(self.slim.message, range(cut.tail_start, cut.whole_from))
        kept = [*self.messages[: cut.tail_start], *slim, *self.messages[cut.whole_from :]]
        return Fit(kept, cut, self.room, tuple(self.stored), tuple(self.steps))

    # Where to cut

    def choose(self, earliest: int = 0) -> Cut:
        """The cut for the present room. The tail begins at `earliest` or later, but holds the latest piece."""
        room, total = self.room, len(self.messages)
        start = whole_from = self.least
        tail_tokens = sum(self.sizes[start:])
        # One oversized group takes half of the tail at most, so that it does not push small recent messages out.
        used = min(tail_tokens, room.tail // 2)
        is_whole = True
        widened = False
        for piece in reversed(self.history.pieces):
            if piece.end > start:
                continue
            if piece.start < max(self.head_end, earliest) or self._holds_summary(piece):
                break
            size = sum(self.sizes[piece.start : piece.end])
            is_whole = is_whole and used + size <= room.tail // 2
            size = size if is_whole else self._slim_tokens(range(piece.start, piece.end))
            if used + size > room.tail:
                too_few = total - start < room.protect_last_n
                if not too_few or self._request(piece.start, tail_tokens + size) > room.limit:
                    break
                widened = True
            start, tail_tokens, used = piece.start, tail_tokens + size, used + size
            whole_from = piece.start if is_whole else whole_from
        apart = self.user if self.user is not None and self.head_end <= self.user < start else None
        facts = self.history.facts
        middle = (facts[index] for index in range(self.head_end, start) if index != apart)
        reasons = (
            f"The head is {count_noun(self.head_end, 'message')}.",
            _tail_reason(room, tail_tokens, kept_messages=total - start, widened=widened, least=start == self.least),
            _user_reason(self.user, self.head_end, start),
        )
        return Cut(
            self.head_end, start, whole_from, apart, any(one.rest is not None for one in middle),
            self._request(start, tail_tokens), reasons,
        )  # fmt: skip

    def _request(self, start: int, tail: int) -> int:
        """The compacted request with this tail; the latest user message counts wherever it is kept."""
        apart = self.user is not None and self.head_end <= self.user < start
        spoken = self.counter.message(spoken_part(self.messages[self.user or 0])) if apart else 0
        words = min(self.room.words, self.words.before(start))
        return self.room.fixed + self.head + self.room.summary + words + spoken + tail

    # What gives way

    def _halve(self) -> None:
        self.room = replace(self.room, protect_last_n=0, tail=self.room.tail // 2)
        self.steps.append(f"protected no last messages and halved the tail to {self.room.tail:,} tokens")

    def _squeeze_summary(self, cut: Cut) -> Cut:
        """Less room for the user's words, then for the summary."""
        for name, least, what in (
            ("words", self.room.words_least, "the user's words"),
            ("summary", self.room.summary_least, "the summary"),
        ):
            over, now = cut.tokens - self.room.limit, getattr(self.room, name)
            taken = min(now, self.words.before(cut.tail_start)) if name == "words" else now
            reduction = min(over, max(taken - least, 0))
            if over > 0 and reduction > 0:
                self.room = replace(self.room, **{name: taken - reduction})
                cut = replace(cut, tokens=cut.tokens - reduction)
                self.steps.append(f"left {taken - reduction:,} tokens for {what}")
        return cut

    def _store_results(self, cut: Cut, larger_than: int, earliest: int) -> Cut:
        """Store results of the tail that have more tokens than this, the largest first, until the rest fits."""
        if cut.tokens <= self.room.limit:
            return cut
        before = len(self.stored)
        for number, stored in sorted(self._find_oversized(cut), key=lambda item: -len(item[1].text)):
            if cut.tokens <= self.room.limit or len(stored.text) // 4 <= larger_than:
                break
            self._put(stored.index, _replace_result(self.messages[stored.index], number, stored.replacement))
            self.stored.append(stored)
            cut = self._recount(cut)
        if len(self.stored) > before:
            self.steps.append(f"stored {len(self.stored) - before} oversized tool results of the tail")
            cut = self.choose(earliest) if cut.tokens <= self.room.limit else cut
        return cut

    def _shrink_tail(self, cut: Cut) -> Cut:
        """Cut long arguments and images of the tail; where that does not help either, keep no tail at all."""
        if cut.tokens < self.room.most and cut.tokens <= self.room.limit:
            return cut
        pruned = prune(self.messages, protect_from=len(self.messages), start=cut.tail_start, results=False)
        changed = [index for index, message in enumerate(pruned) if message is not self.messages[index]]
        if changed:
            for index in changed:
                self._put(index, pruned[index])
            self.steps.append("cut long arguments and images of the tail")
            cut = self._recount(cut)
        if cut.tokens < self.room.most or open_group(self.messages) is not None:
            return cut
        if (self.user is not None and self.user >= cut.tail_start) or cut.tail_start == len(self.messages):
            return cut
        end = len(self.messages)
        bare = replace(
            cut, tail_start=end, whole_from=end, has_middle=True, tokens=self._request(end, 0),
            kept_user=self.user if self.user is not None and self.user >= self.head_end else None,
            reasons=(cut.reasons[0], "There is no tail.", _user_reason(self.user, self.head_end, end)),
        )  # fmt: skip
        if bare.tokens >= self.room.most:
            return cut
        self._forget_middle(bare)
        self.steps.append("kept no tail: even the latest group is too large")
        return bare

    def _store_users(self, cut: Cut) -> Cut:
        """Store the middle of kept user messages, the largest first, until the rest is below the threshold."""
        indices = [*range(cut.head_end), *range(cut.tail_start, len(self.messages))]
        if cut.kept_user is not None:
            indices.append(cut.kept_user)
        users = (
            [index for index in indices if self.history.facts[index].is_user] if cut.tokens >= self.room.most else []
        )
        before = len(self.stored)
        for index in sorted(users, key=lambda index: -len(text_of(self.messages[index]))):
            if cut.tokens < self.room.most:
                break
            message, stored = _cut_user(index, self.messages[index], self.preview_chars)
            self._put(index, message)
            self.stored += stored
            self.head = sum(self.sizes[: self.head_end])
            cut = self._recount(cut)
        if len(self.stored) > before:
            self.steps.append("stored the middle of oversized user messages")
        return cut

    def _forget_middle(self, cut: Cut) -> None:
        """Restore messages that are no longer in the tail: the summary covers them, so nothing of them is stored."""
        self.messages[: cut.tail_start] = self.history.messages[: cut.tail_start]
        self.stored = [stored for stored in self.stored if stored.index >= cut.tail_start]

    def _put(self, index: int, message: Message) -> None:
        """Replace the message at this index."""
        self.messages[index] = message
        rest = without_summary(message)
        self.sizes[index] = 0 if rest is None else self.counter.message(rest)

    def _find_oversized(self, cut: Cut) -> Iterator[tuple[int, ToStore]]:
        """Results at least twice as long as their replacement, each with its number in its message."""
        tools = {call.id: call.name for one in self.history.facts[cut.tail_start :] for call in one.calls}
        for index in range(max(cut.tail_start, cut.whole_from), len(self.messages)):
            for number, result in enumerate(results_of(self.messages[index])):
                if is_answer(result.name or tools.get(result.call_id, ""), result.text):
                    continue
                stored = to_store(index, result.call_id, result.text, preview_chars=self.preview_chars)
                if stored and 2 * len(stored.replacement) <= len(stored.text):
                    yield number, stored

    # Sizes

    def _recount(self, cut: Cut) -> Cut:
        tail = self._slim_tokens(range(cut.tail_start, cut.whole_from)) + sum(self.sizes[cut.whole_from :])
        return replace(cut, tokens=self._request(cut.tail_start, tail))

    def _slim_tokens(self, places: Iterable[int]) -> int:
        return sum(map(self._slim_size, places))

    def _slim_size(self, index: int) -> int:
        if not self.history.facts[index].is_summary:
            return self.slim.tokens(index, self.counter)
        rest = without_summary(self.slim.message(index))
        return 0 if rest is None else self.counter.message(rest)

    def _holds_summary(self, piece: Span) -> bool:
        return self.has_summary and any(one.rest is None for one in self.history.facts[piece.start : piece.end])


def _replace_result(message: Message, number: int, text: str) -> Message:
    numbers = itertools.count()

    def edit(result: Result, _: Mapping[str, Any]) -> Any:
        return with_text(result.content, text) if next(numbers) == number else result.content

    return edit_results(message, edit)


def _cut_user(index: int, message: Message, preview_chars: int) -> tuple[Message, list[ToStore]]:
    """A user message with only its start and end, and the middle to store; unchanged where that saves little."""
    spoken = without_summary(message) or message
    stored: list[ToStore] = []

    def shorter(text: str) -> str:
        replacement, middle = cut_middle(text, keep=min(preview_chars, len(text) // 8))
        if 2 * len(replacement) > len(text):
            return text
        stored.append(ToStore(index, "", output_id(middle), middle, replacement))
        return replacement

    content: Any = spoken.get("content")
    if isinstance(content, list):
        content = [{**part, "text": shorter(part["text"])} if _is_text(part) else part for part in content]
    else:
        content = shorter(content)
    return (with_content(spoken, content) if stored else message), stored


def _is_text(part: Any) -> bool:
    return kind_of(part) == "text" and isinstance(part.get("text"), str)


def _tail_reason(room: Room, used: int, *, kept_messages: int, widened: bool, least: bool) -> str:
    figure = f"The tail is {count_noun(kept_messages, 'message')}, {used:,} tokens of {room.tail:,}"
    if least:
        return f"{figure}: the latest group or message, which always stays."
    if widened:
        return f"{figure}: widened towards the last {room.protect_last_n} messages, up to {room.limit:,} tokens in all."
    if used > room.tail:
        return f"{figure}: the latest group is larger than its share."
    return f"{figure}."


def _user_reason(user: int | None, head_end: int, tail_start: int) -> str:
    if user is None:
        return "There is no user message to keep."
    if user < head_end:
        return f"The latest user message ({user}) stays in the head."
    if user >= tail_start:
        return f"The latest user message ({user}) stays in the tail."
    return f"The latest user message ({user}) is older than the tail: it is kept word for word after the summary."
