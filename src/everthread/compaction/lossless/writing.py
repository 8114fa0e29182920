"""Who writes a node's words: the summariser, once more more firmly, else the transcript itself.

What a node says must be smaller than what it stands for. A draft that is not is asked for again with half the room;
if that is no better, or nobody can write, the node is put together from the sources: makeshift, to be written again
when a model is there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everthread.compaction.lossless.completing import completed
from everthread.compaction.lossless.parts import Part, defused, plain_author, sections_of
from everthread.compaction.steps import importance, verify
from everthread.compaction.steps.cutting import Plan
from everthread.compaction.steps.files import by_weight, touched
from everthread.compaction.steps.reading import Read
from everthread.compaction.steps.writing import LESSER, Frame, fit, write
from everthread.core.facts import rank
from everthread.core.messages import Message
from everthread.core.summary import (
    Sections,
    Summarizer,
    SummaryDraft,
    SummaryRequest,
    Verification,
    parse_sections,
    render_sections,
)
from everthread.errors import SummaryError

Count = Callable[[str], int]

EXTRACTIVE = "extractive"
TOLERATED = 1.5
"""How far a draft may exceed its room: it is cut then."""
_NOTE = re.compile(r"^\(Extracted without a model from [^\n]*\)$", re.MULTILINE)
"""The line that ends an extractive summary: a node's own heading says the same, and of nodes over nodes rightly."""
LEAST = 40
"""Tokens of the smallest node."""


@dataclass(frozen=True, slots=True)
class Source:
    """The messages of a leaf to be."""

    messages: Sequence[Message]
    pruned: Sequence[Message]
    read: Sequence[Read]
    ids: Sequence[int]
    tokens: int


@dataclass(frozen=True, slots=True)
class Words:
    """What a node says, and what it took."""

    body: str
    author: str
    degraded: bool
    verification: Verification
    warnings: tuple[str, ...] = ()
    usage: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    """How a node shall be written."""

    room: int
    task: str = ""
    focus: str | None = None
    manual: bool = False
    rules: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes the nodes of one compaction."""

    summarizer: Summarizer
    count: Count
    plan: Plan

    @property
    def has_model(self) -> bool:
        return self.summarizer.name != EXTRACTIVE

    async def leaf(self, source: Source, order: Order) -> Words:
        """The words of a leaf, checked against its messages and completed from them."""
        ranked = rank(read.facts for read in source.read)
        request = SummaryRequest(
            messages=source.messages, pruned=source.pruned, budget=order.room * 7 // 8, task=order.task,
            focus=order.focus, ids=source.ids, manual=order.manual, facts=[read.facts for read in source.read],
            ranked=ranked, rules=order.rules, stretch=True,
        )  # fmt: skip
        draft = await self._draft(request, source.tokens)
        plan = replace(
            self.plan, messages=[], covered=tuple(range(len(source.messages))), middle=list(source.messages),
            read=list(source.read), pruned=list(source.pruned), previous={}, budget=order.room,
        )  # fmt: skip
        made = self._frame(plan, source, order.room)
        written = write(plan, made, draft, self.count, template="handoff", small=True)
        return self._words(draft, written.text, written.verification)

    async def condensed(self, parts: Sequence[Part], order: Order) -> Words:
        """The words of a node over nodes: what they say, in less room, and nothing they do not say."""
        told = sections_of(parts)
        request = SummaryRequest(
            messages=[], pruned=[], budget=order.room, previous=told, task=order.task, focus=order.focus,
            manual=order.manual, rules=order.rules, notes=[parse_sections(part.node.body) for part in parts],
        )  # fmt: skip
        draft = await self._draft(request, sum(self.count(part.text) for part in parts))
        sections = self._fitting(draft.sections or told, order.room)
        body = render_sections(completed(sections, told, order.room, self.count), brief=True)
        sources = "\n".join(verify.verified(part.node.body) for part in parts)
        body, checked, unknown = verify.mark_unverified(body, sources)
        return self._words(draft, body, Verification(checked=checked, unverified=unknown))

    def _fitting(self, sections: Sections, room: int) -> Sections:
        """The sections within the room, their headings counted too."""
        fitting = fit(sections, room, self.count)
        while any(fitting.values()):
            over = self.count(render_sections(fitting, brief=True)) - room
            shorter = fit(fitting, room - over - 8, self.count) if over > 0 else fitting
            if shorter == fitting:
                break
            fitting = shorter
        return fitting

    async def _draft(self, request: SummaryRequest, covered: int) -> SummaryDraft:
        """A draft smaller than what it stands for, or one without words."""
        usage: list[Mapping[str, Any]] = []
        warnings: list[str] = []
        for budget in (request.budget, request.budget // 2):
            try:
                draft = await self.summarizer.summarize(replace(request, budget=max(budget, LEAST)))
            except SummaryError as error:
                usage += error.usage
                warnings.append(f"{self.summarizer.name} wrote no node: {error}")
                break
            usage += draft.usage
            warnings += draft.warnings
            draft = replace(draft, sections={name: _NOTE.sub("", text) for name, text in draft.sections.items()})
            size = self.count(render_sections(draft.sections, brief=True))
            if draft.sections and size < covered and size <= TOLERATED * max(request.budget, LEAST):
                return replace(draft, usage=tuple(usage), warnings=tuple(warnings))
            warnings.append(f"{draft.author} wrote {size:,} tokens for {covered:,}; it was asked to be brief")
        return SummaryDraft({}, EXTRACTIVE, tuple(warnings), tuple(usage))

    def _words(self, draft: SummaryDraft, body: str, figures: Verification) -> Words:
        author = plain_author(draft.author)
        return Words(defused(body), author, author == EXTRACTIVE, figures, draft.warnings, draft.usage)

    def _frame(self, plan: Plan, source: Source, room: int) -> Frame:
        """What the transcript itself gives to a leaf: facts, files, and words worth quoting under their ids."""
        found = [read.facts for read in source.read]
        ranked = rank(found)
        points = importance.scores(found, ranked)
        quotes = importance.worth_quoting(plan.middle, source.ids, points, found)
        files = by_weight(dict(touched(plan.middle)))
        quoting = room // 8 if quotes else 0
        return Frame(
            marker="", task="", pins="", room=room, draft=room - quoting - room // 8, quoting=quoting, quotes=quotes,
            facts=ranked[: verify.TOP], lesser=ranked[verify.TOP : verify.TOP + LESSER], files=files, gone=(),
            warnings=(), end="",
        )  # fmt: skip
