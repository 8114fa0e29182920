"""Write the text of a node.

The text must be smaller than the text that the node covers. If a draft is not, it is requested again with half of the
tokens. If the second draft is also too large, or no model can write, the node holds a journal. Such a node is
makeshift: it is rewritten when a model is available.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from everthread.compaction.draft_requests import PendingDraft
from everthread.compaction.lossless.graph import (
    VisibleNode,
    clean_author,
    join_journals,
    join_sections,
    neutralize_node_lines,
)
from everthread.compaction.lossless.leaf_messages import LeafMessages
from everthread.compaction.summarizers.summarizer import (
    JOURNAL_AUTHOR,
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
from everthread.compaction.summary.sentences import CountTokens
from everthread.compaction.summary.summary_message import drop_lines_to_fit
from everthread.compaction.verification.draft_checks import (
    TOO_MANY_UNKNOWN_NAMES,
)
from everthread.compaction.verification.unsupported_lines import (
    join_sources,
    mark_sections,
)
from everthread.core.secrets.redaction import redact

MAX_OVERSHOOT = 1.5
"""A draft may exceed its tokens by this factor; such a draft is cut."""
MIN_NODE_TOKENS = 40
_FACT_SECTIONS = (DECISIONS, CRITICAL, FILES)
"""Sections whose lines can be understood alone, the most important first."""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Options for writing a node: its maximum size, the user's task, the focus."""

    max_tokens: int
    task: str
    focus: str | None
    manual: bool


@dataclass(frozen=True, slots=True)
class LeafTask:
    """A node to write over messages."""

    leaf: LeafMessages
    options: NodeOptions

    def make_request(self) -> SummaryRequest:
        """Return the request for the node's text."""
        leaf = self.leaf
        return SummaryRequest(
            messages=leaf.messages,
            pruned=leaf.pruned_messages,
            budget=self.options.max_tokens,
            task=self.options.task,
            focus=self.options.focus,
            ids=leaf.message_ids,
            manual=self.options.manual,
            journal=leaf.journal,
            is_stretch=True,
        )

    def count_covered_tokens(self, count: CountTokens) -> int:  # noqa: ARG002 - as `JoinTask`
        """Return the tokens that the node covers."""
        return self.leaf.tokens


