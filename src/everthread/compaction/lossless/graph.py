"""The nodes of the graph in the context, each under a heading line.

The engine reads the visible nodes from the summary message itself. So after an undo, in a branch and in another process
the graph is the one that the context shows, and a bare list of messages needs no store.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from everthread.compaction.journal.entries import JournalEntry
from everthread.compaction.journal.journal import Journal, parse_journal
from everthread.compaction.summary.sections import (
    BLOCKED,
    DONE,
    FILES,
    NAMES,
    PENDING_ASKS,
    PROGRESS,
    REMAINING,
    RULES,
    STATE,
    TASK,
    USER_WORDS,
    Sections,
    find_nodes_end,
    parse_sections,
    render_sections,
)
from everthread.compaction.summary.sentences import CountTokens
from everthread.compaction.summary.summary_message import strip_pinned_notes
from everthread.core.messages import Messages
from everthread.core.summary_marks import neutralize_summary_marks, without_summary
from everthread.core.turns import is_user_message, split_into_spans
from everthread.core.types import Node

EARLIER_SUMMARY_AUTHOR = "an earlier summary"
"""Author of a part that comes from another engine's summary."""
LATEST_ONLY_SECTIONS = frozenset({STATE, PROGRESS, PENDING_ASKS, REMAINING})
"""Sections that describe the state at the end of a node. In adjacent nodes, only the last one's hold."""
_HEADING_PATTERN = re.compile(
    r"^\[node (?P<id>n[0-9a-f]{12}): turns (?P<first>\d{1,9})-(?P<last>\d{1,9}), (?P<messages>[\d,]{1,12}) messages?, "
    r"(?P<tokens>[\d,]{1,12}) tokens, level (?P<level>\d{1,3}), by "
    r"(?P<author>[^\]\n]{1,80}?)(?P<degraded>, makeshift)?\]$",
    re.MULTILINE,
)
_END_PATTERN = re.compile(r"^\[end of nodes(?:;[^\]\n]{0,80})?\]$", re.MULTILINE)
_FORGED_NODE_LINE_PATTERN = re.compile(r"^\[(?=node n[0-9a-f]|end of nodes)", re.MULTILINE)
MAX_JOINED_LINES = 12
"""Maximum lines of a journal's entry that is joined from parts of one turn."""
_MIN_FULL_SHARE = 0.7
"""A chunk with at least this share of its intended size ends before the next user message."""
_MIN_CHUNK_SHARE = 0.25
"""A last chunk below this share of the intended size is joined to the previous chunk."""


@dataclass(frozen=True, slots=True)
class VisibleNode:
    """A node in view, and the number of messages it covers."""

    node: Node
    message_count: int

    @property
    def text(self) -> str:
        """The lines of the node in the context: the same bytes in every compaction that keeps the node."""
        node = self.node
        plural = "" if self.message_count == 1 else "s"
        heading = (
            f"[node {node.id}: turns {node.first_turn}-{node.last_turn}, {self.message_count:,} message{plural}, "
            f"{node.covered_tokens:,} tokens, level {node.level}, by {node.author}"
        )
        return f"{heading}{', makeshift' if node.degraded else ''}]\n{node.body}"


def read_visible_nodes(
    summary: str, *, first_turn: int, last_turn: int, message_count: int
) -> list[VisibleNode]:
    """Parse the nodes in a summary message's text. A summary without nodes becomes a single node over these turns."""
    nodes_end = find_nodes_end(summary)  # a user's words come after the nodes
    headings = [match for match in _HEADING_PATTERN.finditer(summary) if match.end() <= nodes_end]
    if not headings:
        return _read_foreign_summary(summary, first_turn, last_turn, message_count)
    bounds = [*(match.start() for match in headings[1:]), nodes_end]
    return [
        _parse_visible_node(match, _END_PATTERN.sub("", summary[match.end() : end]).strip())
        for match, end in zip(headings, bounds, strict=True)
    ]


