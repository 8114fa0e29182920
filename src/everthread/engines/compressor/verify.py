"""A summary is checked against its sources: what it lacks is added, what they never said is marked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from everthread.core.facts import DECISION, RULE, Fact
from everthread.core.mentions import ERROR, HASH, Token, checkable_tokens
from everthread.core.messages import Messages, calls_of, results_of, text_of
from everthread.core.summary import without_summary

UNVERIFIED = "(unverified)"
TOP = 80
"""So many of the best-ranked facts are looked for."""


def haystack(messages: Messages, previous: Iterable[str]) -> str:
    """Everything the sources say, as one text to look names up in.

    What an earlier summary said and no source did is no source: told again without its mark it is marked again.
    """
    parts = [verified(section) for section in previous]
    for message in messages:
        parts.append(without_summary(text_of(message)))
        for call in calls_of(message):
            parts.append(call.name)
            parts += _strings(call.parsed) if "\\" in call.arguments else (call.arguments,)
        parts += (result.text for result in results_of(message))
    return "\n".join(parts)


def verified(text: str) -> str:
    """The lines without the mark."""
    return "\n".join(line for line in text.split("\n") if not line.endswith(UNVERIFIED))


def _strings(value: Any) -> Iterator[str]:
    """Every string in parsed arguments, as it reads."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            pending += (*item.keys(), *item.values())
        elif isinstance(item, list):
            pending += item


def mark_unverified(text: str, sources: str) -> tuple[str, int, int]:
    """The text with a mark at the end of each line that names what no source says; names checked, names unknown."""
    lines = text.split("\n")
    checked = unknown = 0
    known: dict[str, bool] = {}
    for number, line in enumerate(lines):
        if line.startswith("#"):
            continue
        tokens = checkable_tokens(line)
        checked += len(tokens)
        bad = 0
        for token in tokens:
            if token.value not in known:
                known[token.value] = _stands(token, sources)
            bad += not known[token.value]
        unknown += bad
        if bad and not line.rstrip().endswith(UNVERIFIED):
            lines[number] = f"{line.rstrip()} {UNVERIFIED}"
    return "\n".join(lines), checked, unknown


def _stands(token: Token, sources: str) -> bool:
    """Whether the sources hold the name itself, not only a longer one that it is a part of; a hash may be shortened."""
    place = sources.find(token.value)
    while place >= 0:
        end = place + len(token.value)
        if token.kind == ERROR or not (
            _continues(sources, place - 1) or (token.kind != HASH and _continues(sources, end))
        ):
            return True
        place = sources.find(token.value, place + 1)
    return False


def _continues(text: str, place: int) -> bool:
    """Whether a name goes on here: a letter, digit or underscore, unless it is part of an escape (`\\n`)."""
    char = text[place] if 0 <= place < len(text) else ""
    return char.isascii() and (char.isalnum() or char == "_") and (place == 0 or text[place - 1] != "\\")


def missing_facts(facts: Sequence[Fact], text: str) -> tuple[int, list[Fact]]:
    """How many facts are looked for, and those the text lacks."""
    wanted = [fact for fact in facts if fact.kind != RULE]
    return len(wanted), [fact for fact in wanted if fact.value not in text]


def fact_lines(facts: Iterable[Fact], room: int, count: Callable[[str], int]) -> tuple[list[str], list[str], int]:
    """Decisions, and the other facts, as lines within so many tokens; and how many they are.

    What needs no line of its own shares one with others of its kind.
    """
    decisions: list[str] = []
    lines: list[str] = []
    grouped: dict[str, list[str]] = {}
    added = 0
    for fact in facts:
        alone = fact.kind == DECISION or fact.quote != ""
        line = f"- {fact.quote or fact.value}" if alone else f"{fact.value}, "
        cost = count(line) + 1 + (0 if alone or fact.kind in grouped else 4)
        if cost > room:
            continue
        room -= cost
        added += 1
        if alone:
            (decisions if fact.kind == DECISION else lines).append(line)
        else:
            grouped.setdefault(fact.kind, []).append(fact.value)
    for kind, values in grouped.items():
        lines.append(f"- errors: {' | '.join(values)}" if kind == ERROR else f"- {kind}: {', '.join(values)}")
    return decisions, lines, added
