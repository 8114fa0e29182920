"""The plan of a compaction, made before the summary is written: the cut, the messages it covers, the budgets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

from everthread.compaction.boundaries import Cut, Fit, Fitter, Room, WordSizes
from everthread.compaction.engine import Archive, Services
from everthread.compaction.history import (
    CompactionHistory,
    Memory,
    MessageFacts,
    head_end_of,
    number_turns,
    redact_words,
)
from everthread.compaction.journal import (
    BRANCH,
    CHANGED_FILES,
    DIRECTORY,
    INTRO,
    READ_FILES,
    RUNNING,
    TEST,
    Journal,
    background_entry,
    failure_key,
    parse_journal,
    read_code,
    read_list,
)
from everthread.compaction.pruning import Pruner, redact_message
from everthread.compaction.state import CHANGED, READ, CommandState, FileState, OpenError, ThreadState
from everthread.compaction.summary import (
    BLOCKED,
    DONE,
    FILES,
    PROGRESS,
    REMAINING,
    STATE,
    TASK,
    WORDS,
    Compaction,
    CompactionLevel,
    Phase,
    parse_sections,
    without_node_lines,
)
from everthread.compaction.verification import PATH, checkable_names
from everthread.compaction.words import UserMessage, entry_tokens, parse_words, user_message
from everthread.core.messages import Message, Messages, count_noun
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.core.transcript import (
    SUMMARY_START,
    is_old_format,
    is_user_message,
    spans,
    summary_leads,
    summary_text,
    without_summary,
)
from everthread.core.types import System

_WORTH_A_SUMMARY = 300
"""A middle of fewer tokens stays: its summary would be larger."""
_COUNT = re.compile(rf"{re.escape(SUMMARY_START)}[^\n]{{0,20}}?([\d,]{{1,12}}) earlier messages?")
_FAILED = re.compile(r" failed \(message (\d{1,9})\):(.*)")


@dataclass(frozen=True, slots=True)
class Earlier:
    """The earlier summary in the list, parsed; several as one."""

    text: str = ""
    messages: int = 0
    sections: Mapping[str, str] = field(default_factory=dict)
    """Its sections, without the user's words."""
    words: tuple[UserMessage, ...] = ()
    journal: Journal = field(default_factory=Journal)
    state: ThreadState | None = None
    """The state, where it was read from the messages themselves, or from several summaries."""
    ends: tuple[int, ...] = ()
    """Of several summaries, for each the last of the user's messages that it stands for."""

    @property
    def covered(self) -> tuple[int, ...]:
        """For each summary in the list the last of the user's messages that it stands for."""
        return self.ends or (max((message.end for message in self.words), default=0),)


def read_summary(messages: Messages) -> Earlier:
    """The summary of the list, parsed; of one of an older format only its text. Several are joined."""
    texts = [summary_text(message) for message in messages if "_summary" in message]
    return _parse_summary(texts[0] if texts else "") if len(texts) < 2 else _join_summaries(messages)


def _join_summaries(messages: Messages) -> Earlier:
    """The summaries of a list as one, as if one conversation had gone on: each counts on from what stands before it."""
    joined, state, ends, turn = Earlier(), ThreadState(), list[int](), 0
    seen = {""}
    for message in messages:
        said = is_user_message(message)
        if "_summary" not in message:
            turn += said
            continue
        text, leads = summary_text(message), summary_leads(message)
        turn += said and not leads
        if text not in seen:
            seen.add(text)
            one = _parse_summary(text)
            by = max(turn + 1 - min((entry.number for entry in one.words), default=turn + 1), 0)
            joined, state = _join(joined, one, by), _join_states(state, read_state(one.sections), by)
            turn = max((turn, *(entry.end + by for entry in one.words)))
        ends.append(turn)
        turn += said and leads
    return replace(joined, state=state, ends=tuple(ends))


def _join(before: Earlier, one: Earlier, by: int) -> Earlier:
    """Both as one, the numbers of the second higher by so many. Its text and task are the second's."""
    journal = _background(one).journal if is_old_format(one.text) else one.journal
    sections = {**before.sections, **one.sections}
    for name in (before.sections.keys() & one.sections.keys()) - {TASK}:
        sections[name] = f"{before.sections[name]}\n{one.sections[name]}"
    words = (replace(entry, number=entry.number + by, last=entry.last and entry.last + by) for entry in one.words)
    entries = (
        replace(entry, first=entry.first and entry.first + by, last=entry.last and entry.last + by)
        for entry in journal.entries
    )
    return Earlier(
        one.text, before.messages + one.messages, sections, (*before.words, *words),
        Journal((*before.journal.entries, *entries)),
    )  # fmt: skip


