"""Choose the cuts of a transcript: the head that is kept, the middle that is replaced, the tail that is kept.

A cut never separates tool calls from their results, an earlier summary is always replaced, and the latest user message
and the unanswered group always stay. Within the tail budget the newest results stay, an oversized one cut to its share;
older results become one line each. If the rest is too large it is reduced step by step, and every step is reported.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from everthread.compaction.compaction_result import CompactionLevel
from everthread.compaction.cutting.permanent_messages import PermanentMessages
from everthread.compaction.cutting.pruning import Pruner, prune
from everthread.compaction.cutting.shortening import (
    MIN_RESULT_TOKENS,
    Shortened,
    cut_results,
    cut_text,
    equal_share,
)
from everthread.compaction.history.compaction_history import CompactionHistory
from everthread.core.message_repair import STUB_RESULT
from everthread.core.messages import (
    RESULT_BLOCKS,
    SYSTEM_ROLES,
    Message,
    Messages,
    count_noun,
    kind_of,
    with_content,
)
from everthread.core.outputs import OutputToStore
from everthread.core.tokens import TokenCounter
from everthread.core.transcript import Span, without_summary

RECENT_SHARE = 2
"""Share (1/n) of the tail budget for the newest messages, which stay unchanged; the rest is for older ones."""
RESULT_SHARE = 4
"""One result takes at most this part (1/n) of the tail budget, and so do all reads of files that are kept."""
HEAD_SHARE = 4
"""A message of the head that is larger than this part (1/n) of T is cut to half of that, unless it is the latest."""
MIN_SUMMARY_TOKENS = 400
"""Room for a summary beside a user message that nearly fills the window."""
_MIN_CUT_TOKENS = 256
"""Tokens left in the tail budget for which another result is cut to fit."""


@dataclass(frozen=True, slots=True)
class Room:
    """The room for kept messages, in tokens."""

    tail: int
    """The tail is walked back until this is used."""
    protect_last_n: int
    """This many messages are tail as long as the compacted request stays within `limit`."""
    limit: int
    """The compacted request should not exceed this: 60 % of T."""
    most: int
    """The compacted request must stay below this: T."""
    prompt: int
    """No request may exceed this: the window without the room for the answer."""
    fixed: int = 0
    """Tokens of system prompt and tools."""
    summary: int = 0
    """Tokens for the summary without the user's words."""
    summary_usual: int = 0
    """The part of them that gives way only after half of the tail and the user's words."""
    summary_min: int = 0
    words: int = 0
    """Tokens for the user's words."""
    words_least: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """Head `[0, head_end)`, middle `[head_end, tail_start)`, tail `[tail_start, …)`, and why.

    `slimmed`: messages of the tail whose results are one line each. `kept_user`: the latest user message, if it is in
    the middle; it is kept directly after the summary. `tokens`: the compacted request has at most this many.
    """

    head_end: int
    tail_start: int
    slimmed: frozenset[int]
    kept_user: int | None
    has_middle: bool
    tokens: int
    reasons: tuple[str, ...]

    def user(self, messages: Messages) -> Message | None:
        """Return the message to put directly after the summary."""
        return None if self.kept_user is None else spoken_part(messages[self.kept_user])


@dataclass(frozen=True, slots=True)
class RunningSizes:
    """Running sums of the tokens of some messages of a history."""

    places: list[int]
    sums: list[int]
    """The sum before each place, and the sum of all: one more than `places`."""

    def before(self, index: int) -> int:
        """Return the tokens of those before an index."""
        return self.sums[bisect_left(self.places, index)]


