"""The summary without a model: a journal of the work, one entry a turn, made from the structure of the transcript.

An entry has the number of the user's message, what was done (files, commands, calls, errors) and how the turn ended.
When room runs short the oldest entries give way first: their closing words, then their calls (which become counts),
then neighbouring entries become one for a range. What failed outlasts them: an error is a line of its own, and the
newest errors stay within their share of the room. Nothing leaves without a count that says so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from operator import is_
from typing import Any, NamedTuple

from everthread.compaction.history import MessageFacts, number_turns
from everthread.compaction.state import Results, ThreadState, bare_command, error_key, read_calls, read_todo
from everthread.compaction.summary import (
    BLOCKED,
    DONE,
    FILES,
    PROGRESS,
    REMAINING,
    STATE,
    Sections,
    SummaryDraft,
    SummaryRequest,
)
from everthread.compaction.tool_calls import Effect
from everthread.compaction.words import GAP, Count, Rarity, newest_lines, shorten, split_sentences
from everthread.core.messages import Messages, clip, count_noun, one_line, text_of
from everthread.core.redaction import clip_words, redact
from everthread.core.tokens import TokenCounter
from everthread.core.transcript import defuse

AUTHOR = "journal"
FIXED = "(fixed later)"
_STEPS = 12
"""An entry has at most so many lines: a longer turn is several entries."""
_NOTE_CHARS, _COMMAND_CHARS, _CALL_CHARS = 160, 120, 120
_CLOSING_CHARS = 6_000
"""More of an answer is not looked at: what is shown of it is far less."""
_FIRST_SENTENCE = 60
"""Tokens of the first sentence of closing words: a longer one is cut."""
_ERROR_SHARE = 4
"""Of the room (1/n) for errors of entries that gave way."""
_NEWEST_WEIGHT = 4.0
"""The newest turn's closing words get so many times the room of the oldest's."""


@dataclass(frozen=True)
class Entry:
    """A turn, a part of one, or a range of turns."""

    first: int
    last: int
    messages: int
    changed: int = 0
    ran: int = 0
    failed: int = 0
    called: int = 0
    looked: int = 0
    lines: tuple[str, ...] = ()
    closing: str = ""
    is_continued: bool = False
    changes: int = 0
    """In place of `changed` for a range: a file that several of its entries changed counts for each."""

    @property
    def is_silent(self) -> bool:
        """Whether the entry holds nothing but its number of messages."""
        return not (
            self.lines or self.closing or self.changed or self.changes or self.ran or self.called or self.looked
        )

    def header(self) -> str:
        span = f"{self.first}–{self.last}" if self.last > self.first else str(self.first)
        failed = f" ({self.failed} failed)" if self.failed else ""
        figures = [
            f"changed {count_noun(self.changed, 'file')}" if self.changed else "",
            count_noun(self.changes, "file change") if self.changes else "",
            f"ran {count_noun(self.ran, 'command')}{failed}" if self.ran else "",
            count_noun(self.called, "other call") if self.called else "",
            f"looked {count_noun(self.looked, 'time')}" if self.looked else "",
        ]
        counts = "; ".join(figure for figure in figures if figure)
        continued = ", continued" if self.is_continued else ""
        return f"[{span}{continued}] {count_noun(self.messages, 'message')}" + (f": {counts}" if counts else "")

    @cached_property
    def body(self) -> str:
        """The entry's text without its closing words."""
        return "\n- ".join((self.header(), *self.lines))

    @cached_property
    def text(self) -> str:
        if not self.closing:
            return self.body
        return f"{self.body}\n- ended: {self.closing}" if self.lines else f"{self.header()} — {self.closing}"

    @cached_property
    def commands(self) -> tuple[str, ...]:
        """The commands of the entry, as its lines show them."""
        listed = (names for line in self.lines if "ran `" in line for names in _RAN.findall(line))
        return tuple(command for names in listed for command in names[1:-1].split("`, `"))

    def join(self, other: Entry) -> Entry:
        """Both entries as one for a range: sums of their counts, and their error lines."""
        return Entry(
            min(self.first, other.first), max(self.last, other.last), self.messages + other.messages,
            0, self.ran + other.ran, self.failed + other.failed, self.called + other.called,
            self.looked + other.looked, (*self.errors, *other.errors),
            changes=self.changed + self.changes + other.changed + other.changes,
        )  # fmt: skip

    @cached_property
    def errors(self) -> tuple[str, ...]:
        """The lines that state an error."""
        return tuple(line for line in self.lines if line.startswith(_ERROR))


