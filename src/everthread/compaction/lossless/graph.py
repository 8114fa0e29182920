"""The graph as it stands in the context: nodes, each under a line that names it.

The context is the engine's memory: which nodes are in view is read from the summary message itself. So an undo, a
branch and another process all find the graph as their own context shows it, and a bare list of messages needs no store.

How the graph grows: leaves over what leaves the view, and nodes over nodes that stand side by side.

What a node says must be smaller than what it stands for. A draft that is not is asked for again with half the room; if
that is no better, or nobody can write, the node is a journal: makeshift, to be written again when a model is there.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from everthread.compaction.composition import NAMES_TOO_MUCH, ask_summarizer, fit_sections, without_pins
from everthread.compaction.engine import Archive
from everthread.compaction.journal import AUTHOR, Entry, Journal, parse_journal
from everthread.compaction.summary import (
    ASKS,
    BLOCKED,
    CRITICAL,
    DECISIONS,
    DONE,
    FILES,
    PROGRESS,
    REMAINING,
    RULES,
    STATE,
    TASK,
    WORDS,
    Sections,
    Summarizer,
    SummaryDraft,
    SummaryRequest,
    Verification,
    nodes_end,
    parse_sections,
    render_sections,
)
from everthread.compaction.verification import is_refused, mark_sections, source_text
from everthread.compaction.words import Count
from everthread.core.messages import Message, Messages
from everthread.core.redaction import redact
from everthread.core.transcript import defuse, is_user_message, spans, without_summary
from everthread.core.types import Node

# --- the graph as it stands in the context ----------------------------------------------------------------------------


EARLIER = "an earlier summary"
"""Author of a part that was taken over from another engine's summary."""
STANDING = frozenset({STATE, PROGRESS, ASKS, REMAINING})
"""Sections that tell how things stand at a node's end: of nodes side by side only the last one's still holds."""
_HEADING = re.compile(
    r"^\[node (?P<id>n[0-9a-f]{12}): turns (?P<first>\d{1,9})-(?P<last>\d{1,9}), (?P<messages>[\d,]{1,12}) messages?, "
    r"(?P<tokens>[\d,]{1,12}) tokens, level (?P<level>\d{1,3}), by "
    r"(?P<author>[^\]\n]{1,80}?)(?P<degraded>, makeshift)?\]$",
    re.MULTILINE,
)
_END = re.compile(r"^\[end of nodes(?:;[^\]\n]{0,80})?\]$", re.MULTILINE)
_FORGED = re.compile(r"^\[(?=node n[0-9a-f]|end of nodes)", re.MULTILINE)
_SOON, _SMALL = 0.7, 0.25
"""From this share of a chunk's size on it ends where a user speaks; a last chunk of less joins the one before it."""


@dataclass(frozen=True, slots=True)
class VisibleNode:
    """A node in view, and how many messages it stands for."""

    node: Node
    messages: int

    @property
    def text(self) -> str:
        """Its lines in the context: the same bytes in every compaction that keeps it."""
        node, plural = self.node, "" if self.messages == 1 else "s"
        about = (
            f"[node {node.id}: turns {node.first_turn}-{node.last_turn}, {self.messages:,} message{plural}, "
            f"{node.covered_tokens:,} tokens, level {node.level}, by {node.author}"
        )
        return f"{about}{', makeshift' if node.degraded else ''}]\n{node.body}"


def read_parts(summary: str, *, first_turn: int, last_turn: int, messages: int) -> list[VisibleNode]:
    """The parts of a summary message's text. One without nodes is a single part over the given turns."""
    until = nodes_end(summary)  # what a user said stands behind it
    headings = [match for match in _HEADING.finditer(summary) if match.end() <= until]
    if not headings:
        return _read_foreign(summary, first_turn, last_turn, messages)
    bounds = [*(match.start() for match in headings[1:]), until]
    return [
        _part(match, _END.sub("", summary[match.end() : until]).strip())
        for match, until in zip(headings, bounds, strict=True)
    ]


def _part(match: re.Match[str], body: str) -> VisibleNode:
    node = Node(
        id=match["id"], thread="", level=int(match["level"]), body=body, tokens=0,
        covered_tokens=_number(match["tokens"]), author=match["author"], first_message=0, last_message=0,
        first_turn=int(match["first"]), last_turn=int(match["last"]), since=0.0, until=0.0, sources=(),
        degraded=match["degraded"] is not None,
    )  # fmt: skip
    return VisibleNode(node, _number(match["messages"]))


