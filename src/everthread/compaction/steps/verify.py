"""A summary is checked against its sources: what it lacks is added, what they never said is marked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from everthread.compaction.steps.reading import Read
from everthread.core.errorlines import says_nothing
from everthread.core.facts import COMMAND, RULE, Fact
from everthread.core.mentions import ERROR, HASH, VALUE, Token, checkable_tokens

UNVERIFIED = "(unverified)"
TOLD, TOLD_COMMAND = 120, 82
"""A fact of which a text holds so many characters is told."""
TOP = 80
"""So many of the best-ranked facts are looked for."""


def haystack(read: Iterable[Read], previous: Iterable[str]) -> str:
    """Everything the sources say, as one text to look names up in.

    What an earlier summary said and no source did is no source: told again without its mark it is marked again.
    """
    return "\n".join([*map(verified, previous), *(each.source for each in read)])


def verified(text: str) -> str:
    """The lines without the mark."""
    return "\n".join(line for line in text.split("\n") if not line.endswith(UNVERIFIED))


def names_in(read: Iterable[Read]) -> dict[str, bool]:
    """Names that were read in the sources: they need not be looked for again."""
    return {fact.value: True for each in read for fact in each.facts.facts}


def mark_unverified(text: str, sources: str, known: dict[str, bool] | None = None) -> tuple[str, int, int]:
    """The text with a mark at the end of each line that names what no source says; names checked, names unknown.

    `known`: names of which it is known already whether a source has them; what is found out is added.
    """
    lines = text.split("\n")
    checked = unknown = 0
    known = {} if known is None else known
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
    wanted = [fact for fact in facts if _is_wanted(fact)]
    return len(wanted), [fact for fact in wanted if beginning(fact) not in text]


def _is_wanted(fact: Fact) -> bool:
    """Rules are pinned; a plain number in an output, or that something failed, is nothing to look for."""
    return fact.kind != RULE and not (fact.kind == VALUE and not fact.by_user) and not says_nothing(fact.value)


def beginning(fact: Fact) -> str:
    """What tells a fact: a text that holds it holds the fact. A command is told on one line."""
    if fact.kind == COMMAND:
        return " ".join(fact.value.split()).replace("`", "'")[:TOLD_COMMAND].rstrip()
    return fact.value[:TOLD]
