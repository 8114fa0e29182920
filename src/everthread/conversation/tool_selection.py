"""Choose the tools to leave out if their schemas take too much of the window.

A tool that is in use stays. The others are weighed by how well they match the user's last words: the words of a tool's
name count twice, and a word that few tools have counts more. The best that fit are offered.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.core.search.terms import list_terms
from everthread.core.search.word_forms import choose_stop_words, list_word_forms
from everthread.core.text import clip
from everthread.thread.options import TOOLS_SHARE

MAX_DESCRIPTION_CHARS = 160
"""Characters of a tool's description in a list of tools."""
MIN_CONVERSATION_SHARE = 0.25
"""Share of the threshold to reserve for the conversation, if tools can be left out for it."""
_NAME_WEIGHT = 2.0


@dataclass(frozen=True, slots=True)
class ToolCard:
    """The facts about a tool that the choice needs."""

    name: str
    description: str
    """Its description on one line."""
    name_words: frozenset[str]
    words: frozenset[str]
    """The words of its name, its description and its parameters."""
    tokens: int = 0


def tool_name(tool: Mapping[str, Any]) -> str:
    """Return the name of a tool in OpenAI's or Anthropic's form, or an empty string if it lacks a name."""
    name = _get_definition(tool).get("name")
    return name if isinstance(name, str) else ""


def make_card(tool: Mapping[str, Any], tokens: int = 0) -> ToolCard:
    definition = _get_definition(tool)
    name = tool_name(tool)
    raw_description = definition.get("description")
    description = raw_description if isinstance(raw_description, str) else ""
    schema = definition.get("parameters") or definition.get("input_schema")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    parameters = []
    if isinstance(properties, Mapping):
        parameters = [parameter for parameter in properties if isinstance(parameter, str)]
    short_description = clip(" ".join(description.split()), MAX_DESCRIPTION_CHARS)
    name_words = frozenset(list_terms(name))
    return ToolCard(
        name,
        short_description,
        name_words,
        name_words | frozenset(list_terms(" ".join((description, *parameters)))),
        tokens,
    )


def exceeds_share(
    tool_tokens: int, *, threshold: int, other_tokens: int, share: float = TOOLS_SHARE
) -> bool:
    """Return whether tools exceed their share, or leave nothing of the threshold beside `other_tokens`."""
    return tool_tokens > share * threshold or tool_tokens + other_tokens >= threshold


def compute_max_tool_tokens(threshold: int, other_tokens: int, share: float = TOOLS_SHARE) -> int:
    """Return the most tokens for tools: their share of the threshold, or less if `other_tokens` leave too little."""
    free_tokens = round((1 - MIN_CONVERSATION_SHARE) * threshold) - other_tokens
    return max(0, min(round(share * threshold), free_tokens))


def choose_left_out(
    cards: Sequence[ToolCard],
    *,
    max_tokens: int,
    used_names: Collection[str],
    task_text: str,
    previously_left_out: Collection[str] = (),
) -> tuple[str, ...]:
    """Return the names of the tools to leave out, in the order they were given.

    Never leave out a used tool or a tool without a name. Keep the previous choice if the other tools still fit.
    `task_text`: the user's last messages.
    """
    if sum(card.tokens for card in cards) <= max_tokens:
        return ()
    required_names = {card.name for card in cards if card.name in used_names or not card.name}
    same_choice = [
        card.name
        for card in cards
        if card.name in previously_left_out and card.name not in required_names
    ]
    if (
        same_choice
        and sum(card.tokens for card in cards if card.name not in same_choice) <= max_tokens
    ):
        return tuple(same_choice)
    scores = score_cards(cards, task_text)
    optional_indexes = [
        index for index, card in enumerate(cards) if card.name not in required_names
    ]
    used_tokens = sum(card.tokens for card in cards if card.name in required_names)
    left_out_names: set[str] = set()

    def rank(index: int) -> tuple[float, bool, int]:
        return -scores[index], cards[index].name in previously_left_out, index

    for index in sorted(optional_indexes, key=rank):
        if used_tokens + cards[index].tokens <= max_tokens:
            used_tokens += cards[index].tokens
        else:
            left_out_names.add(cards[index].name)
    return tuple(card.name for card in cards if card.name in left_out_names)


def find_matching(cards: Sequence[ToolCard], query: str) -> list[ToolCard]:
    """Return the tools that share words with the query, the best first."""
    scores = score_cards(cards, query)
    ranked_indexes = sorted(range(len(cards)), key=lambda index: (-scores[index], index))
    return [cards[index] for index in ranked_indexes if scores[index] > 0]


def score_cards(cards: Sequence[ToolCard], text: str) -> list[float]:
    """Score how well each tool matches a text: rare words that both have, in any form, count more."""
    words = dict.fromkeys(list_terms(text))
    ignored_words = choose_stop_words(list(words))
    word_counts = Counter(word for card in cards for word in card.words)
    scores = [0.0] * len(cards)
    for word in words:
        if word in ignored_words or len(word) < 2:
            continue
        matching_forms = {form for form in list_word_forms(word) if form in word_counts}
        count = max((word_counts[form] for form in matching_forms), default=0)
        weight = math.log(1 + len(cards) / count) if count else 0.0
        for index, card in enumerate(cards):
            if matching_forms & card.words:
                scores[index] += weight * (
                    _NAME_WEIGHT if matching_forms & card.name_words else 1.0
                )
    return scores


def _get_definition(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    return function if isinstance(function, Mapping) else tool