def _read_foreign(summary: str, first_turn: int, last_turn: int, messages: int) -> list[VisibleNode]:
    sections = parse_sections(summary)
    shown = {**sections, TASK: "", WORDS: "", RULES: without_pins(sections.get(RULES, ""))}
    if any(entry.last for entry in parse_journal(sections.get(DONE, "")).entries):
        shown |= {BLOCKED: "", FILES: ""}  # a journal has them from the state, which is told behind the nodes
    body = defuse_nodes(render_sections(shown, brief=True))
    node = Node(
        id="", thread="", level=0, body=body, tokens=0, covered_tokens=0, author=EARLIER, first_message=0,
        last_message=0, first_turn=first_turn, last_turn=max(first_turn, last_turn), since=0.0, until=0.0, sources=(),
    )  # fmt: skip
    return [VisibleNode(node, messages)] if body else []


def name_node(node: Node) -> Node:
    """The node with its id, made from what it covers and says: the same node is the same id in every process."""
    identity = (node.level, node.sources, node.first_turn, node.last_turn, node.covered_tokens, node.body)
    return replace(node, id=f"n{hashlib.sha256(repr(identity).encode('utf-8', 'surrogatepass')).hexdigest()[:12]}")


def join_sections(parts: Sequence[VisibleNode]) -> Sections:
    """What several nodes say, section by section, oldest first, no line twice; how things stand, by the last."""
    joined: dict[str, dict[str, None]] = {}
    for part in parts:
        for name, text in parse_sections(part.node.body).items():
            if name in STANDING and part is not parts[-1]:
                continue
            lines = (_strip_number(line) for line in text.split("\n") if line.strip())
            joined.setdefault(name, {}).update(dict.fromkeys(lines))
    return {name: "\n".join(lines) for name, lines in joined.items()}


def join_journals(parts: Sequence[VisibleNode]) -> Journal:
    """The journals of several nodes as one. What a model wrote under their heading is one entry for all of its node."""
    joined: list[Entry] = []
    for part in parts:
        entries = list(parse_journal(parse_sections(part.node.body).get(DONE, "")).entries)
        if len(entries) == 1 and not entries[0].last:
            turns = part.node.first_turn, part.node.last_turn
            entries = [replace(entries[0], first=turns[0], last=turns[1], messages=part.messages)]
        for entry in entries:
            joined[-1:] = _join_turn(joined[-1], entry) if joined else [entry]
    return Journal(tuple(joined))


def _join_turn(before: Entry, entry: Entry) -> list[Entry]:
    """Two entries; one, where they are parts of one turn, it is not too long, and no closing words would be lost."""
    if before.last != entry.first:
        return [before, entry]
    lines = (*before.lines, *entry.lines)
    if before.first < entry.last or len(lines) > MOST_LINES or (before.closing and entry.closing):
        return [before, replace(entry, is_continued=True)]
    closing = before.closing or entry.closing
    return [replace(before.join(entry), lines=lines, closing=closing, is_continued=before.is_continued)]


def view_text(marker: str, parts: Sequence[VisibleNode], sections: Sections) -> str:
    """The summary message without its last line. What changes least stands first, so that a cache can keep it."""
    shown = render_sections(sections, brief=True)
    return "\n\n".join(filter(None, (marker, *(part.text for part in parts), "[end of nodes]", shown)))


def defuse_nodes(text: str) -> str:
    """No words of a node can pass for the line that begins one, or for a marker."""
    return _FORGED.sub("(", defuse(text)).strip()


def plain_author(name: str) -> str:
    return re.sub(r"[\]\n]", " ", name)[:80].strip() or "a model"


def split_chunks(messages: Messages, covered: Sequence[int], size: int, count: Callable[[int], int]) -> list[list[int]]:
    """The places that are covered, in runs of about `size` tokens. A group of calls and results is never split."""
    wanted = set(covered)
    chunks: list[list[int]] = []
    sizes: list[int] = []
    for span in spans(messages):
        indices = [index for index in range(span.start, span.end) if index in wanted]
        if not indices:
            continue
        tokens = sum(map(count, indices))
        full = sizes and (
            sizes[-1] + tokens > size or (sizes[-1] >= _SOON * size and is_user_message(messages[indices[0]]))
        )
        if not chunks or full:
            chunks.append([])
            sizes.append(0)
        chunks[-1] += indices
        sizes[-1] += tokens
    if len(chunks) > 1 and sizes[-1] < _SMALL * size:
        last = chunks.pop()
        chunks[-1] += last
    return chunks


