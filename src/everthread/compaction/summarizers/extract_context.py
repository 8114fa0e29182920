"""Critical Context: what else must not be lost, by rank: the user's own facts, errors, addresses, values, names.

Only what the other sections do not say already. Names share lines; a value stands in the line it was found in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from everthread.compaction.summarizers.extract_actions import target
from everthread.compaction.summarizers.extract_budget import SHARES, wants
from everthread.compaction.summarizers.extract_commands import LOOK
from everthread.compaction.summarizers.extract_lines import ERRORS, SEPARATORS, Line, Scale, once, recalled
from everthread.compaction.summarizers.extract_open import unsettled
from everthread.compaction.summarizers.extract_reading import Story
from everthread.compaction.summarizers.extract_talk import REMEMBER, USER, statement_lines
from everthread.compaction.summarizers.extract_text import exact, is_prose, plain, spoken, trim
from everthread.core.errorlines import says_nothing
from everthread.core.facts import COMMAND, DECISION, FIGURE, NOTE, RULE, Fact, facts_in_text
from everthread.core.mentions import ERROR, HASH, IDENTIFIER, PATH, URL, VALUE
from everthread.core.summary import CRITICAL

LOGGED, SEEN = "logged: ", "seen: "
_TOP = 500
"""So many facts are considered; the rest is noise at any budget."""
_LABELS = {IDENTIFIER: "identifier", PATH: "path", URL: "url", HASH: "hash", VALUE: "value"}
_PLACES = (IDENTIFIER, PATH)
_SEEN = frozenset({"identifier", "path", "value"})
_PACKED = re.compile(rf"({'|'.join((ERRORS, *_LABELS.values()))}): (.+)")
_NOTE = re.compile(
    r"\(?Extracted without a model from (\d[\d,]{0,14}) messages(?:[^\n]{0,80}?(\d[\d,]{0,14}) lesser lines?)?"
)
_EARLIER = 0.55
_AMPLE = 2_500
"""In a smaller budget one error line of an output is enough, without where it came from."""


def note(messages: int, left_out: int, *, earlier: bool) -> str:
    """Says what this summary is; `earlier`: of a summary it takes up it is not known what that stood for."""
    more = " and an earlier summary" if earlier else ""
    told = f"; {left_out:,} lesser line{'s' if left_out > 1 else ''} left out for room" if left_out else ""
    return f"(Extracted without a model from {messages:,} messages{more}{told}.)"


def noted(previous: str) -> tuple[int, int]:
    """How many messages an earlier extractive summary stood for, and how many lines it had left out."""
    found = _NOTE.search(previous)
    return (int(found[1].replace(",", "")), int((found[2] or "0").replace(",", ""))) if found else (0, 0)


def context_lines(story: Story, previous: str, scale: Scale) -> list[Line]:
    """What the conversation and an earlier summary hold, each once; `Line.value` is what a line is there for."""
    known = _Known()
    lines = list(statement_lines(story, scale))
    for line in lines:
        known.add(line.text)
    lines += _errors(story, scale, known)
    lines += _seen(story, scale, known)
    lines += _of_facts(story, scale, known)
    lines += (line for line in _earlier(previous) if not (line.brief and known.has(line.brief)))
    named = [line for line in lines if not line.lesser]
    crowded = wants(named) > SHARES[CRITICAL] * scale.budget
    return once(named if crowded else lines)


class _Known:
    """What is said already; grows."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._recent = ""

    def has(self, value: str) -> bool:
        return value in self._recent or any(value in text for text in self._texts)

    def add(self, text: str) -> None:
        self._recent += f"\n{text}"
        if len(self._recent) > 4_000:
            self._texts.append(self._recent)
            self._recent = ""


def _seen(story: Story, scale: Scale, known: _Known) -> Iterator[Line]:
    """What stood out in an output."""
    for deed in story.deeds:
        for line in deed.outcome.seen if deed.outcome else ():
            if not known.has(line):
                known.add(line)
                told = exact(line, scale.error)
                text = f"{SEEN}{told} (from {target(deed, scale)})"
                yield Line(text, 5.0 * story.recency(deed.where), deed.where, value=told)