def _parse_visible_node(match: re.Match[str], body: str) -> VisibleNode:
    """Return a node from its heading line and its body."""
    node = Node(
        id=match["id"],
        thread="",
        level=int(match["level"]),
        body=body,
        tokens=0,
        covered_tokens=_parse_number(match["tokens"]),
        author=match["author"],
        first_message=0,
        last_message=0,
        first_turn=int(match["first"]),
        last_turn=int(match["last"]),
        since=0.0,
        until=0.0,
        sources=(),
        degraded=match["degraded"] is not None,
    )
    return VisibleNode(node, _parse_number(match["messages"]))


def _read_foreign_summary(
    summary: str, first_turn: int, last_turn: int, message_count: int
) -> list[VisibleNode]:
    """Return another engine's summary as one node without an id, or an empty list if it has no sections."""
    sections = parse_sections(summary)
    visible_sections = {
        **sections,
        TASK: "",
        USER_WORDS: "",
        NAMES: "",
        RULES: strip_pinned_notes(sections.get(RULES, "")),
    }
    if any(entry.last_turn for entry in parse_journal(sections.get(DONE, "")).entries):
        # A journal's own sections of these names come from the state, which is written after the nodes.
        visible_sections |= {
            BLOCKED: "",
            FILES: "",
        }
    body = neutralize_node_lines(render_sections(visible_sections, skip_empty=True))
    node = Node(
        id="",
        thread="",
        level=0,
        body=body,
        tokens=0,
        covered_tokens=0,
        author=EARLIER_SUMMARY_AUTHOR,
        first_message=0,
        last_message=0,
        first_turn=first_turn,
        last_turn=max(first_turn, last_turn),
        since=0.0,
        until=0.0,
        sources=(),
    )
    return [VisibleNode(node, message_count)] if body else []


def with_node_id(node: Node) -> Node:
    """Return the node with an id made from its sources and text, so that it is equal in every process."""
    identity = (
        node.level,
        node.sources,
        node.first_turn,
        node.last_turn,
        node.covered_tokens,
        node.body,
    )
    return replace(
        node,
        id=f"n{hashlib.sha256(repr(identity).encode('utf-8', 'surrogatepass')).hexdigest()[:12]}",
    )


def join_sections(visible_nodes: Sequence[VisibleNode]) -> Sections:
    """Join the sections of several nodes, oldest first, without repeated lines.

    Sections that describe the state come from the last node only.
    """
    lines_by_section: dict[str, dict[str, None]] = {}
    for visible_node in visible_nodes:
        for name, text in parse_sections(visible_node.node.body).items():
            if name in LATEST_ONLY_SECTIONS and visible_node is not visible_nodes[-1]:
                continue
            lines = (_replace_number(line) for line in text.split("\n") if line.strip())
            lines_by_section.setdefault(name, {}).update(dict.fromkeys(lines))
    return {name: "\n".join(lines) for name, lines in lines_by_section.items()}


def join_journals(visible_nodes: Sequence[VisibleNode]) -> Journal:
    """Join the journals of several nodes. If a model wrote the section, its text becomes one entry for the node."""
    joined_entries: list[JournalEntry] = []
    quiet_message_count = 0
    for visible_node in visible_nodes:
        journal = parse_journal(parse_sections(visible_node.node.body).get(DONE, ""))
        quiet_message_count += journal.quiet_message_count
        entries = list(journal.entries)
        if len(entries) == 1 and not entries[0].last_turn:
            turns = visible_node.node.first_turn, visible_node.node.last_turn
            entries = [
                replace(
                    entries[0],
                    first_turn=turns[0],
                    last_turn=turns[1],
                    message_count=visible_node.message_count,
                )
            ]
        for entry in entries:
            joined_entries[-1:] = (
                _join_same_turn(joined_entries[-1], entry) if joined_entries else [entry]
            )
    return Journal(tuple(joined_entries), quiet_message_count)


