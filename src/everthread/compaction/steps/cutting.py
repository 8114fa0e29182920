"""The first two phases: what is kept, what is replaced, and the replaced part as a model is given it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.compaction.engine import Services
from everthread.compaction.steps.reading import Read, Reader
from everthread.core.boundaries import Room, without_earlier_summary
from everthread.core.exchange import System
from everthread.core.ladder import Descent, Strength, descend
from everthread.core.messages import Message, Messages
from everthread.core.pruning import prune
from everthread.core.summary import Sections, parse_sections, summaries_in


@dataclass(frozen=True, slots=True)
class Plan:
    """What a compaction will do, before a word of the summary is written."""

    messages: list[Message]
    """The input."""
    descent: Descent
    covered: tuple[int, ...]
    """Indices of what the summary stands for."""
    middle: list[Message]
    """Those messages, unpruned, without earlier summaries and without secrets."""
    read: list[Read]
    """What each message of the input says."""
    pruned: list[Message]
    previous: Sections
    tokens_before: int
    scale: float
    """What a token of ours is by the provider's count."""
    fixed: int
    """Tokens of system prompt and tools."""
    middle_tokens: int
    pruned_tokens: int
    budget: int
    """Tokens for the whole summary message."""


def plan(
    messages: Messages,
    services: Services,
    reader: Reader,
    *,
    system: System,
    tools: Sequence[Mapping[str, Any]] | None,
    strength: Strength = Strength.NORMAL,
    reported: int | None = None,
) -> Plan:
    """Where to cut, so that head, summary and tail fit. `reported`: what the provider counts for this prompt."""
    budget, counter = services.budget, services.counter
    given = list(messages)
    before = counter.request(given, system=system, tools=list(tools or ()))
    fixed = before - sum(map(counter.message, given))
    # The summary's size follows from the middle, which follows from the cut: allow for the largest it can be.
    allowance = min(budget.summary_max, max(before - fixed, 0) // 2)
    scale = min(max(reported / before, 0.5), 2.0) if reported and before else 1.0
    room = Room(
        tail=int(budget.tail / scale),
        protect_last_n=budget.protect_last_n,
        limit=int(budget.compacted_limit / scale),
        most=int(budget.threshold / scale),
        fixed=fixed + allowance,
    )
    descent = descend(given, room, counter.message, preview_chars=budget.preview_chars, strength=strength)
    cut = descent.boundaries
    read = reader.read(given)
    middle: dict[int, Message] = {}
    for index in range(cut.head_end, cut.tail_start):
        rest = without_earlier_summary(read[index].message)
        if rest is not None and index != cut.keep_after_summary:
            middle[index] = rest
    slim = prune(list(middle.values()), protect_from=len(middle), memo=reader.pruned).messages
    tokens = sum(map(counter.message, middle.values()))
    return Plan(
        messages=given,
        descent=descent,
        covered=tuple(middle),
        middle=list(middle.values()),
        read=read,
        pruned=slim,
        previous=_previous(given),
        tokens_before=before,
        scale=scale,
        fixed=fixed,
        middle_tokens=tokens,
        pruned_tokens=sum(map(counter.message, slim)),
        budget=budget.summary(tokens + _tokens_of_earlier(given, services)),
    )


def _previous(messages: Messages) -> Sections:
    """The sections of the newest summary in the list: it holds what older ones held."""
    found = [text for message in messages for text in summaries_in(message)]
    return parse_sections(found[-1]) if found else {}


def _tokens_of_earlier(messages: Messages, services: Services) -> int:
    """An earlier summary is part of what the new one stands for."""
    return sum(services.counter.text(text) for message in messages for text in summaries_in(message))