@dataclass(frozen=True, slots=True)
class JoinTask:
    """A node to write over other nodes, whose texts it shortens."""

    children: Sequence[VisibleNode]
    options: NodeOptions

    def make_request(self) -> SummaryRequest:
        """Return the request for the node's text."""
        return SummaryRequest(
            messages=[],
            pruned=[],
            budget=self.options.max_tokens,
            previous=join_sections(self.children),
            task=self.options.task,
            focus=self.options.focus,
            manual=self.options.manual,
            notes=[parse_sections(part.node.body) for part in self.children],
        )

    def count_covered_tokens(self, count: CountTokens) -> int:
        """Return the tokens that the node covers."""
        return sum(count(part.text) for part in self.children)


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
    """A writer that turns drafts into the texts of nodes."""

    count_tokens: CountTokens

    def begin_node(self, task: NodeTask) -> PendingNode:
        """Return a pending node with the requests for its draft."""
        request = task.make_request()
        first_request = replace(request, budget=max(request.budget, MIN_NODE_TOKENS))
        brief_request = replace(request, budget=max(request.budget // 2, MIN_NODE_TOKENS))
        return PendingNode(task, PendingDraft(first_request, brief_request))

    def receive_draft(self, node: PendingNode, draft: SummaryDraft) -> PendingNode | NodeText:
        """Return the text of a node, or the pending node with the next request if the draft is refused."""
        request = node.task.make_request()
        sources = join_sources(request.messages, "\n".join(request.previous.values()))
        covered_tokens = node.task.count_covered_tokens(self.count_tokens)

        def check(draft: SummaryDraft) -> SummaryDraft | str:
            size = self.count_tokens(render_sections(draft.sections, skip_empty=True))
            if mark_sections(draft.sections, sources).should_be_refused:
                return f"{draft.author} {TOO_MANY_UNKNOWN_NAMES}; its node was not used"
            max_tokens = max(request.budget, MIN_NODE_TOKENS)
            if size < covered_tokens and size <= MAX_OVERSHOOT * max_tokens:
                return draft
            return f"{draft.author} wrote {size:,} tokens for {covered_tokens:,}; it was asked to be brief"

        result = node.draft.receive_draft(draft, check)
        if isinstance(result, PendingDraft):
            return replace(node, draft=result)
        return self.write_text(node.task, result)

    def write_text(self, task: NodeTask, draft: SummaryDraft) -> NodeText:
        """Return the text of a node from its draft, or from the journal if the draft has no sections."""
        has_model_text = draft.is_from_model and bool(draft.sections)
        max_tokens = task.options.max_tokens
        if isinstance(task, LeafTask):
            if not has_model_text:
                journal_text = redact(
                    task.leaf.journal.shorten_to(max_tokens, self.count_tokens).render()
                )
                return self._make_text(
                    draft, render_sections({DONE: journal_text}, skip_empty=True)
                )
            sources = join_sources(task.leaf.messages, "")
            marked = mark_sections(draft.sections, sources)
            sections = self._fit_sections(marked.sections, max_tokens)
        else:
            joined_sections = join_sections(task.children)
            if not has_model_text:
                return self._make_text(
                    draft,
                    self._fit_journals(task.children, joined_sections, max_tokens),
                )
            sections = self._fit_sections(draft.sections, max_tokens)
            sections = self._add_missing_facts(sections, joined_sections, max_tokens)
            bodies = "\n".join(part.node.body for part in task.children)
            marked = mark_sections(sections, bodies)
            sections = marked.sections
        figures = Verification(checked=marked.checked_count, unverified=marked.unverified_count)
        return self._make_text(draft, render_sections(sections, skip_empty=True), figures)

    def _fit_journals(
        self,
        children: Sequence[VisibleNode],
        joined_sections: Sections,
        max_tokens: int,
    ) -> str:
        """Join the journals of several nodes. Sections that models wrote get at most half of the tokens."""
        other_sections = {name: text for name, text in joined_sections.items() if name != DONE}
        other_sections = (
            self._fit_sections(other_sections, max_tokens // 2) if other_sections else {}
        )
        used_tokens = (
            self.count_tokens(render_sections(other_sections, skip_empty=True))
            if other_sections
            else 0
        )
        journal_text = (
            join_journals(children)
            .shorten_to(max_tokens - used_tokens - 8, self.count_tokens)
            .render()
        )
        return render_sections({**other_sections, DONE: journal_text}, skip_empty=True)

    def _fit_sections(self, sections: Mapping[str, str], max_tokens: int) -> Sections:
        """Return the sections within `max_tokens`, headings included."""
        fitting_sections = drop_lines_to_fit(sections, max_tokens, self.count_tokens)
        while any(fitting_sections.values()):
            excess = (
                self.count_tokens(render_sections(fitting_sections, skip_empty=True)) - max_tokens
            )
            if excess <= 0:
                break
            shorter = drop_lines_to_fit(
                fitting_sections, max_tokens - excess - 8, self.count_tokens
            )
            if shorter == fitting_sections:
                break
            fitting_sections = shorter
        return fitting_sections

    def _add_missing_facts(
        self, sections: Sections, joined_sections: Sections, max_tokens: int
    ) -> Sections:
        """Add lines of `joined_sections` that the sections lack, the newest first, within `max_tokens`.

        A model that joins summaries leaves out more than necessary.
        """
        written_text = "\n".join(sections.values())
        remaining = max_tokens - 12
        for name, text in sections.items():
            remaining -= self.count_tokens(f"## {name}\n{text}\n\n") if text else 0
        completed_sections = dict(sections)
        for name in _FACT_SECTIONS:
            remaining -= 0 if completed_sections.get(name) else self.count_tokens(f"## {name}\n\n")
            chosen_lines: list[str] = []
            for line in reversed(joined_sections.get(name, "").split("\n")):
                line_tokens = self.count_tokens(line) + 1
                fact = line.lstrip("- ").strip()
                if line.strip() and line_tokens <= remaining and fact not in written_text:
                    remaining -= line_tokens
                    chosen_lines.insert(0, line)
            completed_sections[name] = "\n".join(
                filter(None, (*chosen_lines, completed_sections.get(name, "")))
            )
        return completed_sections

    def _make_text(
        self, draft: SummaryDraft, body: str, figures: Verification | None = None
    ) -> NodeText:
        """Return a node's text. Lines that could be mistaken for the start of a node are neutralised."""
        author = clean_author(draft.author)
        return NodeText(
            neutralize_node_lines(body),
            author,
            is_makeshift=author == JOURNAL_AUTHOR,
            verification=figures or Verification(),
            warnings=draft.warnings,
            usage=draft.usage,
        )
