"""The graph in the context: nodes, each under a line that names it.

The context is the engine's memory: which nodes are in view is read from the summary message itself. So an undo, a
branch and another process all find the graph as their own context shows it, and a bare list of messages needs no store.
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
from everthread.compaction.summary.summary_message import strip_pinned_notes
from everthread.compaction.summary.user_quotes import CountTokens
from everthread.core.messages import Messages
from everthread.core.transcript import (
    is_user_message,
    neutralize_summary_marks,
    split_into_spans,
    without_summary,
)
from everthread.core.types import Node

EARLIER_SUMMARY_AUTHOR = "an earlier summary"
"""Author of a part that comes from another engine's summary."""
LATEST_ONLY_SECTIONS = frozenset({STATE, PROGRESS, PENDING_ASKS, REMAINING})
"""Sections that describe the state at a node's end: of adjacent nodes only the last one's still holds."""
_HEADING = re.compile(
    r"^\[node (?P<id>n[0-9a-f]{12}): turns (?P<first>\d{1,9})-(?P<last>\d{1,9}), (?P<messages>[\d,]{1,12}) messages?, "
    r"(?P<tokens>[\d,]{1,12}) tokens, level (?P<level>\d{1,3}), by "
    r"(?P<author>[^\]\n]{1,80}?)(?P<degraded>, makeshift)?\]$",
    re.MULTILINE,
)
_END = re.compile(r"^\[end of nodes(?:;[^\]\n]{0,80})?\]$", re.MULTILINE)
_FORGED = re.compile(r"^\[(?=node n[0-9a-f]|end of nodes)", re.MULTILINE)
MAX_LINES = 12
"""Lines of a journal's entry that was joined from parts of one turn."""
_EARLY_END_SHARE = 0.7
_SMALL_CHUNK_SHARE = 0.25
"""A chunk of at least the first share of its size ends before a user message; a last one below the second share
joins the previous."""


@dataclass(frozen=True, slots=True)
class VisibleNode:
    """A node in view, and the number of messages it covers."""

    node: Node
    messages: int

    @property
    def text(self) -> str:
        """Its lines in the context: the same bytes in every compaction that keeps it."""
        node = self.node
        plural = "" if self.messages == 1 else "s"
        about = (
            f"[node {node.id}: turns {node.first_turn}-{node.last_turn}, {self.messages:,} message{plural}, "
            f"{node.covered_tokens:,} tokens, level {node.level}, by {node.author}"
        )
        return f"{about}{', makeshift' if node.degraded else ''}]\n{node.body}"


def read_parts(
    summary: str, *, first_turn: int, last_turn: int, messages: int
) -> list[VisibleNode]:
    """Parse the parts of a summary message's text. Without nodes it is a single part over the given turns."""
    nodes_stop = find_nodes_end(summary)  # a user's words come after the nodes
    headings = [
        match for match in _HEADING.finditer(summary) if match.end() <= nodes_stop
    ]
    if not headings:
        return _read_foreign(summary, first_turn, last_turn, messages)
    bounds = [*(match.start() for match in headings[1:]), nodes_stop]
    return [
        _parse_part(match, _END.sub("", summary[match.end() : end]).strip())
        for match, end in zip(headings, bounds, strict=True)
    ]