def _join_same_turn(previous_entry: JournalEntry, entry: JournalEntry) -> list[JournalEntry]:
    """Join two entries of one turn; return both if the result would be too long or lose closing words."""
    if previous_entry.last_turn != entry.first_turn:
        return [previous_entry, entry]
    lines = (*previous_entry.lines, *entry.lines)
    if (
        previous_entry.first_turn < entry.last_turn
        or len(lines) > MAX_JOINED_LINES
        or (previous_entry.closing_words and entry.closing_words)
    ):
        return [previous_entry, replace(entry, is_continued=True)]
    closing = previous_entry.closing_words or entry.closing_words
    return [
        replace(
            previous_entry.join_with(entry),
            lines=lines,
            closing_words=closing,
            is_continued=previous_entry.is_continued,
        )
    ]


def render_view(marker: str, visible_nodes: Sequence[VisibleNode], sections: Sections) -> str:
    """Return the summary message without its last line. The most stable parts come first, so that they stay cached."""
    section_text = render_sections(sections, skip_empty=True)
    return "\n\n".join(
        filter(
            None,
            (
                marker,
                *(part.text for part in visible_nodes),
                "[end of nodes]",
                section_text,
            ),
        )
    )


def neutralize_node_lines(text: str) -> str:
    """Change the lines of a node's text that could be mistaken for the start of a node or for a marker."""
    return _FORGED_NODE_LINE_PATTERN.sub("(", neutralize_summary_marks(text)).strip()


def clean_author(name: str) -> str:
    """Return an author's name for a node's heading line: short, without the characters that end it."""
    return re.sub(r"[\]\n]", " ", name)[:80].strip() or "a model"


def split_chunks(
    messages: Messages,
    covered_indices: Sequence[int],
    chunk_tokens: int,
    count: Callable[[int], int],
) -> list[list[int]]:
    """Split the indices into chunks of about `chunk_tokens`. Never split a group of calls and results."""
    unsplit_indices = set(covered_indices)
    chunks: list[list[int]] = []
    sizes: list[int] = []
    for span in split_into_spans(messages):
        indices = [index for index in range(span.start, span.end) if index in unsplit_indices]
        if not indices:
            continue
        tokens = sum(map(count, indices))
        is_full = sizes and (
            sizes[-1] + tokens > chunk_tokens
            or (
                sizes[-1] >= _MIN_FULL_SHARE * chunk_tokens
                and is_user_message(messages[indices[0]])
            )
        )
        if not chunks or is_full:
            chunks.append([])
            sizes.append(0)
        chunks[-1] += indices
        sizes[-1] += tokens
    if len(chunks) > 1 and sizes[-1] < _MIN_CHUNK_SHARE * chunk_tokens:
        last_chunk = chunks.pop()
        chunks[-1] += last_chunk
    return chunks


def number_messages(
    messages: Messages, visible_nodes: Sequence[VisibleNode], ids: Sequence[int] | None
) -> list[int]:
    """Return an id for each message: from `ids`, or else a number that also counts the messages that nodes cover."""
    if ids is not None:
        return list(ids)
    hidden_count = sum(part.message_count for part in visible_nodes)
    numbers: list[int] = []
    number = 0
    for message in messages:
        numbers.append(number)
        remainder = without_summary(message)
        number += remainder is not None
        if remainder is not message:
            number += hidden_count
    return numbers


def count_node_tokens(visible_nodes: Sequence[VisibleNode], count: CountTokens) -> int:
    """Return the tokens of the nodes in the context, with their headings."""
    return sum(count(part.text) + 1 for part in visible_nodes)


def _replace_number(line: str) -> str:
    """Replace the number of an action with a dash, because joined nodes have the same numbers."""
    return re.sub(r"^\d{1,6}\.\s+", "- ", line)


def _parse_number(text: str) -> int:
    return int(text.replace(",", ""))