@dataclass(frozen=True, slots=True)
class Fit:
    """The cut and the texts to store, after the steps that were needed.

    `messages` keep the places of the input and differ from it only in the kept part. `room`: tokens left for the
    summary and the user's words.
    """

    messages: list[Message]
    cut: Cut
    room: Room
    to_store: tuple[OutputToStore, ...]
    steps: tuple[str, ...]

    def without_middle(self, slim: Pruner) -> Fit:
        """Return the fit that keeps the middle too, its old results as one line each."""
        cut = self.cut
        middle = range(cut.head_end, cut.tail_start)
        uncut = replace(
            cut,
            tail_start=cut.head_end,
            slimmed=cut.slimmed.union(middle),
            kept_user=None,
            has_middle=False,
        )
        messages = [*self.messages]
        messages[cut.head_end : cut.tail_start] = map(slim.message, middle)
        return replace(self, messages=messages, cut=uncut)


@dataclass(slots=True)
class _Tail:
    """The messages at the end that are kept."""

    start: int
    tokens: int
    """Tokens of the whole tail, including the latest group."""
    used: int
    """Tokens used of the tail budget."""
    slimmed: set[int]
    shares: dict[int, int]
    """For messages whose results are cut: the tokens of each result."""
    is_widened: bool = False


def latest_piece(history: CompactionHistory) -> tuple[int, bool]:
    """Return the start of the minimal tail, and whether it begins with the unanswered group.

    That group is the last assistant message with calls, if no assistant message follows it; otherwise the minimal tail
    is the latest message. An earlier summary at the very end does not count as a tail.
    """
    messages = history.messages
    pieces = history.pieces
    start = pieces[-1].start if pieces else 0
    if all(without_summary(message) is None for message in messages[start:]):
        start = len(messages)
    last_answer = next(
        (
            index
            for index in range(len(messages) - 1, -1, -1)
            if messages[index].get("role") == "assistant"
        ),
        None,
    )
    if (
        last_answer is None
        or not history.facts[last_answer].calls
        or _is_interrupted(history, last_answer)
    ):
        return start, False
    group = next(piece.start for piece in pieces if piece.end > last_answer)
    return min(start, group), True


def _is_interrupted(history: CompactionHistory, index: int) -> bool:
    """Return whether the user spoke after the calls of this message before any of them had a result."""
    following = history.facts[index + 1 :]
    texts = [text for facts in following for text, _ in facts.outputs]
    return any(facts.is_user for facts in following) and all(
        text == STUB_RESULT for text in texts
    )


def spoken_part(message: Message) -> Message:
    """Return the user's part of a message, without tool results, which stay with their calls."""
    content = message.get("content")
    if isinstance(content, list) and any(
        kind_of(part) in RESULT_BLOCKS for part in content
    ):
        message = with_content(
            message, [part for part in content if kind_of(part) not in RESULT_BLOCKS]
        )
    return without_summary(message) or message


