"""Which tools are left out if their schemas press on the window.

A tool that is in use stays. The others are weighed by how well they match the user's last words: the words of a tool's
name count twice, and a word that few tools have counts more. The best that fit are offered.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from everthread.core.messages import clip
from everthread.core.search.terms import forms, stop_words, terms
from everthread.thread.options import TOOLS_SHARE

if TYPE_CHECKING:
    pass


CARD_CHARS = 160
"""Characters of a tool's description if it is only named."""
MIN_LEFT = 0.25
"""Share of the threshold to leave to the conversation, if tools can be left out for it."""
_NAME_WEIGHT = 2.0


@dataclass(frozen=True, slots=True)
class ToolCard:
    """The parts of a tool that the choice needs."""

    name: str
    about: str
    """Its description on one line."""
    named: frozenset[str]
    words: frozenset[str]
    """The words of its name, its description and its parameters."""
    tokens: int = 0


def name_of(tool: Mapping[str, Any]) -> str:
    """Return the name of a tool in OpenAI's or Anthropic's form; empty if it lacks a name."""
    name = _definition(tool).get("name")
    return name if isinstance(name, str) else ""


def card_of(tool: Mapping[str, Any], tokens: int = 0) -> ToolCard:
    holder = _definition(tool)
    name = name_of(tool)
    raw_description = holder.get("description")
    description = raw_description if isinstance(raw_description, str) else ""
    schema = holder.get("parameters") or holder.get("input_schema")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    parameters = (
        [name for name in properties if isinstance(name, str)]
        if isinstance(properties, Mapping)
        else []
    )
    about = clip(" ".join(description.split()), CARD_CHARS)
    named = frozenset(terms(name))
    return ToolCard(
        name,
        about,
        named,
        named | frozenset(terms(" ".join((description, *parameters)))),
        tokens,
    )


def take_too_much_room(
    tools: int, *, threshold: int, others: int, share: float = TOOLS_SHARE
) -> bool:
    """Return whether tools exceed their share, or leave nothing of the threshold beside `others`."""
    return tools > share * threshold or tools + others >= threshold


def room_for(threshold: int, system: int, share: float = TOOLS_SHARE) -> int:
    """Return the tokens for tools: their share of the threshold, less if the system prompt needs most of it."""
    return max(
        0, min(round(share * threshold), round((1 - MIN_LEFT) * threshold) - system)
    )


def left_out(
    cards: Sequence[ToolCard],
    *,
    room: int,
    used: Collection[str],
    wanted: str,
    before: Collection[str] = (),
) -> tuple[str, ...]:
    """Return the names of the tools to leave out, in the order they were given.

    Never leave out `used` tools or a tool without a name. `before`: the tools left out until now; if the others still
    fit, keep that choice. `wanted`: the user's last message.
    """
    if sum(card.tokens for card in cards) <= room:
        return ()
    fixed = {card.name for card in cards if card.name in used or not card.name}
    same = [
        card.name for card in cards if card.name in before and card.name not in fixed
    ]
    if same and sum(card.tokens for card in cards if card.name not in same) <= room:
        return tuple(same)
    points = scores(cards, wanted)
    free = [index for index, card in enumerate(cards) if card.name not in fixed]
    spent = sum(card.tokens for card in cards if card.name in fixed)
    gone: set[str] = set()
    for index in sorted(
        free, key=lambda index: (-points[index], cards[index].name in before, index)
    ):
        if spent + cards[index].tokens <= room:
            spent += cards[index].tokens
        else:
            gone.add(cards[index].name)
    return tuple(card.name for card in cards if card.name in gone)


def find_matching(cards: Sequence[ToolCard], query: str) -> list[ToolCard]:
    """Return the tools that share words with the query, the best first."""
    points = scores(cards, query)
    order = sorted(range(len(cards)), key=lambda index: (-points[index], index))
    return [cards[index] for index in order if points[index] > 0]


def scores(cards: Sequence[ToolCard], text: str) -> list[float]:
    """Score how well each tool matches a text, by the rarity of the words they share in any form."""
    words = dict.fromkeys(terms(text))
    empty = stop_words(list(words))
    common = Counter(word for card in cards for word in card.words)
    points = [0.0] * len(cards)
    for word in words:
        if word in empty or len(word) < 2:
            continue
        alike = {form for form in forms(word) if form in common}
        count = max((common[form] for form in alike), default=0)
        weight = math.log(1 + len(cards) / count) if count else 0.0
        for index, card in enumerate(cards):
            if alike & card.words:
                points[index] += weight * (_NAME_WEIGHT if alike & card.named else 1.0)
    return points


def _definition(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    return function if isinstance(function, Mapping) else tool
