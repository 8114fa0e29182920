"""The graph as it stands in the context: nodes, each under a line that names it.

The context is the engine's memory: which nodes are in view is read from the summary message itself. So an undo, a
branch and another process all find the graph as their own context shows it, and a bare list of messages needs no store.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from everthread.compaction.composition import without_pins
from everthread.compaction.sentences import Count
from everthread.compaction.summary import (
    ASKS,
    PROGRESS,
    REMAINING,
    RULES,
    STATE,
    TASK,
    WORDS,
    Sections,
    nodes_end,
    parse_sections,
    render_sections,
)
from everthread.core.messages import Messages
from everthread.core.transcript import defuse, is_user_message, spans, without_summary
from everthread.core.types import Node

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