class Fitter:
    """Cut a transcript so that the kept part fits, and give up no more than necessary.

    `slim` returns messages with old results as one line each, `words` holds the sizes of the user's messages outside
    the head, `permanent` the messages outside the conversation, which stay. `messages` is a separate list; `sizes`
    holds the tokens of the kept part of each.
    """

    def __init__(
        self,
        slim: Pruner,
        room: Room,
        *,
        counter: TokenCounter,
        words: RunningSizes,
        permanent: PermanentMessages,
    ) -> None:
        history = slim.history
        self.history = history
        self.slim = slim
        self.room = room
        self.counter = counter
        self.words = words
        self.permanent = permanent
        outside_head = permanent.between(history.head_end, len(history.messages))
        self._standing_sizes = sum_sizes(
            (index, counter.message(permanent.messages[index]))
            for index in outside_head
        )
        self.stored: dict[int, tuple[OutputToStore, ...]] = {}
        self.steps: list[str] = []
        self.messages = list(history.messages)
        self.sizes = list(history.sizes)
        for index in history.summaries:
            rest = history.facts[index].rest
            self.sizes[index] = 0 if rest is None else self.counter.message(rest)
        self.head_end = history.head_end
        self.user = history.latest_user
        latest_start, self.is_unanswered = latest_piece(history)
        self.least = max(latest_start, self.head_end)
        self.has_summary = any(
            history.facts[index].rest is None for index in history.summaries
        )
        """Whether an earlier summary is a separate message."""
        self._tools = {
            call.id: call.name for facts in history.facts for call in facts.calls
        }
        self._shortened: dict[tuple[int, int], tuple[Shortened, int]] = {}

    def fit(self, level: CompactionLevel) -> Fit:
        """Return the cut and the steps it took."""
        latest_only = level == CompactionLevel.LATEST_GROUP
        earliest = len(self.messages) if latest_only else 0
        self._cut_head()
        if level > CompactionLevel.NORMAL:
            self._halve_tail()
        tail, cut = self._choose(earliest)
        cut = self._cut_group(tail, cut, at_least=self.room.tail)
        if self._shorten_arguments(cut):
            tail, cut = self._choose(earliest)
        if self.room.summary > self.room.summary_usual and cut.tokens > self.room.limit:
            self._shrink_large_summary(cut.tokens - self.room.limit)
            tail, cut = self._choose(earliest)
            cut = self._cut_group(tail, cut, at_least=self.room.tail)
        if cut.tokens > self.room.limit and level == CompactionLevel.NORMAL:
            self._halve_tail()
            tail, cut = self._choose(earliest)
            cut = self._cut_group(tail, cut, at_least=self.room.tail)
        cut = self._squeeze_summary(
            cut,
            limit=self.room.limit,
            words=self.room.words_least,
            summary=self.room.summary_min,
        )
        cut = self._cut_group(tail, cut, at_least=self.room.tail)
        if cut.tokens > self.room.limit and not latest_only:
            latest, latest_cut = self._choose(len(self.messages))
            if latest_cut.tail_start > cut.tail_start:
                tail = latest
                cut = latest_cut
                self.steps.append("kept only the latest group")
        # Cut a large user message before the results it waits for.
        is_large = (
            self.user is not None
            and self.sizes[self.user] > self.room.most // HEAD_SHARE
        )
        at_least = self.room.tail if is_large else 0
        cut = self._cut_group(
            tail, cut, at_least=at_least, limit=self._hard_limit(tail)
        )
        cut = self._leave_out_answer(tail, cut)
        cut = self._cut_users(tail, cut)
        return self._finish(tail, cut)

    def _finish(self, tail: _Tail, cut: Cut) -> Fit:
        messages = [*self.history.messages]
        outputs = {
            index: items for index, items in self.stored.items() if index < cut.head_end
        }
        indices = [*range(cut.head_end), *range(cut.tail_start, len(messages))]
        if cut.kept_user is not None:
            indices.append(cut.kept_user)
        for index in indices:
            if index in cut.slimmed:
                messages[index] = self.slim.message(index)
            elif index in tail.shares:
                shortened, _ = self._cut_to(index, tail.shares[index])
                messages[index] = shortened.message
                outputs[index] = shortened.stored
            else:
                messages[index] = self.messages[index]
                outputs[index] = self.stored.get(index, ())
        to_store = tuple(item for index in sorted(outputs) for item in outputs[index])
        return Fit(messages, cut, self.room, to_store, tuple(self.steps))

    # Choice of the cut

    def _choose(self, earliest: int) -> tuple[_Tail, Cut]:
        """Return the tail for the present room. It begins at `earliest` or later, but holds the latest piece."""
        tail = self._walk(earliest, reserve=0)
        reads = self._newest_reads(tail)
        read_tokens = sum(self._gain(index) for index in reads)
        if read_tokens:
            tail = self._walk(
                earliest, reserve=min(read_tokens, self.room.tail // RESULT_SHARE)
            )
        self._fill(tail, reads)
        return tail, self._make_cut(tail)

    def _walk(self, earliest: int, *, reserve: int) -> _Tail:
        """Walk back from the end until the tail budget is used, except for `reserve` tokens of it."""
        room = self.room
        tokens = sum(self.sizes[self.least :])
        # The latest group takes half of the tail at most, so that it does not push small recent messages out.
        tail = _Tail(
            self.least, tokens, min(tokens, room.tail // RECENT_SHARE), set(), {}
        )
        is_recent = True
        for piece in reversed(self.history.pieces):
            if piece.end > tail.start:
                continue
            if piece.start < max(self.head_end, earliest) or self._holds_summary(piece):
                break
            indices = range(piece.start, piece.end)
            size = sum(map(self._size_in_tail, indices)) if is_recent else 0
            is_recent = is_recent and tail.used + size <= room.tail // RECENT_SHARE
            if not is_recent:
                size = sum(map(self._pruned_size, indices))
            if tail.used + size > room.tail - reserve:
                too_few = len(self.messages) - tail.start < room.protect_last_n
                if (
                    not too_few
                    or self._count_request(piece.start, tail.tokens + size) > room.limit
                ):
                    break
                tail.is_widened = True
            self._take(tail, indices, size, is_slim=not is_recent)
        return tail

    def _take(self, tail: _Tail, indices: range, size: int, *, is_slim: bool) -> None:
        """Add a piece to the tail, before its other pieces."""
        tail.start = indices.start
        tail.tokens += size
        tail.used += size
        if is_slim:
            tail.slimmed.update(indices)
        else:
            share = self._result_share
            tail.shares.update(
                (index, share) for index in indices if self.sizes[index] > share
            )

    def _fill(self, tail: _Tail, reads: Sequence[int]) -> None:
        """Fill the rest of the tail budget with results: the reads of files first, then the newest."""
        remaining = min(
            self.room.tail - tail.used,
            self.room.limit - self._count_request(tail.start, tail.tokens),
        )
        other_indices = sorted(tail.slimmed.difference(reads), reverse=True)
        for index in (
            *(read_index for read_index in reads if read_index in tail.slimmed),
            *other_indices,
        ):
            if remaining <= 0:
                break
            share = self._result_share
            gain = self._gain(index)
            if gain > remaining >= _MIN_CUT_TOKENS:
                share = max(
                    self._pruned_size(index) + remaining - MIN_RESULT_TOKENS,
                    MIN_RESULT_TOKENS,
                )
                gain = self._cut_to(index, share)[1] - self._pruned_size(index)
            if 0 < gain <= remaining:
                remaining -= gain
                tail.tokens += gain
                tail.used += gain
                tail.slimmed.discard(index)
                if self.sizes[index] > share:
                    tail.shares[index] = share

    def _newest_reads(self, tail: _Tail) -> list[int]:
        """Return the messages of the tail with the newest read of a file that was not changed since, newest first."""
        settled_paths: set[str] = set()
        reads: list[int] = []
        for index in range(len(self.messages) - 1, tail.start - 1, -1):
            calls = self.history.answered_calls.get(index, ())
            for files in self.history.facts[index].files_named_by(calls):
                if (
                    not files.is_change
                    and index in tail.slimmed
                    and not settled_paths.issuperset(files.paths)
                ):
                    reads.append(index)
                settled_paths.update(files.paths)
        return list(dict.fromkeys(reads))

    def _make_cut(self, tail: _Tail) -> Cut:
        user_index = self._user_before_tail(tail.start)
        facts = self.history.facts
        excluded_indices = self.permanent.uncovered | {user_index}
        middle = (
            facts[index]
            for index in range(self.head_end, tail.start)
            if index not in excluded_indices
        )
        reasons = (
            f"The head is {count_noun(self.head_end, 'message')}.",
            self._tail_reason(tail),
            _user_reason(self.user, self.head_end, tail.start),
        )
        return Cut(
            head_end=self.head_end,
            tail_start=tail.start,
            slimmed=frozenset(tail.slimmed),
            kept_user=user_index,
            has_middle=any(message_facts.rest is not None for message_facts in middle),
            tokens=self._count_request(tail.start, tail.tokens),
            reasons=reasons,
        )

    def _user_before_tail(self, start: int) -> int | None:
        """Return the latest user message if it lies between the head and a tail with this start."""
        return (
            self.user
            if self.user is not None and self.head_end <= self.user < start
            else None
        )

    def _count_request(self, start: int, tail: int) -> int:
        """Return the tokens of the compacted request with this tail."""
        words = min(self.room.words, self.words.before(start))
        return self._count_kept(start) + self.room.summary + words + tail

    def _count_kept(self, start: int) -> int:
        """Return the tokens of everything that is kept whatever the summary is, except the tail from `start` on."""
        user_index = self._user_before_tail(start)
        user_tokens = (
            0
            if user_index is None
            else self.counter.message(spoken_part(self.messages[user_index]))
        )
        return (
            self.room.fixed
            + sum(self.sizes[: self.head_end])
            + self._standing_sizes.before(start)
            + user_tokens
        )

    # Reductions, step by step

    def _cut_head(self) -> None:
        """Cut messages of the head that are larger than their share and not the latest user message."""
        limit = self.room.most // HEAD_SHARE
        for index in range(self.head_end):
            is_system = self.messages[index].get("role") in SYSTEM_ROLES
            if self.sizes[index] > limit and index != self.user and not is_system:
                self._replace_message(
                    index,
                    cut_text(index, self.messages[index], limit // 2, self.counter),
                )
        if self.stored:
            self.steps.append("stored the middle of oversized messages at the start")

    def _halve_tail(self) -> None:
        self.room = replace(self.room, protect_last_n=0, tail=self.room.tail // 2)
        self.steps.append(
            f"protected no last messages and halved the tail to {self.room.tail:,} tokens"
        )

    def _shrink_large_summary(self, tokens: int) -> None:
        """Take this many tokens from a summary that is larger than usual."""
        summary_tokens = max(self.room.summary - tokens, self.room.summary_usual)
        self.room = replace(self.room, summary=summary_tokens)

    def _squeeze_summary(
        self, cut: Cut, *, limit: int, words: int, summary: int
    ) -> Cut:
        """Leave less room for the user's words, then for the summary, but at least as much as is said."""
        for name, minimum, label in (
            ("words", words, "the user's words"),
            ("summary", summary, "the summary"),
        ):
            excess = cut.tokens - limit
            room_tokens = getattr(self.room, name)
            used_tokens = (
                min(room_tokens, self.words.before(cut.tail_start))
                if name == "words"
                else room_tokens
            )
            reduction = min(excess, max(used_tokens - minimum, 0))
            if excess > 0 and reduction > 0:
                self.room = replace(self.room, **{name: used_tokens - reduction})
                cut = replace(cut, tokens=cut.tokens - reduction)
                self.steps.append(
                    f"left {used_tokens - reduction:,} tokens for {label}"
                )
        return cut

    def _cut_group(
        self, tail: _Tail, cut: Cut, *, at_least: int, limit: int | None = None
    ) -> Cut:
        """Cut the results of the latest group to equal shares of the room that is left for them.

        Their room is never less than `at_least` tokens, and no result is dropped. Answers of lookups are cut only if a
        `limit` is given.
        """
        is_last = limit is not None
        limit = self.room.limit if limit is None else limit
        if cut.tokens <= limit:
            return cut
        indices = [
            index
            for index in range(self.least, len(self.messages))
            if self.history.facts[index].results
        ]
        facts = self.history.facts
        sizes = [
            self.counter.text(result.text)
            for index in indices
            for result in facts[index].results
        ]
        result_tokens = sum(self.sizes[index] for index in indices)
        room = max(limit - (cut.tokens - result_tokens), at_least)
        share = max(equal_share(sizes, room), MIN_RESULT_TOKENS)
        stored_before = dict(self.stored)
        for index in indices:
            if self.sizes[index] > share:
                self._replace_message(
                    index, self._cut_message(index, share, lookups=is_last)
                )
        if self.stored == stored_before:
            return cut
        count = sum(len(self.stored.get(index, ())) for index in indices)
        description = f"cut {count_noun(count, 'oversized tool result')} of the tail to {share:,} tokens each"
        self.steps = [
            step for step in self.steps if "oversized tool result" not in step
        ]
        self.steps.append(description)
        return self._recount(tail, cut)

    def _shorten_arguments(self, cut: Cut) -> bool:
        """Cut long arguments and images of the latest group if it is too large; return whether there were any."""
        if cut.tokens <= self.room.limit:
            return False
        pruned = prune(
            self.messages,
            protect_from=len(self.messages),
            start=self.least,
            results=False,
        )
        changed_indices = [
            index
            for index, message in enumerate(pruned)
            if message is not self.messages[index]
        ]
        for index in changed_indices:
            self._replace_message(
                index, Shortened(pruned[index], self.stored.get(index, ()))
            )
        if changed_indices:
            self.steps.append("cut long arguments and images of the tail")
        return bool(changed_indices)

    def _hard_limit(self, tail: _Tail) -> int:
        """Return the tokens that the request must not exceed: T, unless the latest user message alone takes that.

        Then the rest keeps its least room, as far as the window allows.
        """
        group = min(sum(self.sizes[self.least :]), self.room.tail)
        if self.user is not None and self.user >= self.least:
            group = self.sizes[self.user] + min(
                sum(self.sizes[self.least :]) - self.sizes[self.user], self.room.tail
            )
        words = min(self.room.words_least, self.words.before(tail.start))
        minimum = self._count_kept(tail.start) + self.room.summary_min + words + group
        return (
            self.room.most - 1
            if minimum < self.room.most
            else min(minimum, self.room.prompt)
        )

    def _leave_out_answer(self, tail: _Tail, cut: Cut) -> Cut:
        """Keep no tail if the latest message is an answer that is too large: the summary covers it."""
        end = len(self.messages)
        holds_user = self.user is not None and self.user >= tail.start
        if (
            cut.tokens < self.room.most
            or self.is_unanswered
            or holds_user
            or tail.start == end
        ):
            return cut
        empty_tail = _Tail(end, 0, 0, set(), {})
        cut_without_tail = self._make_cut(empty_tail)
        if cut_without_tail.tokens >= self.room.most:
            return cut
        tail.start = end
        tail.tokens = 0
        self.steps.append("kept no tail: even the latest message is too large")
        return replace(
            cut_without_tail,
            reasons=(cut.reasons[0], "There is no tail.", cut_without_tail.reasons[2]),
        )

    def _cut_users(self, tail: _Tail, cut: Cut) -> Cut:
        """Store the middle of kept messages until the request fits; of the latest user message last, if it must be."""
        tail_users = (
            position
            for position in range(cut.tail_start, len(self.messages))
            if self.history.facts[position].is_user
        )
        head = (
            position
            for position in range(cut.head_end)
            if self.messages[position].get("role") not in SYSTEM_ROLES
        )
        candidates = [index for index in (*head, *tail_users) if index != self.user]
        candidates.sort(key=lambda index: -self.sizes[index])
        stored_before = dict(self.stored)
        limit = self._hard_limit(tail)
        summary = min(MIN_SUMMARY_TOKENS, self.room.summary)
        cut = self._squeeze_summary(
            cut, limit=self.room.prompt, words=0, summary=summary
        )
        for index in candidates:
            if cut.tokens > limit:
                cut = self._cut_user(index, tail, cut, limit=limit)
        if self.user is not None and cut.tokens > self.room.prompt:
            cut = self._cut_user(self.user, tail, cut, limit=self.room.prompt)
        if self.stored != stored_before:
            self.steps.append("stored the middle of oversized user messages")
        return cut

    def _cut_user(self, index: int, tail: _Tail, cut: Cut, *, limit: int) -> Cut:
        """Cut a user message by as much as the request is over the limit."""
        room = max(
            self.sizes[index] - (cut.tokens - limit), self.room.most // (8 * HEAD_SHARE)
        )
        self._replace_message(
            index, cut_text(index, self.messages[index], room, self.counter)
        )
        tail.shares.pop(index, None)
        return self._recount(tail, cut)

    def _replace_message(self, index: int, shortened: Shortened) -> None:
        """Replace the message at this index."""
        self.messages[index] = shortened.message
        if shortened.stored:
            self.stored[index] = shortened.stored
        rest = without_summary(shortened.message)
        self.sizes[index] = 0 if rest is None else self.counter.message(rest)

    # Sizes

    @property
    def _result_share(self) -> int:
        return max(self.room.tail // RESULT_SHARE, MIN_RESULT_TOKENS)

    def _recount(self, tail: _Tail, cut: Cut) -> Cut:
        older = sum(
            self._kept_size(tail, index) for index in range(tail.start, self.least)
        )
        tail.tokens = older + sum(self.sizes[max(tail.start, self.least) :])
        return replace(cut, tokens=self._count_request(tail.start, tail.tokens))

    def _kept_size(self, tail: _Tail, index: int) -> int:
        if index in tail.slimmed:
            return self._pruned_size(index)
        return (
            self._cut_to(index, tail.shares[index])[1]
            if index in tail.shares
            else self.sizes[index]
        )

    def _cut_to(self, index: int, share: int) -> tuple[Shortened, int]:
        """Return a message with each of its results in at most `share` tokens, and its size."""
        result = self._shortened.get((index, share))
        if result is None:
            shortened = self._cut_message(index, share)
            rest = without_summary(shortened.message)
            size = 0 if rest is None else self.counter.message(rest)
            result = self._shortened[index, share] = (shortened, size)
        return result

    def _cut_message(
        self, index: int, share: int, *, lookups: bool = True
    ) -> Shortened:
        return cut_results(
            index,
            self.history.messages[index],
            share,
            counter=self.counter,
            tools=self._tools,
            lookups=lookups,
        )

    def _size_in_tail(self, index: int) -> int:
        """Return the tokens of a message whose results are cut to their share."""
        if (
            self.sizes[index] <= self._result_share
            or not self.history.facts[index].results
        ):
            return self.sizes[index]
        return self._cut_to(index, self._result_share)[1]

    def _gain(self, index: int) -> int:
        """Return how many tokens more than its one line the results of a message take in the tail."""
        return self._size_in_tail(index) - self._pruned_size(index)

    def _pruned_size(self, index: int) -> int:
        if not self.history.facts[index].is_summary:
            return self.slim.tokens(index, self.counter)
        rest = without_summary(self.slim.message(index))
        return 0 if rest is None else self.counter.message(rest)

    def _holds_summary(self, piece: Span) -> bool:
        return self.has_summary and any(
            facts.rest is None for facts in self.history.facts[piece.start : piece.end]
        )

    def _tail_reason(self, tail: _Tail) -> str:
        count = count_noun(len(self.messages) - tail.start, "message")
        figure = f"The tail is {count}, {tail.tokens:,} tokens of {self.room.tail:,}"
        if tail.start == self.least:
            return f"{figure}: the latest group or message, which always stays."
        if tail.is_widened:
            minimum = self.room.protect_last_n
            return f"{figure}: widened towards the last {minimum} messages, up to {self.room.limit:,} tokens in all."
        if tail.tokens > self.room.tail:
            return f"{figure}: the latest group is larger than its share."
        return f"{figure}."


def sum_sizes(sizes: Iterable[tuple[int, int]], initial: int = 0) -> RunningSizes:
    """Return the running sums of pairs of a place and its tokens, in order of the places."""
    places: list[int] = []
    sums = [initial]
    for place, tokens in sizes:
        places.append(place)
        sums.append(sums[-1] + tokens)
    return RunningSizes(places, sums)


def _user_reason(user: int | None, head_end: int, tail_start: int) -> str:
    if user is None:
        return "There is no user message to keep."
    if user < head_end:
        return f"The latest user message ({user}) stays in the head."
    if user >= tail_start:
        return f"The latest user message ({user}) stays in the tail."
    return f"The latest user message ({user}) is older than the tail: it is kept word for word after the summary."