def _errors(story: Story, scale: Scale, known: _Known) -> Iterator[Line]:
    """The error lines of the last third, each once."""
    late = story.size * 2 // 3
    open_ones = {id(deed) for deed in unsettled(story)}
    seen: set[str] = set()
    for deed in story.deeds:
        if deed.outcome is None or (deed.where < late and not deed.outcome.logged):
            continue
        logged = deed.outcome.logged
        worth = 8.0 if logged or id(deed) in open_ones else 1.0 if deed.step.act == LOOK else 3.0
        for place, error in enumerate(deed.outcome.errors[: None if scale.budget > _AMPLE else 1]):
            if error not in seen:
                seen.add(error)
                known.add(error)
                told = exact(error, scale.error)
                source = f" (from {target(deed, scale)})" if scale.budget > _AMPLE else ""
                text = f"{LOGGED if logged else 'error: '}{told}{source}"
                weight = worth * story.recency(deed.where) * (1.0 if place == 0 else 0.5)
                yield Line(text, weight, deed.where, told, ERRORS, value=error)


def _of_facts(story: Story, scale: Scale, known: _Known) -> Iterator[Line]:
    named = _user_sentences(story)
    for fact in story.ranked[:_TOP]:
        if fact.kind in (RULE, DECISION, COMMAND, FIGURE, NOTE) or says_nothing(fact.value) or _is_escaped(fact):
            continue
        if known.has(fact.value):
            continue
        line = _line(fact, named, scale)
        if fact.kind in (ERROR, VALUE) or line.text.startswith(USER):
            known.add(line.text)
        yield line


def _line(fact: Fact, named: dict[str, tuple[str, int]], scale: Scale) -> Line:
    label = _LABELS.get(fact.kind, "")
    brief = fact.value if label and ", " not in fact.value else ""
    text, weight, where = f"{label or fact.kind}: {fact.value}", fact.weight, fact.where
    if fact.by_user and fact.value in named:
        sentence, where = named[fact.value]
        text, weight = f"{USER}{trim(sentence, scale.request)}", weight * (0.7 if fact.kind in _PLACES else 1.5)
    elif fact.kind == ERROR:
        source = f" (from {trim(fact.source, 70)})" if fact.source else ""
        text = f"error: {exact(fact.value, scale.error)}{source}"
        weight *= 0.5 if fact.source else 1.0
    elif fact.kind == PATH:
        weight *= 0.5  # files that were touched have a section of their own
    elif fact.kind == VALUE and fact.quote:
        text, weight = plain(trim(fact.quote, scale.error)), 0.7 * weight
    return Line(text, weight, where, brief, label, value=fact.value, lesser=_only_seen(fact))


def _only_seen(fact: Fact) -> bool:
    return fact.kind in (IDENTIFIER, VALUE, PATH) and not (fact.by_user or fact.held)


def _is_escaped(fact: Fact) -> bool:
    """Part of a string in source code: `models.json\\n`."""
    return fact.kind == PATH and "\\" in fact.value and fact.value[1:2] != ":"


def _user_sentences(story: Story) -> dict[str, tuple[str, int]]:
    """Fact -> the sentence the user last named it in."""
    found: dict[str, tuple[str, int]] = {}
    for where, facts in enumerate(story.facts):
        if not story.by_user[where] or not facts.facts:
            continue
        for fact in facts.facts:
            parts = (part.text for part in spoken(story.said[where]))
            sentence = next((part for part in parts if fact.value in part and is_prose(part)), None)
            if sentence:
                found[fact.value] = sentence, where
    return found


def _earlier(previous: str) -> Iterator[Line]:
    """An earlier summary's lines; the names that shared one apart again."""
    texts = [_QUOTE.sub(_quoted, text) for text in recalled(previous) if not _NOTE.match(text)]
    for place, text in enumerate(texts):
        order = place - len(texts)
        packed = _PACKED.fullmatch(text)
        names = packed[2].split(SEPARATORS.get(packed[1]) or ", ") if packed else []
        if packed and (packed[1] != VALUE or all(name.count(" ") < 4 for name in names)):
            weight = (2.0 if packed[1] == ERRORS else 1.2) * _EARLIER
            kind = packed[1]
            yield from (
                Line(f"{kind}: {name}", weight, order, name, kind, value=name, lesser=kind in _SEEN) for name in names
            )
        elif not text.endswith(":"):
            worth = next((worth for lead, worth in _WORTH.items() if text.startswith(lead)), 3.0)
            if text.startswith(USER):
                worth += min(len(facts_in_text(text)), 3) * 1.5
            yield Line(text, worth * _EARLIER, order, value=text.partition(": ")[2] or text)


_WORTH = {REMEMBER: 15.0, LOGGED: 12.0, SEEN: 8.0, "error: ": 4.0}
_QUOTE = re.compile(r"^> ?(?:#\d+ )?(user|assistant): ")
"""A message that was quoted after an earlier summary's sections."""


def _quoted(match: re.Match[str]) -> str:
    return f"{match[1].capitalize()}: "
