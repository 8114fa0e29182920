"""Plan the cut of a history: the messages that a summary covers, and the tokens it may take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from everthread.compaction.compaction_result import Compaction, CompactionLevel, Phase
from everthread.compaction.cutting.boundaries import Cut, Fit, Fitter, Room, sum_sizes
from everthread.compaction.cutting.permanent_messages import (
    PermanentMessages,
    find_permanent,
)
from everthread.compaction.cutting.pruning import Pruner, redact_message
from everthread.compaction.engine import Services
from everthread.compaction.history.compaction_history import (
    CompactionHistory,
    Memory,
    MessageFacts,
    redact_words,
)
from everthread.compaction.planning_engine import CompactionInput
from everthread.compaction.summary.earlier_summary import Earlier
from everthread.compaction.summary.user_quotes import (
    UserMessage,
    entry_tokens,
    user_message,
)
from everthread.core.messages import Message, Messages, count_noun, text_of
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.core.transcript import without_summary

MIN_MIDDLE_TOKENS = 300
"""A middle of fewer tokens stays, because its summary would be larger."""
NEED_SHARE = 4
"""To keep what it has, a summary may exceed its usual size up to this part (1/n) of T at the cost of the tail."""
CHARS_PER_NEED = 2
"""Characters of an answer for a token of the summary: its text takes half of the token, actions and names the rest."""
FREE_SHARE = 2
"""The summary gets this part (1/n) of the room that the other parts leave free."""


@dataclass(frozen=True, slots=True)
class CutPlan:
    """A plan of the cut, so that head, summary and tail fit."""

    history: CompactionHistory
    slim: Pruner
    """Returns messages with old results as one line each."""
    earlier: Earlier
    fit: Fit
    permanent: PermanentMessages
    """Messages outside the conversation, which stay."""
    covered: tuple[int, ...]
    """Indices of the messages that the new summary covers."""
    middle: list[Message]
    """Those messages, unpruned, without earlier summaries."""
    words: tuple[UserMessage, ...]
    """The user's messages outside head and tail, in order."""
    word_tokens: int
    words_most: int
    """Tokens that the user's words may take if there is room."""
    tokens_before: int
    scale: float
    """Ratio of the provider's token count to the local one."""
    fixed: int
    """Tokens of system prompt and tools."""
    middle_tokens: int
    """Tokens that the summary replaces, the earlier summary included."""
    earlier_tokens: int
    """The part of them that is the earlier summary."""
    slim_tokens: int
    """Tokens of the part of the tail whose old results are one line each."""
    budget: int
    """Tokens for the summary without the user's words."""

    @property
    def messages(self) -> list[Message]:
        """The input."""
        return self.history.messages

    @property
    def turns(self) -> list[int]:
        return self.history.turns

    @property
    def facts(self) -> list[MessageFacts]:
        """The facts of the covered messages; of an answer that a summary was merged into, without it."""
        covered_facts = map(self.history.facts.__getitem__, self.covered)
        return [
            MessageFacts(message_facts.rest)
            if message_facts.is_summary
            and message_facts.rest
            and message_facts.rest["role"] == "assistant"
            else message_facts
            for message_facts in covered_facts
        ]

    @property
    def following(self) -> tuple[list[MessageFacts], list[int]]:
        """The facts of the messages in the tail, and their turns."""
        start = self.cut.tail_start
        return self.history.facts[start:], self.history.turns[start:]

    @property
    def covered_turns(self) -> list[int]:
        return list(map(self.history.turns.__getitem__, self.covered))

    @property
    def pruned(self) -> list[Message]:
        """The covered messages for a model: old results are one line each.

        Secrets are taken out before anything is cut: half of one is no longer known as a secret.
        """
        clean = {index: redact_message(self.messages[index]) for index in self.covered}
        pruner = self.slim
        if any(message is not self.messages[index] for index, message in clean.items()):
            messages = [
                clean.get(index, message) for index, message in enumerate(self.messages)
            ]
            pruner = Pruner(CompactionHistory([]).extend(messages))
        return [
            without_summary(message) or message
            for message in map(pruner.message, self.covered)
        ]

    @property
    def cut(self) -> Cut:
        return self.fit.cut

    @property
    def has_work(self) -> bool:
        """Whether there is anything to replace or to make smaller."""
        return self.cut.has_middle or self.only_prunes

    @property
    def only_prunes(self) -> bool:
        """Return whether the cut only prunes and summarises nothing.

        Old results in the kept messages become lines, oversized ones are stored and cited. An earlier summary stays
        unchanged.
        """
        if self.cut.has_middle:
            return False
        return bool(self.fit.to_store) or any(
            new is not old
            for new, old in zip(self.fit.messages, self.messages, strict=True)
        )

    def without_middle(self) -> CutPlan:
        """Return the plan that covers nothing: the middle stays, its old results as one line each."""
        return replace(
            self, fit=self.fit.without_middle(self.slim), covered=(), middle=[]
        )

    @property
    def message_count(self) -> int:
        """How many messages the new summary covers in all."""
        return self.earlier.messages + len(self.covered)

    @property
    def max_summary_tokens(self) -> int:
        """Tokens for the summary and the user's words: 80 % of the new text, and as many as the earlier summary had.

        With 80 % of that too, every compaction would shorten what is left of the oldest turns.
        """
        new_tokens = self.middle_tokens - self.earlier_tokens
        return self.earlier_tokens + new_tokens * 8 // 10

    @property
    def summary_budget(self) -> int:
        """Tokens for the summary. If the middle is mostly the user's words, they get the room first."""
        minimum = min(self.budget, self.middle_tokens // 5)
        return max(
            min(
                self.budget,
                self.max_summary_tokens - min(self.word_tokens, self.fit.room.words),
            ),
            minimum,
        )

    @property
    def words_shown(self) -> int:
        """About how many tokens the user's words will take."""
        return min(self.word_tokens, self.fit.room.words)

    @property
    def words_least(self) -> int:
        """Tokens the user's words get in any case, whatever is written about them."""
        return min(self.word_tokens * 21 // 20 + 10, self.fit.room.words_least)

    def words_room(self, used: int) -> int:
        """Return the tokens for the user's words beside this summary."""
        unused = max(self.fit.room.summary - used, 0)
        return min(
            self.fit.room.words + unused,
            self.words_most,
            self.max_summary_tokens - used,
        )

    def count(
        self, messages: Messages, indices: Sequence[int | None], counter: TokenCounter
    ) -> int:
        """Count the tokens of messages with these indices in the input.

        Use known sizes of unchanged and pruned ones.
        """
        total = 0
        for message, index in zip(messages, indices, strict=True):
            if index is not None and message is self.messages[index]:
                total += self.history.sizes[index]
            elif index is not None and message is self.slim.message(index):
                total += self.slim.tokens(index, counter)
            else:
                total += counter.message(message)
        return total

    def no_work_reason(self, budget: Budget) -> str:
        """Return the reason why nothing can be replaced."""
        is_short = self.tokens_before < budget.threshold
        lead = (
            "the conversation is too short to compact"
            if is_short
            else "there is nothing that may be left out"
        )
        return (
            f"{lead}: {count_noun(len(self.messages), 'message')}, all kept at the start and at the end "
            f"({self.tokens_before:,} tokens, in a window of {budget.window:,})"
        )

    def unchanged(self, why: str) -> Compaction:
        """Return the input as the result, with the reason why nothing changed."""
        return Compaction(
            messages=self.messages,
            summary="",
            tokens_before=self.tokens_before,
            tokens_after=self.tokens_before,
            kept=tuple(range(len(self.messages))),
            changed=False,
            reason=why,
        )

    def pruned_only(self) -> Compaction:
        """Return the messages pruned in place; nothing is summarised."""
        return replace(
            self.unchanged(""),
            messages=self.fit.messages,
            changed=True,
            author="none",
            to_store=self.fit.to_store,
            boundaries=self.cut.reasons,
            steps=self.fit.steps,
        )

    def settled(self, result: Compaction, after: int, reason: str) -> Compaction:
        """Return the result with its sizes as the provider counts; the input if it would not be smaller."""
        if after >= self.tokens_before:
            explanation = f"the result would not be smaller ({self.tokens_before:,} -> {after:,} tokens)"
            return replace(
                self.unchanged(explanation),
                warnings=result.warnings,
                usage=result.usage,
            )
        return replace(
            result,
            tokens_before=round(self.tokens_before * self.scale),
            tokens_after=round(after * self.scale),
            reason=reason,
        )

    def phases(self, summary: int) -> tuple[Phase, ...]:
        cut = self.cut
        kept_tokens = self.tokens_before - self.fixed - self.middle_tokens
        unpruned_tokens = sum(self.history.sizes[index] for index in cut.slimmed)
        note = f"{len(cut.slimmed)} messages of the tail with results as one line each"
        boundaries = f"head {cut.head_end}, tail from {cut.tail_start}"
        return (
            Phase("prune", unpruned_tokens, self.slim_tokens, note),
            Phase(
                "boundaries", self.tokens_before, self.fixed + kept_tokens, boundaries
            ),
            Phase(
                "summarise",
                self.middle_tokens,
                summary,
                f"within {self.budget:,} tokens, the user's words apart",
            ),
        )


def reason_for(*, manual: bool, level: CompactionLevel) -> str:
    """Return the trigger of a compaction."""
    if manual:
        return "manual"
    return "overflow" if level > CompactionLevel.NORMAL else "automatic"


WordEntries = dict[int, tuple[UserMessage, int]]
"""The user's words by the index of their message, each with its tokens."""


@dataclass(frozen=True)
class CutPlanner:
    """The planner of one history's cut."""

    history: CompactionHistory
    earlier: Earlier
    budget: Budget
    counter: TokenCounter
    fixed: int
    """Tokens of system prompt and tools."""

    def plan(self, level: CompactionLevel, reported: int | None) -> CutPlan:
        """Plan the cut. `reported`: the provider's count for this prompt."""
        history = self.history
        tokens_before = self.fixed + sum(history.sizes)
        scale = (
            min(max(reported / tokens_before, 0.5), 2.0)
            if reported and tokens_before
            else 1.0
        )
        entries = self._find_words()
        earlier_tokens = sum(
            entry_tokens(entry, self.counter.text) for entry in self.earlier.words
        )
        word_sizes = sum_sizes(
            ((place, tokens) for place, (_, tokens) in entries.items()),
            initial=earlier_tokens,
        )
        room = self._make_room(tokens_before, scale)
        pruner = Pruner(history)
        permanent = find_permanent(history)
        fitter = Fitter(
            pruner, room, counter=self.counter, words=word_sizes, permanent=permanent
        )
        fit = self._skip_small_middle(fitter.fit(level), pruner)
        cut = fit.cut
        middle = self._find_middle(cut, permanent)
        tokens = self._count_middle(middle)
        middle_entries = (
            entry
            for index, (entry, _) in entries.items()
            if cut.head_end <= index < cut.tail_start
        )
        return CutPlan(
            history=history,
            slim=pruner,
            earlier=self.earlier,
            fit=fit,
            permanent=permanent,
            covered=tuple(middle),
            middle=list(middle.values()),
            words=(*self.earlier.words, *middle_entries),
            word_tokens=word_sizes.before(cut.tail_start),
            words_most=room.words,
            tokens_before=tokens_before,
            scale=scale,
            fixed=self.fixed,
            middle_tokens=tokens,
            earlier_tokens=self.counter.text(self.earlier.text),
            slim_tokens=sum(
                pruner.tokens(index, self.counter) for index in cut.slimmed
            ),
            budget=self._summary_budget(middle, fit, middle_tokens=tokens),
        )

    def _find_words(self) -> WordEntries:
        """Return the user's words after the head, except the latest message; also words typed into calls."""
        history = self.history
        facts = history.facts
        indices = [index for index in history.users[:-1] if index >= history.head_end]
        redact_words(facts[index] for index in indices)
        entries = {
            index: facts[index].entry(history.turns[index], self.counter)
            for index in indices
        }
        replies: WordEntries = {}
        for index, calls in history.answered_calls.items():
            words = facts[index].typed_reply(calls) if index >= history.head_end else ""
            if words:
                entry = user_message(history.turns[index], words)
                replies[index] = entry, entry_tokens(entry, self.counter.text)
        return dict(sorted((entries | replies).items())) if replies else entries

    def _make_room(self, tokens_before: int, scale: float) -> Room:
        """Return the room for a prompt of `tokens_before` tokens.

        The summary's size follows from the middle, which follows from the cut: allow for the largest it can be.
        """
        budget = self.budget
        usual = min(budget.summary_max, max(tokens_before - self.fixed, 0) // 2)
        return Room(
            tail=int(budget.tail / scale),
            protect_last_n=budget.protect_last_n,
            limit=int(budget.compacted_limit / scale),
            most=int(budget.threshold / scale),
            prompt=int(budget.prompt_limit / scale),
            fixed=self.fixed,
            summary=max(
                usual,
                min(
                    self._needed_tokens(facts.rest for facts in self.history.facts),
                    budget.threshold // NEED_SHARE,
                ),
            ),
            summary_usual=usual,
            summary_min=min(budget.summary_min, usual),
            words=int(budget.user_words / scale),
            words_least=int(min(budget.threshold // 10, budget.user_words) / scale),
        )

    def _skip_small_middle(self, fit: Fit, pruner: Pruner) -> Fit:
        """Return the fit; without a middle that is too small for a first summary."""
        if self.earlier.text or not self.history.head_end:
            return fit
        middle_tokens = sum(self.history.sizes[fit.cut.head_end : fit.cut.tail_start])
        if middle_tokens < min(MIN_MIDDLE_TOKENS, self.budget.threshold // 10):
            return fit.without_middle(pruner)
        return fit

    def _find_middle(
        self, cut: Cut, permanent: PermanentMessages
    ) -> dict[int, Message]:
        """Return the messages that the summary replaces, by index, without earlier summaries."""
        excluded_indices = permanent.uncovered | {cut.kept_user}
        facts = self.history.facts
        return {
            index: rest
            for index in range(cut.head_end, cut.tail_start)
            if index not in excluded_indices and (rest := facts[index].rest) is not None
        }

    def _summary_budget(
        self, middle: Mapping[int, Message], fit: Fit, *, middle_tokens: int
    ) -> int:
        """Return the tokens for a summary of this middle. `middle_tokens`: its size with the earlier summary.

        It gets a part of the room that the other parts leave free, up to half of the replaced text, and all of it if
        it needs that: a conclusion that one compaction drops is lost for all later ones. What an earlier summary holds
        is not halved again.
        """
        room = fit.room
        largest_size = max(room.limit - fit.cut.tokens, 0) + room.summary
        usual_size = min(self.budget.summary_size(middle_tokens), room.summary)
        free_tokens = (
            largest_size - min(room.summary, room.summary_usual)
        ) // FREE_SHARE
        new_tokens = middle_tokens - self.counter.text(self.earlier.text)
        needed_tokens = min(
            self._needed_tokens(middle.values()), self._earlier_tokens + new_tokens // 2
        )
        return max(
            usual_size,
            min(usual_size + free_tokens, middle_tokens // 2),
            min(needed_tokens, largest_size),
        )

    def _needed_tokens(self, messages: Iterable[Message | None]) -> int:
        """Return about how many tokens keep the earlier summary and every text of these answers."""
        texts = (
            text_of(message)
            for message in messages
            if message is not None and message["role"] == "assistant"
        )
        return self._earlier_tokens + sum(map(len, texts)) // CHARS_PER_NEED

    @cached_property
    def _earlier_tokens(self) -> int:
        """Tokens of the earlier summary without the user's words."""
        words = sum(
            entry_tokens(entry, self.counter.text) for entry in self.earlier.words
        )
        return max(self.counter.text(self.earlier.text) - words, 0)

    def _count_middle(self, middle: Mapping[int, Message]) -> int:
        """Return the tokens that the summary replaces, the earlier summary included."""
        sizes = self.history.sizes
        tokens = self.counter.text(self.earlier.text) if self.earlier.text else 0
        for index, rest in middle.items():
            is_merged = self.history.facts[index].is_summary
            tokens += self.counter.message(rest) if is_merged else sizes[index]
        return tokens


def plan_cut(
    given: CompactionInput, earlier: Earlier, services: Services, memory: Memory
) -> CutPlan:
    """Plan the cut, so that head, summary and tail fit."""
    counter = services.counter
    history = memory.read(given.messages, counter, earlier.covered)
    fixed_tokens = counter.request(
        (), system=given.system, tools=list(given.tools or ())
    )
    planner = CutPlanner(
        history, earlier, services.budget, counter=counter, fixed=fixed_tokens
    )
    return planner.plan(given.level, given.current_tokens)