def _join_states(before: ThreadState, one: ThreadState, by: int) -> ThreadState:
    errors = {key: replace(error, turn=error.turn + by) for key, error in one.errors.items()}
    return replace(
        one, files=before.files | one.files, commands=before.commands | one.commands, errors=before.errors | errors,
        todo=one.todo or before.todo, directory=one.directory or before.directory, branch=one.branch or before.branch,
        processes=[*before.processes, *one.processes],
    )  # fmt: skip


@lru_cache(maxsize=4)
def _parse_summary(text: str) -> Earlier:
    stated = _COUNT.search(text[:400])
    count = int(stated[1].replace(",", "")) if stated else 0
    if not text or is_old_format(text):
        return Earlier(text, count)
    sections = parse_sections(without_node_lines(text))
    words = parse_words(sections.pop(WORDS, ""))
    return Earlier(text, count, sections, tuple(words), parse_journal(sections.get(DONE, "")))


async def read_earlier(messages: Messages, archive: Archive | None) -> Earlier:
    """The summary of the list, parsed. One of an older format is rebuilt from the stored messages."""
    earlier = read_summary(messages)
    text = earlier.text
    if not text or earlier.ends or not is_old_format(text):
        return earlier
    covered = await archive.covered() if archive is not None else []
    stored = [original.message for original in await archive.originals(covered)] if archive and covered else []
    if not stored:
        return _background(earlier)
    head = sum(is_user_message(message) for message in messages[: head_end_of(messages, spans(messages))])
    facts = [MessageFacts(message) for message in stored]
    turns = number_turns(facts, before=head)
    words = tuple(
        user_message(turn, one.redacted_words()) for one, turn in zip(facts, turns, strict=True) if one.is_user
    )
    state = ThreadState()
    journal = Journal().extend(facts, turns, state)
    return Earlier(text, len(stored), {}, words, journal, state)


def _background(earlier: Earlier) -> Earlier:
    """A summary of an older format as an entry of the journal."""
    body = parse_sections(earlier.text)
    text = "\n".join(f"{name}: {words}" for name, words in body.items() if name != TASK) or earlier.text
    return replace(earlier, journal=Journal((background_entry(text, earlier.messages),)))


def read_state(sections: Mapping[str, str], *, is_ours: bool = False) -> ThreadState:
    """How things stood by a summary's sections (`journal.state_sections`), for a list without other state.

    Where a model wrote how things stand, in words of its own, only files and errors are read; `is_ours`: none did.
    """
    state = ThreadState()
    if is_ours or sections.get(DONE, "").startswith(INTRO):
        for line in sections.get(STATE, "").split("\n"):
            _read_standing(state, line)
        for name, status in ((PROGRESS, "in_progress"), (REMAINING, "pending")):
            items = (line[2:] for line in sections.get(name, "").split("\n") if line.startswith("- "))
            state.todo += ({"text": item, "status": status} for item in items)
    files: list[tuple[str, str]] = []
    for line in sections.get(FILES, "").split("\n"):
        label = next((label for label in (CHANGED_FILES, READ_FILES) if line.startswith(label)), None)
        paths = read_list(line.removeprefix(label)) if label else _paths_in(line)
        files += ((path, READ if label == READ_FILES else CHANGED) for path in paths)
    state.files = {path: FileState(did, 0) for path, did in reversed(files)}
    for line in sections.get(BLOCKED, "").split("\n"):
        shown, rest = read_code(line.removeprefix("- "))
        if failed := _FAILED.fullmatch(rest):
            state.errors[failure_key(shown)] = OpenError(shown, failed[2].strip().split(" | "), int(failed[1]))
    return state


def _read_standing(state: ThreadState, line: str) -> None:
    if line.startswith(DIRECTORY):
        state.directory = line.removeprefix(DIRECTORY)
    elif line.startswith(BRANCH):
        state.branch = line.removeprefix(BRANCH)
    elif line.startswith(TEST):
        command, outcome = read_code(line.removeprefix(TEST))
        state.commands[command] = CommandState(outcome.removeprefix(" →").strip(), is_ok=True, turn=0, is_test=True)
    elif line.startswith(RUNNING):
        state.processes.append(read_code(line.removeprefix(RUNNING))[0])


def _paths_in(line: str) -> list[str]:
    """The paths in a line that a model wrote."""
    return [name.value for name in checkable_names(line) if name.kind == PATH]