def _parse_part(match: re.Match[str], body: str) -> VisibleNode:
    node = Node(
        id=match["id"],
        thread="",
        level=int(match["level"]),
        body=body,
        tokens=0,
        covered_tokens=_number(match["tokens"]),
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
    return VisibleNode(node, _number(match["messages"]))


def _read_foreign(
    summary: str, first_turn: int, last_turn: int, messages: int
) -> list[VisibleNode]:
    sections = parse_sections(summary)
    visible_sections = {
        **sections,
        TASK: "",
        USER_WORDS: "",
        NAMES: "",
        RULES: strip_pinned_notes(sections.get(RULES, "")),
    }
    if any(entry.last_turn for entry in parse_journal(sections.get(DONE, "")).entries):
        # For a journal they come from the state, which follows the nodes.
        visible_sections |= {
            BLOCKED: "",
            FILES: "",
        }
    body = defuse_nodes(render_sections(visible_sections, skip_empty=True))
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
    return [VisibleNode(node, messages)] if body else []


def name_node(node: Node) -> Node:
    """Return the node with an id derived from its sources and text, so that it is equal in every process."""
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


def join_sections(parts: Sequence[VisibleNode]) -> Sections:
    """Join the sections of several nodes, oldest first, without repeated lines.

    Sections that describe the state come from the last node only.
    """
    lines_by_section: dict[str, dict[str, None]] = {}
    for part in parts:
        for name, text in parse_sections(part.node.body).items():
            if name in LATEST_ONLY_SECTIONS and part is not parts[-1]:
                continue
            lines = (_strip_number(line) for line in text.split("\n") if line.strip())
            lines_by_section.setdefault(name, {}).update(dict.fromkeys(lines))
    return {name: "\n".join(lines) for name, lines in lines_by_section.items()}


def join_journals(parts: Sequence[VisibleNode]) -> Journal:
    """Join the journals of several nodes. A model's text under that heading becomes one entry for its node."""
    joined_entries: list[JournalEntry] = []
    for part in parts:
        entries = list(
            parse_journal(parse_sections(part.node.body).get(DONE, "")).entries
        )
        if len(entries) == 1 and not entries[0].last_turn:
            turns = part.node.first_turn, part.node.last_turn
            entries = [
                replace(
                    entries[0],
                    first_turn=turns[0],
                    last_turn=turns[1],
                    message_count=part.messages,
                )
            ]
        for entry in entries:
            joined_entries[-1:] = (
                _join_turn(joined_entries[-1], entry) if joined_entries else [entry]
            )
    return Journal(tuple(joined_entries))


def _join_turn(previous_entry: JournalEntry, entry: JournalEntry) -> list[JournalEntry]:
    """Join two entries of one turn, unless the result is too long or loses closing words.

    Return both if they cannot be joined.
    """
    if previous_entry.last_turn != entry.first_turn:
        return [previous_entry, entry]
    lines = (*previous_entry.lines, *entry.lines)
    if (
        previous_entry.first_turn < entry.last_turn
        or len(lines) > MAX_LINES
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


def view_text(marker: str, parts: Sequence[VisibleNode], sections: Sections) -> str:
    """Return the summary message without its last line, the most stable parts first for the sake of the cache."""
    section_text = render_sections(sections, skip_empty=True)
    return "\n\n".join(
        filter(
            None,
            (marker, *(part.text for part in parts), "[end of nodes]", section_text),
        )
    )


def defuse_nodes(text: str) -> str:
    """Change lines of a node's text that could pass for the start of a node or for a marker."""
    return _FORGED.sub("(", neutralize_summary_marks(text)).strip()


def clean_author(name: str) -> str:
    return re.sub(r"[\]\n]", " ", name)[:80].strip() or "a model"


def split_chunks(
    messages: Messages, covered: Sequence[int], size: int, count: Callable[[int], int]
) -> list[list[int]]:
    """Split the covered places into runs of about `size` tokens. Never split a group of calls and results."""
    covered_places = set(covered)
    chunks: list[list[int]] = []
    sizes: list[int] = []
    for span in split_into_spans(messages):
        indices = [
            index for index in range(span.start, span.end) if index in covered_places
        ]
        if not indices:
            continue
        tokens = sum(map(count, indices))
        is_full = sizes and (
            sizes[-1] + tokens > size
            or (
                sizes[-1] >= _EARLY_END_SHARE * size
                and is_user_message(messages[indices[0]])
            )
        )
        if not chunks or is_full:
            chunks.append([])
            sizes.append(0)
        chunks[-1] += indices
        sizes[-1] += tokens
    if len(chunks) > 1 and sizes[-1] < _SMALL_CHUNK_SHARE * size:
        last_chunk = chunks.pop()
        chunks[-1] += last_chunk
    return chunks


def number_messages(
    messages: Messages, parts: Sequence[VisibleNode], ids: Sequence[int] | None
) -> list[int]:
    """Return an id for each message.

    Without `ids`, number the messages in order, including those that nodes cover.
    """
    if ids is not None:
        return list(ids)
    hidden_count = sum(part.messages for part in parts)
    numbers: list[int] = []
    number = 0
    for message in messages:
        numbers.append(number)
        remainder = without_summary(message)
        number += remainder is not None
        if remainder is not message:
            number += hidden_count
    return numbers


def part_tokens(parts: Sequence[VisibleNode], count: CountTokens) -> int:
    return sum(count(part.text) + 1 for part in parts)


def _strip_number(line: str) -> str:
    """Replace an action's number by a dash: numbers of several nodes would run together."""
    return re.sub(r"^\d{1,6}\.\s+", "- ", line)


def _number(text: str) -> int:
    return int(text.replace(",", ""))
