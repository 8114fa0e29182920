"""Which tools a model is offered where all their schemas would take too much of the window.

A tool that is in use stays. The others are weighed by how well they match what the user wrote last: the words of a
tool's name count twice, a word that few tools have counts more. The best that fit are offered; the rest can be found
again by the same words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.core.search.terms import forms, stop_words, terms

LINE = 160
"""Characters of a tool's description where it is only named."""
SHARE = 0.25
"""Of the threshold that the schemas of all tools may take."""
LEFT = 0.25
"""Of the threshold that system prompt and tools leave to the conversation, where tools can be left out for it."""
_IN_NAME = 2.0


@dataclass(frozen=True, slots=True)
class Card:
    """A tool, as much of it as a choice needs."""

    name: str
    about: str
    """What it says it does, on one line."""
    named: frozenset[str]
    """The words of its name."""
    words: frozenset[str]
    """These, and those of its description and its parameters."""
    tokens: int = 0


def name_of(tool: Mapping[str, Any]) -> str:
    """The name of a tool in OpenAI's or Anthropic's form; empty where it has none."""
    name = _holder(tool).get("name")
    return name if isinstance(name, str) else ""


def card_of(tool: Mapping[str, Any], tokens: int = 0) -> Card:
    holder = _holder(tool)
    name, described = name_of(tool), holder.get("description")
    said = described if isinstance(described, str) else ""
    schema = holder.get("parameters") or holder.get("input_schema")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    parameters = [name for name in properties if isinstance(name, str)] if isinstance(properties, Mapping) else []
    about = " ".join(said.split())
    about = about if len(about) <= LINE else f"{about[: LINE - 1].rstrip()}…"
    named = frozenset(terms(name))
    return Card(name, about, named, named | frozenset(terms(" ".join((said, *parameters)))), tokens)


def presses(tools: int, *, threshold: int, others: int, share: float = SHARE) -> bool:
    """Whether tools take more than their share, or leave nothing of the threshold beside `others`."""
    return tools > share * threshold or tools + others >= threshold


def room_for(threshold: int, system: int, share: float = SHARE) -> int:
    """Tokens for tools that press: their share of the threshold, less where the system prompt needs most of it."""
    return max(0, min(round(share * threshold), round((1 - LEFT) * threshold) - system))


def left_out(
    cards: Sequence[Card], *, room: int, used: Collection[str], wanted: str, before: Collection[str] = ()
) -> tuple[str, ...]:
    """The names of the tools to leave out, in the order they were given.

    `used` are never among them, nor a tool without a name; `before` are those left out until now: as long as the others
    fit, nothing changes. `wanted`: what the user wrote last.
    """
    if sum(card.tokens for card in cards) <= room:
        return ()
    fixed = {card.name for card in cards if card.name in used or not card.name}
    same = [card.name for card in cards if card.name in before and card.name not in fixed]
    if same and sum(card.tokens for card in cards if card.name not in same) <= room:
        return tuple(same)
    points = scores(cards, wanted)
    free = [index for index, card in enumerate(cards) if card.name not in fixed]
    spent = sum(card.tokens for card in cards if card.name in fixed)
    gone: set[str] = set()
    for index in sorted(free, key=lambda index: (-points[index], cards[index].name in before, index)):
        if spent + cards[index].tokens <= room:
            spent += cards[index].tokens
        else:
            gone.add(cards[index].name)
    return tuple(card.name for card in cards if card.name in gone)


def matching(cards: Sequence[Card], query: str) -> list[Card]:
    """The tools that have words of the query, the best first."""
    points = scores(cards, query)
    order = sorted(range(len(cards)), key=lambda index: (-points[index], index))
    return [cards[index] for index in order if points[index] > 0]


def scores(cards: Sequence[Card], text: str) -> list[float]:
    """How well each tool matches a text: the words they share, in whatever form, weighed by how rare they are."""
    asked = dict.fromkeys(terms(text))
    empty = stop_words(list(asked))
    common = Counter(word for card in cards for word in card.words)
    points = [0.0] * len(cards)
    for word in asked:
        if word in empty or len(word) < 2:
            continue
        alike = {form for form in forms(word) if form in common}
        held = max((common[form] for form in alike), default=0)
        weight = math.log(1 + len(cards) / held) if held else 0.0
        for index, card in enumerate(cards):
            if alike & card.words:
                points[index] += weight * (_IN_NAME if alike & card.named else 1.0)
    return points


def _holder(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    return function if isinstance(function, Mapping) else tool