def number_messages(messages: Messages, parts: Sequence[VisibleNode], ids: Sequence[int] | None) -> list[int]:
    """An id for each message. Without `ids` messages are numbered in order, those that nodes cover included."""
    if ids is not None:
        return list(ids)
    hidden = sum(part.messages for part in parts)
    numbers: list[int] = []
    number = 0
    for message in messages:
        numbers.append(number)
        rest = without_summary(message)
        number += rest is not None
        if rest is not message:
            number += hidden
    return numbers


def part_tokens(parts: Sequence[VisibleNode], count: Count) -> int:
    return sum(count(part.text) + 1 for part in parts)


def _strip_number(line: str) -> str:
    """An action without its number: numbers of several nodes would run together."""
    return re.sub(r"^\d{1,6}\.\s+", "- ", line)


def _number(text: str) -> int:
    return int(text.replace(",", ""))


# --- how it grows -----------------------------------------------------------------------------------------------------


T = TypeVar("T")

PARALLEL = 4
"""Nodes that are written at the same time."""
MOST_LINES = 12
"""Lines of a journal's entry that was joined from parts of one turn."""
TOLERATED = 1.5
"""How far a draft may exceed its room: it is cut then."""
LEAST = 40
"""Tokens of the smallest node."""
_FACTS = (DECISIONS, CRITICAL, FILES)
"""Sections whose lines say something each by itself, the most important first."""


@dataclass(frozen=True, slots=True)
class Source:
    """The messages of a leaf to be, the user's message each belongs to, and what was done in them."""

    messages: Sequence[Message]
    pruned: Sequence[Message]
    turns: Sequence[int]
    ids: Sequence[int]
    tokens: int
    journal: Journal = field(default_factory=Journal)


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
class NodeOrder:
    """The order for a node: its room, the task, the focus."""

    room: int
    task: str = ""
    focus: str | None = None
    manual: bool = False