@dataclass(frozen=True, slots=True)
class Plan:
    """Where to cut, so that head, summary and tail fit."""

    history: CompactionHistory
    slim: Pruner
    """Gives its messages with old results as one line each."""
    earlier: Earlier
    fit: Fit
    covered: tuple[int, ...]
    """Indices of the messages that the new summary covers."""
    middle: list[Message]
    """Those messages, unpruned, without earlier summaries."""
    words: tuple[UserMessage, ...]
    """The user's messages outside head and tail, in order."""
    word_tokens: int
    words_most: int
    """Tokens the user's words may take where nothing else presses."""
    tokens_before: int
    scale: float
    """How many tokens of the provider's count one token of ours is."""
    fixed: int
    """Tokens of system prompt and tools."""
    middle_tokens: int
    """Tokens that the summary replaces, the earlier summary included."""
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
        covered = map(self.history.facts.__getitem__, self.covered)
        return [
            MessageFacts(one.rest) if one.is_summary and one.rest and one.rest["role"] == "assistant" else one
            for one in covered
        ]

    @property
    def covered_turns(self) -> list[int]:
        return list(map(self.history.turns.__getitem__, self.covered))

    @property
    def pruned(self) -> list[Message]:
        """The covered messages with old results as one line each: what a model is given.

        Secrets are taken out before anything is cut: half of one is no longer known as a secret.
        """
        clean, slim = {index: redact_message(self.messages[index]) for index in self.covered}, self.slim
        if any(message is not self.messages[index] for index, message in clean.items()):
            messages = [clean.get(index, message) for index, message in enumerate(self.messages)]
            slim = Pruner(CompactionHistory([]).extend(messages))
        return [without_summary(message) or message for message in map(slim.message, self.covered)]

    @property
    def cut(self) -> Cut:
        return self.fit.cut

    @property
    def has_work(self) -> bool:
        """Whether there is anything to replace, or to make smaller where it stands."""
        return self.cut.has_middle or self.only_prunes

    @property
    def only_prunes(self) -> bool:
        """Nothing is summarised: old results of what is kept become lines, oversized ones are stored and cited.

        An earlier summary stays as it is.
        """
        if self.cut.has_middle:
            return False
        return bool(self.fit.to_store) or any(
            new is not old for new, old in zip(self.fit.messages, self.messages, strict=True)
        )

    @property
    def message_count(self) -> int:
        """How many messages the new summary stands for in all."""
        return self.earlier.messages + len(self.covered)

    @property
    def summary_budget(self) -> int:
        """Tokens for the summary: where the middle is mostly the user's words, they get the room first."""
        least = min(self.budget, self.middle_tokens // 5)
        return max(min(self.budget, self.middle_tokens * 8 // 10 - min(self.word_tokens, self.fit.room.words)), least)

    @property
    def words_least(self) -> int:
        """Tokens the user's words get in any case, whatever is written about them."""
        return min(self.word_tokens * 21 // 20 + 10, self.fit.room.words_least)

    def words_room(self, used: int) -> int:
        """Tokens for the user's words beside a summary of this size: both are at most 80 % of what they replace."""
        unused = max(self.fit.room.summary - used, 0)
        return min(self.fit.room.words + unused, self.words_most, self.middle_tokens * 8 // 10 - used)

    def count(self, messages: Messages, indices: Sequence[int | None], counter: TokenCounter) -> int:
        """Tokens of messages with these indices in the input. Unchanged and pruned messages are not counted again."""
        total = 0
        for message, index in zip(messages, indices, strict=True):
            if index is not None and message is self.messages[index]:
                total += self.history.sizes[index]
            elif index is not None and message is self.slim.message(index):
                total += self.slim.tokens(index, counter)
            else:
                total += counter.message(message)
        return total

    # What a caller is told

    def no_work_reason(self, budget: Budget) -> str:
        """Why there is nothing to replace."""
        short = self.tokens_before < budget.threshold
        lead = "the conversation is too short to compact" if short else "there is nothing that may be left out"
        return (
            f"{lead}: {count_noun(len(self.messages), 'message')}, all kept at the start and at the end "
            f"({self.tokens_before:,} tokens, in a window of {budget.window:,})"
        )

    def unchanged(self, why: str, duration: float) -> Compaction:
        """The input itself, and why."""
        return Compaction(
            messages=self.messages, summary="", tokens_before=self.tokens_before, tokens_after=self.tokens_before,
            kept=tuple(range(len(self.messages))), changed=False, reason=why, duration=duration,
        )  # fmt: skip

    def preview(self, duration: float) -> Compaction:
        """What would be kept, cut and summarised, and the figures; the summary's size is its budget."""
        words = max(min(self.words_room(self.budget), self.word_tokens), 0)
        after = self.tokens_before - self.middle_tokens + self.budget + words
        return replace(
            self.unchanged("preview", duration), tokens_after=after, covered=self.covered,
            phases=self.phases(self.budget + words), to_store=self.fit.to_store,
            steps=(*self.cut.reasons, *self.fit.steps),
        )  # fmt: skip

    def pruned_only(self, duration: float) -> Compaction:
        """Nothing is summarised; what is kept is made smaller where it stands."""
        return replace(
            self.unchanged("", duration), messages=self.fit.messages, changed=True, author="none",
            to_store=self.fit.to_store, steps=self.fit.steps,
        )  # fmt: skip

    def settled(self, result: Compaction, after: int, reason: str, duration: float) -> Compaction:
        """The result with its sizes by the provider's measure; the input, where it would not be smaller."""
        if after >= self.tokens_before:
            why = f"the result would not be smaller ({self.tokens_before:,} -> {after:,} tokens)"
            return replace(self.unchanged(why, duration), warnings=result.warnings, usage=result.usage)
        return replace(
            result, tokens_before=round(self.tokens_before * self.scale), tokens_after=round(after * self.scale),
            reason=reason, duration=duration,
        )  # fmt: skip

    def phases(self, summary: int) -> tuple[Phase, ...]:
        cut = self.cut
        kept_tokens = self.tokens_before - self.fixed - self.middle_tokens
        slimmed = range(cut.tail_start, cut.whole_from)
        old = sum(self.history.sizes[cut.tail_start : cut.whole_from])
        boundaries = f"head {cut.head_end}, tail from {cut.tail_start}"
        return (
            Phase("prune", old, self.slim_tokens, f"{len(slimmed)} messages of the tail with results as one line each"),
            Phase("boundaries", self.tokens_before, self.fixed + kept_tokens, boundaries),
            Phase("summarise", self.middle_tokens, summary, f"within {self.budget:,} tokens, the user's words apart"),
        )


def reason_for(*, manual: bool, level: CompactionLevel) -> str:
    return "manual" if manual else "overflow" if level > CompactionLevel.NORMAL else "automatic"


def make_plan(  # noqa: PLR0913 - what a cut depends on
    messages: Messages,
    services: Services,
    earlier: Earlier,
    memory: Memory,
    *,
    system: System,
    tools: Sequence[Mapping[str, Any]] | None,
    level: CompactionLevel = CompactionLevel.NORMAL,
    reported: int | None = None,
) -> Plan:
    """Where to cut, so that head, summary and tail fit. `reported`: what the provider counts for this prompt."""
    budget, counter = services.budget, services.counter
    history = memory.read(messages, counter, earlier.covered)
    facts, turns = history.facts, history.turns
    fixed = counter.request((), system=system, tools=list(tools or ()))
    before = fixed + sum(history.sizes)
    scale = min(max(reported / before, 0.5), 2.0) if reported and before else 1.0
    places = [index for index in history.users[:-1] if index >= history.head_end]
    redact_words(facts[index] for index in places)
    entries = {index: facts[index].entry(turns[index], counter) for index in places}
    earlier_tokens = sum(entry_tokens(one, counter.text) for one in earlier.words)
    word_sizes = WordSizes(places, [*accumulate((tokens for _, tokens in entries.values()), initial=earlier_tokens)])
    # The summary's size follows from the middle, which follows from the cut: allow for the largest it can be.
    allowance = min(budget.summary_max, max(before - fixed, 0) // 2)
    room = Room(
        tail=int(budget.tail / scale),
        protect_last_n=budget.protect_last_n,
        limit=int(budget.compacted_limit / scale),
        most=int(budget.threshold / scale),
        fixed=fixed,
        summary=allowance,
        summary_least=min(budget.summary_least, allowance),
        words=int(budget.user_words / scale),
        words_least=int(min(budget.threshold // 10, budget.user_words) / scale),
    )
    slim = Pruner(history)
    fit = Fitter(slim, room, counter, word_sizes, preview_chars=budget.preview_chars).fit(level)
    cut = fit.cut
    if not earlier.text and history.head_end:
        replaced = sum(history.sizes[cut.head_end : cut.tail_start])
        if replaced < min(_WORTH_A_SUMMARY, budget.threshold // 10):
            fit = fit.without_middle(slim)
            cut = fit.cut
    between = range(cut.head_end, cut.tail_start)
    middle = {index: rest for index in between if (rest := facts[index].rest) is not None and index != cut.kept_user}
    tokens = counter.text(earlier.text) if earlier.text else 0
    tokens += sum(map(history.sizes.__getitem__, middle))
    tokens += sum(counter.message(rest) - history.sizes[at] for at, rest in middle.items() if facts[at].is_summary)
    words = (*earlier.words, *(one for index, (one, _) in entries.items() if cut.head_end <= index < cut.tail_start))
    return Plan(
        history=history, slim=slim, earlier=earlier, fit=fit, covered=tuple(middle), middle=list(middle.values()),
        words=words, word_tokens=word_sizes.before(cut.tail_start), words_most=room.words,
        tokens_before=before, scale=scale, fixed=fixed, middle_tokens=tokens,
        slim_tokens=sum(slim.tokens(index, counter) for index in range(cut.tail_start, cut.whole_from)),
        budget=min(budget.summary(tokens), fit.room.summary),
    )  # fmt: skip