@dataclass(frozen=True, slots=True)
class Journal:
    """The entries of a thread, oldest first."""

    entries: tuple[Entry, ...] = ()

    @property
    def messages(self) -> int:
        return sum(entry.messages for entry in self.entries)

    def extend(self, facts: Sequence[MessageFacts], turns: Sequence[int], state: ThreadState) -> Journal:
        """The journal with these messages in it; `state` is brought up to their end.

        `turns`: for each message the number of the user's message it belongs to.
        """
        return JournalFold(self, state).extend(facts, turns).journal()

    def fit(self, budget: int, count: Count) -> Journal:
        """The journal within so many tokens, the oldest entries shortened first."""
        entries = _drop_repeated_errors(self.entries)
        if not entries:
            return self
        budget -= count(self.intro())
        closings = [count(entry.closing) for entry in entries]
        bare = [count(entry.body) + 2 for entry in entries]
        room, least = budget - sum(bare) - 3 * len(entries), budget * 2 // 5
        if sum(closings) <= room:
            return self
        entries = _shorten_closings(entries, closings, max(room, least), count)
        if room >= least:
            return Journal(tuple(_merge_silent(entries)))
        usual, lines = _usual_commands(entries), [line for entry in entries for line in entry.errors]
        errors = frozenset(newest_lines(lines, budget // _ERROR_SHARE, count))
        entries = _merge_silent(_name_oldest(entries, usual, errors, budget, count))
        last_turn = sum(entry.last == entries[-1].last for entry in entries)
        for kept in (last_turn, 0):
            entries = _merge_oldest(_count_oldest(entries, kept, errors, budget, count), kept, budget, count)
        return Journal(tuple(entries))

    def intro(self) -> str:
        """The line in front of the entries that says how to read them."""
        return (
            f"(Journal of {count_noun(self.messages, 'message')}, made without a model. [n] is the user's message n; "
            "the entries say what was done during it and how it ended.)"
        )

    def text(self) -> str:
        return "\n".join([self.intro(), *(entry.text for entry in self.entries)]) if self.entries else ""


class JournalWriter:
    """The summariser that calls no model and always works."""

    name = AUTHOR

    def __init__(self, counter: TokenCounter) -> None:
        self._count = counter.text

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        """The journal and the sections made from the state, within the budget."""
        state, journal = request.state or ThreadState(), request.journal or Journal()
        if request.journal is None:
            journal, state = journal_of(request.messages)
        sections = state_sections(state, request.budget // 3, self._count)
        used = sum(self._count(f"## {name}\n{text}\n\n") for name, text in sections.items())
        done = journal.fit(request.budget - used - 12, self._count).text()
        return SummaryDraft({DONE: done, **sections}, AUTHOR)


def journal_of(messages: Messages) -> tuple[Journal, ThreadState]:
    """The journal of a whole history, and how things stand at its end; turns count from 1."""
    facts = [MessageFacts(message) for message in messages]
    state = ThreadState()
    return Journal().extend(facts, number_turns(facts), state), state


_SEPARATOR = "\n\x1f\n"
_ERROR = "error: "
"""The start of an error line; it stands behind the line of the step that failed."""
_CODE = "[code]"
_BAR = " / "
"""Between the lines of closing words."""
_TAG = re.compile(r"</?[\w -]{1,40}>")
_COLONS = (":", "：")
_RAN = re.compile(r"(?<![\w`])ran (`[^`\n]{1,200}`(?:, `[^`\n]{1,200}`){0,99})")
_TIMES = re.compile(r" ×\d{1,4}$")
_CHANGED = re.compile(r"(?:^|— )changed ([^;\n]{1,400})")


# What was done


class CallText(NamedTuple):
    """A call in words, its error lines, and the key under which the state holds its failure."""

    text: str
    errors: tuple[str, ...] = ()
    failure: str = ""


class Step(NamedTuple):
    """The assistant's note and the calls of the same message, redacted."""

    note: str = ""
    changed: tuple[str, ...] = ()
    calls: tuple[CallText, ...] = ()

    def lines(self, open_errors: Container[str], shown: Sequence[Sequence[str]]) -> Iterator[str]:
        """The step in one line (none where it only read), then the error lines of its calls in `shown`."""
        parts = [f"changed {', '.join(self.changed)}"] if self.changed else []
        failed: list[str] = []
        for call, errors in zip(self.calls, shown, strict=True):
            fixed = f" {FIXED}" if call.failure and call.failure not in open_errors else ""
            parts.append(call.text if errors else f"{call.text}{fixed}")
            failed += [f"{_ERROR}{' | '.join(errors)}{fixed}"] if errors else []
        done = "; ".join(parts)
        if line := f"{self.note} — {done}" if self.note and done else done or self.note:
            yield line
        yield from failed


class JournalFold:
    """A journal and state that grow with the messages: messages read before are not read again."""

    def __init__(self, before: Journal, state: ThreadState) -> None:
        """`state` is brought up to the end of the messages."""
        self.state = state
        self._before = before
        self._errors = {key: error.lines for key, error in state.errors.items()}
        self._facts: Sequence[MessageFacts] = ()
        self._turns: Sequence[int] = ()
        self._waiting: Results = {}
        self._open: set[str] = set()
        """Ids of calls without a result."""
        self._parts: list[_Part] = []
        """The finished parts; the last part may still grow."""
        self._last: _Part | None = None
        self._shown_errors: set[str] = set()
        """Error lines that these parts show."""
        self._turn_start = self._part_start = 0

    def extend(self, facts: Sequence[MessageFacts], turns: Sequence[int]) -> JournalFold:
        """Take in what is new of the messages. `turns`: for each the number of the user's message it belongs to."""
        start = len(self._facts)
        records = read_calls(facts, turns, start, self._waiting)
        for record in records:
            self.state.apply(record.effect, record.turn)
            if record.open_call:
                self._open.add(record.open_call)
        self.state.messages += len(facts) - start
        self._facts, self._turns = facts, turns
        self._read_parts({record.place: facts[record.place] for record in records})
        return self

    def goes_on(self, facts: Sequence[MessageFacts], turns: Sequence[int]) -> bool:
        """Whether the messages begin with those read so far, and no new one is a result for an old call."""
        start = len(self._facts)
        if len(facts) < start or turns[:start] != self._turns or not all(map(is_, facts, self._facts)):
            return False
        return not any(result.call_id in self._open for one in facts[start:] for result in one.results)

    def copy(self) -> JournalFold:
        other = copy(self)
        other.state = self.state.copy()
        other._waiting = {key: [*results] for key, results in self._waiting.items() if results}
        other._parts, other._shown_errors, other._open = [*self._parts], {*self._shown_errors}, {*self._open}
        return other

    def journal(self) -> Journal:
        """The journal of all messages read so far."""
        unresolved = self.state.errors.keys() | self.state.forgotten
        closed = frozenset(
            _safe(line) for key, lines in self._errors.items() if key not in unresolved for line in lines
        )
        entries = self._before.entries
        told = frozenset(_safe(line) for error in self.state.errors.values() for line in error.lines)
        earlier = [_mark_fixes(entry, closed, told) for entry in entries] if closed else list(entries)
        parts = [*self._parts, self._last] if self._last else self._parts
        new = [part.entry(unresolved, told) for part in parts]
        if new and earlier and new[0].is_continued and len(earlier[-1].lines) + len(new[0].lines) <= _STEPS:
            joined = earlier.pop()
            lines, closing = (*joined.lines, *new[0].lines), new[0].closing or joined.closing
            new[0] = replace(joined.join(new[0]), lines=lines, closing=closing, is_continued=joined.is_continued)
        return Journal(tuple(_merge_silent([*earlier, *new])))

    def _read_parts(self, calling: dict[int, MessageFacts]) -> None:
        """Cut what is new into turns, and a long turn at the assistant's own notes."""
        facts, turns = self._facts, self._turns
        spans: list[range] = []
        for index in range(self._turn_start, len(turns)):
            if spans and turns[spans[-1].start] == turns[index]:
                spans[-1] = range(spans[-1].start, index + 1)
            else:
                spans.append(range(index, index + 1))
        closings = [_find_closing(facts, span) for span in spans]
        steps = [(one, self._note_before(place, closings)) for place, one in calling.items()]
        _write_texts(steps, [facts[at] for at in closings if at is not None])
        last = self._before.entries[-1].last if self._before.entries else -1
        for span, closing in zip(spans, closings, strict=True):
            closing_text = facts[closing].closing if closing is not None else None
            is_continued = turns[span.start] == last
            start = self._part_start if span.start == self._turn_start else span.start
            self._turn_start = span.start
            while True:
                self._part_start, end = start, self._part_end(start, span.stop)
                part = _Part(
                    facts[start:end], turns[start], self._shown_errors, is_continued=is_continued or start > span.start
                )
                if end == span.stop:
                    break
                self._parts.append(part)
                self._shown_errors |= part.errors
                start = end
            part.closing = closing_text or ""
            if span is spans[-1]:
                self._last = part
            else:
                self._parts.append(part)
                self._shown_errors |= part.errors

    def _note_before(self, place: int, closings: Container[int | None]) -> str:
        """What the assistant says in a message of its own right before its calls, unless the turn closes with it."""
        before = self._facts[place - 1] if place and place - 1 not in closings else None
        if before is None or before.calls or before.message.get("role") != "assistant":
            return ""
        return text_of(before.rest or {})

    def _part_end(self, start: int, stop: int) -> int:
        """The end of the part that begins at `start`: once it is long enough, it ends at the assistant's next note."""
        steps = 0
        for index in range(start, stop):
            one = self._facts[index]
            if one.step is not None:
                if steps >= _STEPS and text_of(one.message).strip():
                    return index
                step = one.step[1]
                steps += bool(step.note or step.changed or step.calls)
        return stop


class _Part:
    """A turn, or a part of a long one."""

    def __init__(
        self, facts: Sequence[MessageFacts], turn: int, earlier_errors: set[str], *, is_continued: bool
    ) -> None:
        """`earlier_errors`: error lines that earlier parts show."""
        self.errors: set[str] = set()
        """Error lines that this part shows first."""
        self.closing = ""
        self._steps: list[tuple[Step, list[list[str]]]] = []
        self._entry: tuple[Any, Entry] | None = None
        paths: set[str] = set()
        kinds: list[str] = []
        for one in facts:
            if one.step is None:
                continue
            effects, step = one.step
            for effect in effects:
                kinds.append("failed" if effect.kind == "ran" and effect.failed else effect.kind)
                if effect.kind != "looked" and not effect.failed and effect.is_done:
                    paths.update(effect.paths)
            shown = []
            for call in step.calls:
                shown.append([line for line in call.errors if line not in earlier_errors and line not in self.errors])
                self.errors.update(shown[-1])
            self._steps.append((step, shown))
        failed = kinds.count("failed")
        self._bare = Entry(
            turn, turn, len(facts), len(paths), kinds.count("ran") + failed, failed, kinds.count("called"),
            kinds.count("looked"), is_continued=is_continued,
        )  # fmt: skip
        self._failures = [call for step, _ in self._steps for call in step.calls if call.failure]

    def entry(self, unresolved: Container[str], told: frozenset[str]) -> Entry:
        """The part as an entry: which of its errors were overcome depends on all that follows.

        `unresolved`: the keys of errors that were not; `told`: their lines, which another call may state as well.
        """
        open_errors = frozenset(
            call.failure for call in self._failures if call.failure in unresolved or not told.isdisjoint(call.errors)
        )
        state = self.closing, open_errors
        if self._entry is None or self._entry[0] != state:
            lines = (line for step, shown in self._steps for line in step.lines(open_errors, shown))
            self._entry = state, replace(self._bare, lines=tuple(lines), closing=self.closing)
        return self._entry[1]


def _find_closing(facts: Sequence[MessageFacts], span: range) -> int | None:
    """The index of the last message in a turn where the assistant speaks and calls no tool."""
    for index in reversed(span):
        one = facts[index]
        if not one.calls and one.message.get("role") == "assistant" and text_of(one.message).strip():
            return index
    return None


def _write_texts(steps: Sequence[tuple[MessageFacts, str]], closings: Sequence[MessageFacts]) -> None:
    """Write the missing steps and closing words of these messages. They are redacted in one call, which is cheaper.

    Beside a message with calls stands what the assistant said right before it.
    """
    missing = [
        (one, note) for one, note in steps if one.effects and (one.step is None or one.step[0] is not one.effects[1])
    ]
    new = [one for one, _ in missing]
    ended = [one for one in closings if one.closing is None]
    notes = [(text_of(one.message) or note) if one.calls else "" for one, note in missing]
    raw = [_step(note, one.effects[1]) for one, note in zip(new, notes, strict=True) if one.effects]
    texts = [
        *(text for step in raw for text in _step_texts(step)),
        *(_closing_text(text_of(one.message).strip()) for one in ended),
    ]
    redacted = _redact_texts(texts)
    clean = iter(redacted)
    for one, step in zip(new, raw, strict=True):
        if one.effects:
            one.step = one.effects[1], step if redacted is texts else _with_texts(step, clean)
    for one, closing in zip(ended, redacted[len(texts) - len(ended) :], strict=True):
        one.closing = closing


def _step_texts(step: Step) -> Iterator[str]:
    yield step.note
    yield from step.changed
    for call in step.calls:
        yield call.text
        yield from call.errors


def _with_texts(step: Step, texts: Iterator[str]) -> Step:
    """The step with other texts, in the order of `_step_texts`."""
    note = next(texts)
    changed = tuple(next(texts) for _ in step.changed)
    calls = tuple(CallText(next(texts), tuple(next(texts) for _ in call.errors), call.failure) for call in step.calls)
    return Step(note, changed, calls)


def _step(note: str, effects: Sequence[Effect]) -> Step:
    """What a message's calls did, in words. A to-do list is told with the state."""
    changed = _name_paths(path for effect in effects if effect.kind == "changed" for path in _changed_paths(effect))
    calls = []
    for effect in effects:
        if effect.kind == "ran":
            calls.append(_call_text(f"ran `{_safe(bare_command(effect.target), _COMMAND_CHARS)}`", effect))
        elif effect.kind == "called" and not (read_todo(effect) and not effect.failed):
            target = _safe(effect.target, _CALL_CHARS)
            calls.append(_call_text(f"called {effect.tool}{f' ({target})' if target else ''}", effect))
        elif effect.failed and (effect.kind == "changed" or effect.errors):
            calls.append(_call_text(f"{effect.tool} {_safe(effect.target, _CALL_CHARS)}".strip(), effect))
    return Step(_note(note), tuple(changed), tuple(calls))


def _changed_paths(effect: Effect) -> tuple[str, ...]:
    return () if effect.failed or not effect.is_done else effect.paths or (effect.target,)


def _call_text(what: str, effect: Effect) -> CallText:
    """A call in words, with its outcome and errors."""
    outcome = _safe(effect.outcome, 120)
    errors = tuple(map(_safe, effect.errors))
    # Code is never the same twice: that another piece of it passed later says nothing about this one.
    is_open = (
        effect.failed and errors and effect.kind != "looked" and not {"code", "session_id"} & effect.arguments.keys()
    )
    failure = error_key(effect) if is_open else ""
    return CallText(f"{what} → {outcome}" if outcome else what, errors, failure)


def _mark_fixes(entry: Entry, closed: frozenset[str], told: frozenset[str]) -> Entry:
    """The entry with a mark on error lines that are among the `closed` errors, and none of which is still `told`."""

    def is_fixed(line: str) -> bool:
        stated = line.removeprefix(_ERROR).split(" | ")
        return line.startswith(_ERROR) and not closed.isdisjoint(stated) and told.isdisjoint(stated)

    lines = tuple(f"{line} {FIXED}" if not line.endswith(FIXED) and is_fixed(line) else line for line in entry.lines)
    return entry if lines == entry.lines else replace(entry, lines=lines)


def _note(text: str) -> str:
    """What the assistant says before its calls: the first sentence.

    Where that only announces what follows it (it ends with a colon, and the calls are not what follows) the last one.
    """
    prose = [
        line for line in _prose(text if len(text) <= 2_000 else f"{text[:1_000]}\n{text[-1_000:]}") if line != _CODE
    ]
    if not prose:
        return ""
    sentence = _sentences(prose[0])[0]
    if sentence.endswith(_COLONS):
        sentence = _sentences(prose[-1])[-1]
    return _safe(sentence, _NOTE_CHARS).rstrip(":： ")


def _sentences(line: str) -> list[str]:
    return [line[piece.start : piece.end].strip() for piece in split_sentences(line)] or [line]


def _closing_text(text: str) -> str:
    """An answer in one line: without code, its lines set apart."""
    return _BAR.join(_prose(text))


def _prose(text: str) -> list[str]:
    """The lines of a text, a piece of code as one sign; without what only leads to code at its end, or marks it."""
    pieces = text[:_CLOSING_CHARS].strip().split("```")
    spoken = f"\n{_CODE}\n".join(pieces[::2])
    lines = [" ".join(words) for line in spoken.split("\n") if (words := line.split())]
    is_code = False
    while lines and (lines[-1] == _CODE or _TAG.fullmatch(lines[-1]) or (is_code and lines[-1].endswith(_COLONS))):
        is_code = lines.pop() == _CODE or is_code
    return lines


def _safe(text: str, limit: int = 240) -> str:
    """One line in so many characters. What is cut loses its secrets first; the rest with the whole entry."""
    return clip_words(one_line(text), limit)


def _redact_texts(texts: list[str]) -> list[str]:
    """The texts redacted, without our own markers, in one call, which is cheaper; the same list where none changes."""
    joined = _SEPARATOR.join(texts)
    clean = defuse(redact(joined))
    split = clean.split(_SEPARATOR)
    if len(split) != len(texts):  # a text of theirs holds our separator, or there is none
        return [defuse(redact(text.replace(_SEPARATOR, " "))) for text in texts]
    return texts if clean == joined else split


def _name_paths(paths: Iterable[str]) -> list[str]:
    """Each path once, with how often."""
    counts: dict[str, int] = {}
    for path in paths:
        counts[path] = counts.get(path, 0) + 1
    return [f"{_safe(path, 200)} ×{times}" if times > 1 else _safe(path, 200) for path, times in counts.items()]


# Making it fit


def _shorten_closings(entries: list[Entry], sizes: Sequence[int], room: int, count: Count) -> list[Entry]:
    """The closing words of the newest entries, as many as can begin with a whole sentence; newer ones get more room."""
    if sum(sizes) <= room:
        return entries
    least: dict[int, int] = {}
    remaining = room
    for index in (index for index in reversed(range(len(entries))) if sizes[index]):
        least[index] = min(sizes[index], _first_sentence(entries[index].closing, count), _FIRST_SENTENCE, max(room, 0))
        remaining -= least[index]
        if remaining < 0:
            remaining += least.pop(index)
            break
    most = max(len(entries) - 1, 1)
    weights = {index: 1 + (_NEWEST_WEIGHT - 1) * index / most for index in least}
    share = _weighted_level([sizes[index] - least[index] for index in least], list(weights.values()), remaining)
    rarity = Rarity(entry.closing for entry in entries)
    shortened: list[Entry] = []
    for index, (entry, size) in enumerate(zip(entries, sizes, strict=True)):
        allowed = least[index] + int(min(share * weights[index], size - least[index])) if index in least else 0
        if size <= allowed:
            shortened.append(entry)
            continue
        text = shorten(entry.closing, allowed, count, rarity) if allowed >= 6 else ""
        text = _end_with_line(" ".join(text.split()), entry.closing)
        shortened.append(replace(entry, closing=text))
    return shortened


def _end_with_line(text: str, whole: str) -> str:
    """The beginning of a text, cut inside a sentence, without the part of a line at its end."""
    beginning = text.removesuffix(f" {GAP}")
    lines, bar, _ = beginning.rpartition(_BAR)
    if not bar or not whole.startswith(beginning) or whole.startswith(_BAR, len(beginning)):
        return text
    ends = {sentence.end for sentence in split_sentences(whole)}
    return text if len(beginning) in ends else f"{lines} {GAP}"


def _first_sentence(text: str, count: Count) -> int:
    """The tokens of a text's first sentence, and of a mark behind it."""
    return sum(count(text[sentence.start : sentence.end]) + 3 for sentence in split_sentences(text)[:1])


def _name_oldest(
    entries: list[Entry], usual: frozenset[str], errors: Container[str], budget: int, count: Count
) -> list[Entry]:
    """The oldest entries with their effects only, as many as it takes."""
    sizes = [count(entry.text) + 2 for entry in entries]
    total = sum(sizes)
    named: list[Entry] = []
    for entry, size in zip(entries, sizes, strict=True):
        slim = _name_effects(entry, usual, errors) if total > budget and entry.lines else entry
        total += count(slim.text) + 2 - size if slim is not entry else 0
        named.append(slim)
    return named


def _count_oldest(entries: list[Entry], kept: int, errors: Container[str], budget: int, count: Count) -> list[Entry]:
    """The oldest entries with counts and errors only, as many as it takes, but not the last `kept`.

    Neighbours of them without closing words become one at once, before a newer entry loses its names.
    """
    sizes = [count(entry.text) + 2 for entry in entries]
    total = sum(sizes)
    counted: list[Entry] = []
    for index, (entry, size) in enumerate(zip(entries, sizes, strict=True)):
        if total <= budget or index >= len(entries) - kept:
            return [*counted, *entries[index:]]
        slim = _keep_errors(entry, errors)
        total += count(slim.text) + 2 - size
        if counted and not counted[-1].closing and not slim.closing:
            joined = counted[-1].join(slim)
            total -= count(counted[-1].header()) + count(slim.header()) + 2 - count(joined.header())
            counted[-1] = joined
        else:
            counted.append(slim)
    return counted


def _name_effects(entry: Entry, usual: frozenset[str], errors: Container[str]) -> Entry:
    """The entry with only the changed files, the commands that are not `usual`, and its error lines."""
    paths = (path for line in entry.lines for listed in _CHANGED.findall(line) for path in listed.split(", "))
    names = list(dict.fromkeys(_TIMES.sub("", path) for path in paths))
    once = [f"`{clip(command, 60)}`" for command in dict.fromkeys(entry.commands) if command not in usual]
    effects = [f"changed {', '.join(names)}" if names else "", f"ran {', '.join(once)}" if once else ""]
    line = clip("; ".join(part for part in effects if part), 400)
    return replace(entry, lines=((line,) if line else ()) + _keep_errors(entry, errors).lines)


def _keep_errors(entry: Entry, errors: Container[str]) -> Entry:
    """The entry with only those of its error lines that are in `errors`."""
    return replace(entry, lines=tuple(line for line in entry.errors if line in errors))


def _drop_repeated_errors(entries: Iterable[Entry]) -> list[Entry]:
    """The entries without error lines that a later entry repeats."""
    later_errors: set[str] = set()
    unrepeated: list[Entry] = []
    for entry in reversed(list(entries)):
        lines = tuple(line for line in entry.lines if line not in later_errors)
        later_errors.update(entry.errors)
        unrepeated.append(entry if len(lines) == len(entry.lines) else replace(entry, lines=lines))
    return unrepeated[::-1]


def _usual_commands(entries: Iterable[Entry]) -> frozenset[str]:
    """Commands that were run more than twice: builds, tests, checks."""
    counts = Counter(command for entry in entries for command in entry.commands)
    return frozenset(command for command, times in counts.items() if times > 2)


def _merge_silent(entries: list[Entry]) -> list[Entry]:
    """Silent entries that stand side by side become one entry for a range."""
    merged: list[Entry] = []
    for entry in entries:
        if merged and merged[-1].is_silent and entry.is_silent:
            merged[-1] = merged[-1].join(entry)
        else:
            merged.append(entry)
    return merged


def _weighted_level(sizes: Sequence[int], weights: Sequence[float], room: float) -> float:
    remaining, weight = float(room), sum(weights)
    for size, own in sorted(zip(sizes, weights, strict=True), key=lambda pair: pair[0] / pair[1]):
        if size / own * weight >= remaining:
            return max(remaining / weight, 0.0)
        remaining -= size
        weight -= own
    return float("inf")


def _merge_oldest(entries: list[Entry], kept: int, budget: int, count: Count) -> list[Entry]:
    """Merge the oldest entries into one until the rest fits, but not the last `kept`.

    Where all are merged, drop its oldest errors.
    """
    sizes = [count(entry.text) + 2 for entry in entries]
    total = sum(sizes)
    index, merged, size = 0, entries[0], sizes[0]
    error_sizes = [count(line) + 2 for line in merged.errors]
    while total > budget and index + 1 < len(entries) - kept:
        index += 1
        total -= size + sizes[index]
        error_sizes += (count(line) + 2 for line in entries[index].errors)
        merged = merged.join(entries[index])
        size = count(merged.header()) + 2 + sum(error_sizes)
        total += size
    if total > budget and not kept:
        error_count = len(error_sizes)
        while error_count and total > budget:
            total -= error_sizes[-error_count]
            error_count -= 1
        merged = replace(merged, lines=merged.errors[len(error_sizes) - error_count :])
    return [merged, *entries[index + 1 :]] if merged is not entries[0] else entries


# Reading it back

_HEADER = re.compile(
    r"\[(?P<first>\d{1,9})(?:–(?P<last>\d{1,9}))?(?P<continued>, continued)?\] (?P<messages>[\d,]{1,12}) messages?"
    r"(?::(?P<figures>(?: [^;—\n]{1,40};?){1,5}?))?(?: — (?P<closing>.*))?$"
)
_FIGURES = {
    "changed": re.compile(r"changed ([\d,]{1,12}) files?"),
    "changes": re.compile(r"([\d,]{1,12}) file changes?"),
    "ran": re.compile(r"ran ([\d,]{1,12}) commands?"),
    "failed": re.compile(r"\(([\d,]{1,12}) failed\)"),
    "called": re.compile(r"([\d,]{1,12}) other calls?"),
    "looked": re.compile(r"looked ([\d,]{1,12}) times?"),
}


def parse_journal(text: str) -> Journal:
    """The entries of a journal's text; anything else is background that stands before them."""
    entries: list[Entry] = []
    background: list[str] = []
    for line in text.split("\n"):
        header = _HEADER.match(line)
        if header is not None:
            figures = header["figures"] or ""
            counts: dict[str, Any] = {
                name: int(match[1].replace(",", ""))
                for name, pattern in _FIGURES.items()
                if (match := pattern.search(figures))
            }
            first = int(header["first"])
            entries.append(
                Entry(
                    first, int(header["last"] or first), int(header["messages"].replace(",", "")),
                    closing=header["closing"] or "", is_continued=header["continued"] is not None, **counts,
                )
            )  # fmt: skip
        elif entries and line.startswith("- ended: "):
            entries[-1] = replace(entries[-1], closing=line.removeprefix("- ended: "))
        elif entries and line.startswith("- "):
            entries[-1] = replace(entries[-1], lines=(*entries[-1].lines, line[2:]))
        elif line.strip() and not line.startswith("(Journal of "):
            background.append(line.strip())
    if background:
        entries.insert(0, background_entry("\n".join(background), 0))
    return Journal(tuple(entries))


def background_entry(text: str, messages: int) -> Entry:
    """An entry for an earlier summary that has no entries of its own."""
    (closing,) = _redact_texts([_closing_text(f"From an earlier summary: {text}")])
    return Entry(0, 0, messages, closing=closing)


# How things stand: every line can be read back (`plan.read_state`)

DIRECTORY, BRANCH, TEST, RUNNING = "- working directory: ", "- branch: ", "- last test run: ", "- running: "
CHANGED_FILES, READ_FILES = "- changed: ", "- read: "
INTRO = "(Journal of "
"""The beginning of `Journal.intro`."""
_FAILURE_CHARS = 400
"""The key of a failure is no longer."""


def state_sections(state: ThreadState, room: int, count: Count) -> Sections:
    """The sections that come from the state, within so many tokens; open errors take half of them at most."""
    texts = {
        STATE: _state_text(state),
        PROGRESS: _items_text(state.todo_items("in_progress", "active", "doing")),
        BLOCKED: blocked_text(state),
        REMAINING: _items_text(state.todo_items("pending", "todo", "open", "not_started")),
    }
    sections: Sections = {}
    remaining = room
    for name, text in texts.items():
        lines: list[str] = []
        told = redact(text).split("\n") if text else []
        for line in newest_lines(told, room // 2, count) if name == BLOCKED else told:
            cost = count(line) + 2
            if cost <= remaining:
                lines.append(line)
                remaining -= cost
        if lines:
            sections[name] = "\n".join(lines)
    files = files_text(state, remaining - 8, count)
    return {**sections, FILES: files} if files else sections


def _state_text(state: ThreadState) -> str:
    lines = []
    if directory := _plain(state.directory):
        lines.append(f"{DIRECTORY}{directory}")
    if branch := _plain(state.branch):
        lines.append(f"{BRANCH}{branch}")
    if test := state.last_test():
        lines.append(f"{TEST}{_code(test[0], _COMMAND_CHARS)} → {_plain(test[1].outcome)}".rstrip())
    lines += [f"{RUNNING}{_code(process, _COMMAND_CHARS)}" for process in state.processes]
    return "\n".join(lines)


def _items_text(items: Iterable[str]) -> str:
    return "\n".join(f"- {text}" for text in map(_plain, items) if text)


def blocked_text(state: ThreadState) -> str:
    """The open errors, word for word, with what failed."""
    recent = state.open_errors(state.turn)
    lines = []
    for key, error in state.errors.items():
        if any(error is one for one in recent):
            shown = error.source if failure_key(_plain(error.source, _FAILURE_CHARS)) == key else key
            text = " | ".join(filter(None, map(_plain, error.lines)))
            lines.append(f"- {_code(shown, _FAILURE_CHARS)} failed (message {error.turn}): {text}".rstrip())
    return "\n".join(lines)


def failure_key(shown: str) -> str:
    """The key of a failure that is shown like this; the key itself, where the key is shown."""
    return error_key(Effect("ran", "", shown))


def files_text(state: ThreadState, room: int, count: Count, *, mentioned: str = "") -> str:
    """Changed files, then those only read, the newest first, as far as there is room; how many are not named."""
    lines = []
    for label, did in ((CHANGED_FILES, True), (READ_FILES, False)):
        paths = [
            path
            for path, one in reversed(state.files.items())
            if (one.did == "changed") == did and path not in mentioned
        ]
        names: list[str] = []
        remaining = room if did else room // 2
        for path in paths:
            cost = count(path) + 2
            if cost > remaining:
                break
            remaining -= cost
            names.append(_listed(path))
        room -= (room if did else room // 2) - remaining
        more = f" and {len(paths) - len(names)} more" if len(paths) > len(names) else ""
        if names:
            lines.append(f"{label}{', '.join(names)}{more}")
    return redact("\n".join(lines))


def _plain(text: str, limit: int = 240) -> str:
    """`_safe`, and the same again when it is read back and written anew."""
    return _safe(one_line(text), limit)


def _code(text: str, limit: int) -> str:
    """The text in more backticks than it has in a row."""
    line = _plain(text, limit)
    fence = "`"
    while fence in line:
        fence += "`"
    pad = " " if not line or "`" in (line[0], line[-1]) else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def _listed(path: str) -> str:
    """A path as one of a list: in backticks where it could pass for several, or for the end of the list."""
    line = _plain(path, _FAILURE_CHARS)
    return _code(line, _FAILURE_CHARS) if not line or "," in line or "`" in line or line.endswith(" more") else line


def read_code(text: str) -> tuple[str, str]:
    """What stands in backticks at the beginning of a text, and what follows it."""
    fence = text[: len(text) - len(text.lstrip("`"))]
    inside, _, rest = text[len(fence) :].partition(fence) if fence else ("", "", text)
    return inside.strip(), rest


def read_list(text: str) -> Iterator[str]:
    """The paths of a list."""
    before, _, last = text.rpartition(" and ")
    rest = before if last.endswith(" more") else text
    while rest:
        if rest.startswith("`"):
            path, rest = read_code(rest)
            rest = rest.removeprefix(", ")
        else:
            path, _, rest = rest.partition(", ")
        if path:
            yield path