@dataclass(frozen=True, slots=True)
class NodeWriter:
    """Writes the nodes of one compaction."""

    summarizer: Summarizer
    count: Count

    @property
    def has_model(self) -> bool:
        return self.summarizer.name != AUTHOR

    async def write_leaf(self, source: Source, order: NodeOrder) -> NodeText:
        """The words of a leaf, checked against its messages."""
        request = SummaryRequest(
            messages=source.messages, pruned=source.pruned, budget=order.room, task=order.task, focus=order.focus,
            ids=source.ids, manual=order.manual, journal=source.journal, stretch=True,
        )  # fmt: skip
        draft = await self._draft(request, source.tokens)
        if draft.author == AUTHOR or not draft.sections:
            body = redact(source.journal.fit(order.room, self.count).text())
            return self._text(draft, render_sections({DONE: body}, brief=True), Verification())
        marked, checked, unknown = mark_sections(draft.sections, source_text(source.messages, ""))
        body = render_sections(self._fit(marked, order.room), brief=True)
        return self._text(draft, body, Verification(checked=checked, unverified=unknown))

    async def write_condensed(self, parts: Sequence[VisibleNode], order: NodeOrder) -> NodeText:
        """The words of a node over nodes: what they say, in less room, and nothing they do not say."""
        joined = join_sections(parts)
        request = SummaryRequest(
            messages=[], pruned=[], budget=order.room, previous=joined, task=order.task, focus=order.focus,
            manual=order.manual, notes=[parse_sections(part.node.body) for part in parts],
        )  # fmt: skip
        draft = await self._draft(request, sum(self.count(part.text) for part in parts))
        if draft.author == AUTHOR or not draft.sections:
            return self._text(draft, self._fit_journals(parts, joined, order.room), Verification())
        sections = self._complete(self._fit(draft.sections, order.room), joined, order.room)
        marked, checked, unknown = mark_sections(sections, "\n".join(part.node.body for part in parts))
        return self._text(draft, render_sections(marked, brief=True), Verification(checked=checked, unverified=unknown))

    def _fit_journals(self, parts: Sequence[VisibleNode], joined: Sections, room: int) -> str:
        """The journals of several nodes as one; other sections, which models wrote, get the remaining room."""
        others = {name: text for name, text in joined.items() if name != DONE}
        others = self._fit(others, room // 2) if others else {}
        used = self.count(render_sections(others, brief=True)) if others else 0
        done = join_journals(parts).fit(room - used - 8, self.count).text()
        return render_sections({**others, DONE: done}, brief=True)

    def _fit(self, sections: Mapping[str, str], room: int) -> Sections:
        """The sections within the room, their headings counted too."""
        fitting = fit_sections(sections, room, self.count)
        while any(fitting.values()):
            over = self.count(render_sections(fitting, brief=True)) - room
            shorter = fit_sections(fitting, room - over - 8, self.count) if over > 0 else fitting
            if shorter == fitting:
                break
            fitting = shorter
        return fitting

    def _complete(self, sections: Sections, joined: Sections, room: int) -> Sections:
        """The sections with lines of `joined` that no section has, the newest first, within the room.

        A model that joins summaries leaves out more than it must; the joined text still has it.
        """
        written = "\n".join(sections.values())
        remaining = room - 12 - sum(self.count(f"## {name}\n{text}\n\n") for name, text in sections.items() if text)
        full = dict(sections)
        for name in _FACTS:
            remaining -= 0 if full.get(name) else self.count(f"## {name}\n\n")
            chosen: list[str] = []
            for line in reversed(joined.get(name, "").split("\n")):
                cost = self.count(line) + 1
                if line.strip() and cost <= remaining and line.lstrip("- ").strip() not in written:
                    remaining -= cost
                    chosen.insert(0, line)
            full[name] = "\n".join(filter(None, (*chosen, full.get(name, ""))))
        return full

    async def _draft(self, request: SummaryRequest, covered: int) -> SummaryDraft:
        """A model's draft that is smaller than its sources and not refused, else an empty one."""
        if not self.has_model:
            return SummaryDraft({}, AUTHOR)
        sources = source_text(request.messages, "\n".join(request.previous.values()))

        def refuse(draft: SummaryDraft) -> str:
            size = self.count(render_sections(draft.sections, brief=True))
            _, checked, unknown = mark_sections(draft.sections, sources)
            if is_refused(checked, unknown):
                return f"{draft.author} {NAMES_TOO_MUCH}; its node was not used"
            if draft.sections and size < covered and size <= TOLERATED * max(request.budget, LEAST):
                return ""
            return f"{draft.author} wrote {size:,} tokens for {covered:,}; it was asked to be brief"

        budgets = (request.budget, request.budget // 2)
        requests = [replace(request, budget=max(budget, LEAST)) for budget in budgets]
        return await ask_summarizer(self.summarizer, requests, refuse)

    def _text(self, draft: SummaryDraft, body: str, figures: Verification) -> NodeText:
        author = plain_author(draft.author)
        return NodeText(defuse_nodes(body), author, author == AUTHOR, figures, draft.warnings, draft.usage)


@dataclass(slots=True)
class Growth:
    """One compaction's work on the graph. `new_nodes`: the nodes that are new."""

    writer: NodeWriter
    order: NodeOrder
    """How nodes are written; its room is that of one node."""
    fan_in: int
    archive: Archive | None = None
    new_nodes: dict[str, Node] = field(default_factory=dict)
    texts: list[NodeText] = field(default_factory=list)

    @property
    def count(self) -> Count:
        return self.writer.count

    async def add_leaves(self, sources: Sequence[Source]) -> list[VisibleNode]:
        """A leaf over each run of messages."""
        written = await _run_limited(self._leaf(source) for source in sources)
        return [self.add(node, len(node.sources), text) for node, text in written]

    async def _leaf(self, source: Source) -> tuple[Node, NodeText]:
        order = replace(self.order, room=max(min(self.order.room, source.tokens // 2), LEAST))
        text = await self.writer.write_leaf(source, order)
        since, until = await self._times(min(source.ids), max(source.ids))
        node = Node(
            id="", thread="", level=0, body=text.body, tokens=0, covered_tokens=source.tokens, author=text.author,
            first_message=min(source.ids), last_message=max(source.ids), first_turn=max(min(source.turns), 1),
            last_turn=max(*source.turns, 1), since=since, until=until, sources=tuple(map(str, source.ids)),
            degraded=text.is_makeshift,
        )  # fmt: skip
        return node, text

    async def condense(self, parts: list[VisibleNode], room: int) -> list[VisibleNode]:
        """Fewer parts: each run of `fan_in` at one level becomes one, and shorter runs, oldest first, for want of room.

        A run that would not get smaller stays.
        """
        stuck: set[str] = set()
        while (run := self._run(parts, stuck)) is not None:
            parts = await self._merge(parts, run, stuck)
        while len(parts) > 1 and part_tokens(parts, self.count) > room:
            parts = await self._merge(parts, _oldest_run(parts, self.fan_in), None)
        if parts and part_tokens(parts, self.count) > room:
            heading = self.count(parts[0].text.partition("\n")[0]) + 2
            parts = [await self._write_node_over(parts, max(room - heading, LEAST))]
        return parts

    def _run(self, parts: Sequence[VisibleNode], stuck: set[str]) -> range | None:
        """The oldest parts that stand side by side at one level, enough of them to be condensed."""
        for start in range(len(parts) - self.fan_in + 1):
            run = parts[start : start + self.fan_in]
            if len({part.node.level for part in run}) == 1 and run[0].node.id not in stuck:
                return range(start, start + self.fan_in)
        return None

    async def _merge(self, parts: list[VisibleNode], run: range, stuck: set[str] | None) -> list[VisibleNode]:
        covered = parts[run.start : run.stop]
        room = min(self.order.room, part_tokens(covered, self.count) * 2 // 3)
        new = await self._write_node_over(covered, max(room, LEAST))
        if stuck is not None and self.count(new.text) >= part_tokens(covered, self.count):
            stuck.add(covered[0].node.id)
            del self.new_nodes[new.node.id]
            return parts
        return [*parts[: run.start], new, *parts[run.stop :]]

    async def _write_node_over(self, covered: Sequence[VisibleNode], room: int) -> VisibleNode:
        """A node over nodes. Turns and times are those of all it covers."""
        text = await self.writer.write_condensed(covered, replace(self.order, room=room))
        nodes = [part.node for part in covered]
        node = Node(
            id="", thread="", level=max(node.level for node in nodes) + 1, body=text.body, tokens=0,
            covered_tokens=sum(node.covered_tokens for node in nodes), author=text.author,
            first_message=min(node.first_message for node in nodes),
            last_message=max(node.last_message for node in nodes),
            first_turn=min(node.first_turn for node in nodes), last_turn=max(node.last_turn for node in nodes),
            since=min(node.since for node in nodes), until=max(node.until for node in nodes),
            sources=tuple(node.id for node in nodes), degraded=text.is_makeshift,
        )  # fmt: skip
        return self.add(node, sum(part.messages for part in covered), text)

    def add(self, node: Node, messages: int, text: NodeText | None = None) -> VisibleNode:
        """A new node in view, under its id."""
        part = VisibleNode(name_node(node), messages)
        part = replace(part, node=replace(part.node, tokens=self.count(part.text)))
        self.new_nodes[part.node.id] = part.node
        if text is not None:
            self.texts.append(text)
        return part

    async def _times(self, *ids: int) -> tuple[float, float]:
        originals = await self.archive.originals(ids) if self.archive else []
        return (originals[0].created, originals[-1].created) if originals else (0.0, 0.0)


def _oldest_run(parts: Sequence[VisibleNode], most: int) -> range:
    """The oldest parts of one level side by side; where no two are, the two oldest. So no part is rewritten often."""
    for start in range(len(parts) - 1):
        level, end = parts[start].node.level, start + 1
        while end < len(parts) and end - start < most and parts[end].node.level == level:
            end += 1
        if end - start > 1:
            return range(start, end)
    return range(2)


async def _run_limited(work: Iterable[Awaitable[T]]) -> list[T]:
    """The results in order, a few at a time. When one fails the others are waited for, so that none is left behind."""
    slots = asyncio.Semaphore(PARALLEL)

    async def one(each: Awaitable[T]) -> T:
        async with slots:
            return await each

    tasks = [asyncio.ensure_future(one(each)) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
