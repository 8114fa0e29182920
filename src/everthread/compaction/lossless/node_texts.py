"""Write the text of a node.

It must be smaller than the text it covers. If a draft is not, it is requested again with half the room. If the second
draft is too large as well, or no model can write, the node is a journal: makeshift, to be rewritten when a model is
available.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from everthread.compaction.draft_requests import PendingDraft
from everthread.compaction.journal.journal import AUTHOR
from everthread.compaction.lossless.graph import (
    VisibleNode,
    clean_author,
    defuse_nodes,
    join_journals,
    join_sections,
)
from everthread.compaction.lossless.leaf_sources import LeafSource
from everthread.compaction.summarizers.summarizer import (
    SummaryDraft,
    SummaryRequest,
    Verification,
)
from everthread.compaction.summary.sections import (
    CRITICAL,
    DECISIONS,
    DONE,
    FILES,
    Sections,
    parse_sections,
    render_sections,
)
from everthread.compaction.summary.summary_message import drop_lines_to_fit
from everthread.compaction.summary.user_quotes import CountTokens
from everthread.compaction.verification.draft_checks import (
    TOO_MANY_UNKNOWN_NAMES,
)
from everthread.compaction.verification.unsupported_lines import (
    join_sources,
    mark_sections,
    should_refuse,
)
from everthread.core.secrets.redaction import redact

MAX_EXCESS = 1.5
"""A draft may exceed its room by this factor; it is cut then."""
MIN_NODE_TOKENS = 40
_FACT_SECTIONS = (DECISIONS, CRITICAL, FILES)
"""Sections whose lines are meaningful by themselves, the most important first."""


@dataclass(frozen=True, slots=True)
class NodeOrder:
    """Options for writing a node: its room, the task, the focus."""

    room: int
    task: str = ""
    focus: str | None = None
    manual: bool = False


@dataclass(frozen=True, slots=True)
class LeafTask:
    """A node to be written over messages."""

    source: LeafSource
    order: NodeOrder

    def request(self) -> SummaryRequest:
        """Return the request for its text."""
        source = self.source
        return SummaryRequest(
            messages=source.messages,
            pruned=source.pruned,
            budget=self.order.room,
            task=self.order.task,
            focus=self.order.focus,
            ids=source.ids,
            manual=self.order.manual,
            journal=source.journal,
            stretch=True,
        )

    def covered_tokens(self, count: CountTokens) -> int:  # noqa: ARG002 - as `JoinTask`
        """Return the tokens that it covers."""
        return self.source.tokens


@dataclass(frozen=True, slots=True)
class JoinTask:
    """A node to be written over nodes, with their text in less room."""

    parts: Sequence[VisibleNode]
    order: NodeOrder

    def request(self) -> SummaryRequest:
        """Return the request for its text."""
        return SummaryRequest(
            messages=[],
            pruned=[],
            budget=self.order.room,
            previous=join_sections(self.parts),
            task=self.order.task,
            focus=self.order.focus,
            manual=self.order.manual,
            notes=[parse_sections(part.node.body) for part in self.parts],
        )

    def covered_tokens(self, count: CountTokens) -> int:
        """Return the tokens that it covers."""
        return sum(count(part.text) for part in self.parts)


NodeTask = LeafTask | JoinTask


@dataclass(frozen=True, slots=True)
class PendingNode:
    """A node whose draft is being written."""

    task: NodeTask
    draft: PendingDraft


@dataclass(frozen=True, slots=True)
class NodeText:
    """The text of a node, and the warnings and usage of writing it."""

    body: str
    author: str
    is_makeshift: bool
    verification: Verification = field(default_factory=Verification)
    warnings: tuple[str, ...] = ()
    usage: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class NodeWriter:
    """A writer that makes the texts of nodes from drafts."""

    count: CountTokens

    def begin(self, task: NodeTask) -> PendingNode:
        """Begin to ask for a draft."""
        request = task.request()
        first_request = replace(request, budget=max(request.budget, MIN_NODE_TOKENS))
        brief_request = replace(
            request, budget=max(request.budget // 2, MIN_NODE_TOKENS)
        )
        return PendingNode(task, PendingDraft(first_request, brief_request))

    def take(self, node: PendingNode, draft: SummaryDraft) -> PendingNode | NodeText:
        """Return the text of a node; or ask again if the draft is refused."""
        request = node.task.request()
        sources = join_sources(request.messages, "\n".join(request.previous.values()))
        covered_tokens = node.task.covered_tokens(self.count)

        def check(draft: SummaryDraft) -> SummaryDraft | str:
            size = self.count(render_sections(draft.sections, skip_empty=True))
            _, checked_count, unknown_count = mark_sections(draft.sections, sources)
            if should_refuse(checked_count, unknown_count):
                return f"{draft.author} {TOO_MANY_UNKNOWN_NAMES}; its node was not used"
            room = max(request.budget, MIN_NODE_TOKENS)
            if size < covered_tokens and size <= MAX_EXCESS * room:
                return draft
            return f"{draft.author} wrote {size:,} tokens for {covered_tokens:,}; it was asked to be brief"

        result = node.draft.take(draft, check)
        if isinstance(result, PendingDraft):
            return replace(node, draft=result)
        return self.write(node.task, result)

    def write(self, task: NodeTask, draft: SummaryDraft) -> NodeText:
        """Return the text of a node from its draft; from the journal if the draft has no sections."""
        has_words = draft.author != AUTHOR and bool(draft.sections)
        room = task.order.room
        if isinstance(task, LeafTask):
            if not has_words:
                journal_text = redact(
                    task.source.journal.shorten_to(room, self.count).render()
                )
                return self._text(
                    draft, render_sections({DONE: journal_text}, skip_empty=True)
                )
            sources = join_sources(task.source.messages, "")
            marked_sections, checked_count, unknown_count = mark_sections(
                draft.sections, sources
            )
            marked_sections = self._fit(marked_sections, room)
        else:
            joined_sections = join_sections(task.parts)
            if not has_words:
                return self._text(
                    draft, self._fit_journals(task.parts, joined_sections, room)
                )
            sections = self._fit(draft.sections, room)
            sections = self._complete(sections, joined_sections, room)
            bodies = "\n".join(part.node.body for part in task.parts)
            marked_sections, checked_count, unknown_count = mark_sections(
                sections, bodies
            )
        figures = Verification(checked=checked_count, unverified=unknown_count)
        return self._text(
            draft, render_sections(marked_sections, skip_empty=True), figures
        )

    def _fit_journals(
        self, parts: Sequence[VisibleNode], joined_sections: Sections, room: int
    ) -> str:
        """Return the journals of several nodes as one; sections that models wrote get the remaining room."""
        other_sections = {
            name: text for name, text in joined_sections.items() if name != DONE
        }
        other_sections = self._fit(other_sections, room // 2) if other_sections else {}
        used_tokens = (
            self.count(render_sections(other_sections, skip_empty=True))
            if other_sections
            else 0
        )
        journal_text = (
            join_journals(parts).shorten_to(room - used_tokens - 8, self.count).render()
        )
        return render_sections({**other_sections, DONE: journal_text}, skip_empty=True)

    def _fit(self, sections: Mapping[str, str], room: int) -> Sections:
        """Return the sections within the room, with their headings."""
        fitting = drop_lines_to_fit(sections, room, self.count)
        while any(fitting.values()):
            excess = self.count(render_sections(fitting, skip_empty=True)) - room
            if excess <= 0:
                break
            shorter = drop_lines_to_fit(fitting, room - excess - 8, self.count)
            if shorter == fitting:
                break
            fitting = shorter
        return fitting

    def _complete(
        self, sections: Sections, joined_sections: Sections, room: int
    ) -> Sections:
        """Add lines of `joined_sections` that no section has, the newest first, within the room.

        A model that joins summaries leaves out more than it must.
        """
        written_text = "\n".join(sections.values())
        remaining = room - 12
        for name, text in sections.items():
            remaining -= self.count(f"## {name}\n{text}\n\n") if text else 0
        completed_sections = dict(sections)
        for name in _FACT_SECTIONS:
            remaining -= (
                0 if completed_sections.get(name) else self.count(f"## {name}\n\n")
            )
            chosen_lines: list[str] = []
            for line in reversed(joined_sections.get(name, "").split("\n")):
                cost = self.count(line) + 1
                fact = line.lstrip("- ").strip()
                if line.strip() and cost <= remaining and fact not in written_text:
                    remaining -= cost
                    chosen_lines.insert(0, line)
            completed_sections[name] = "\n".join(
                filter(None, (*chosen_lines, completed_sections.get(name, "")))
            )
        return completed_sections

    def _text(
        self, draft: SummaryDraft, body: str, figures: Verification | None = None
    ) -> NodeText:
        author = clean_author(draft.author)
        return NodeText(
            defuse_nodes(body),
            author,
            is_makeshift=author == AUTHOR,
            verification=figures or Verification(),
            warnings=draft.warnings,
            usage=draft.usage,
        )
