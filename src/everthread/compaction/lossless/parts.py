"""A node as it stands in the context: a line that names it, then its words.

The context is the engine's memory: which nodes are in view is read from the summary message itself. So an undo, a
branch and another process all find the graph as their own context shows it, and a bare list of messages needs no store.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from everthread.compaction.steps import pins
from everthread.core.nodes import Node
from everthread.core.redaction import redact
from everthread.core.summary import (
    ASKS,
    PROGRESS,
    REMAINING,
    RULES,
    STATE,
    SUMMARY_END,
    TASK,
    Sections,
    parse_sections,
    render_sections,
)

Count = Callable[[str], int]

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
_END = re.compile(r"^\[end of nodes; the next user message is turn (?P<turn>\d{1,9})\]$", re.MULTILINE)
_FORGED = re.compile(r"^\[(?=node n[0-9a-f]|end of nodes)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Part:
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


@dataclass(frozen=True, slots=True)
class View:
    """What an earlier summary of this engine, or of another one, tells."""

    parts: tuple[Part, ...] = ()
    next_turn: int | None = None
    """The turn of the next user message; None where the summary does not say."""
    rules: tuple[str, ...] = ()
    """The user's standing rules it pinned."""


def read_view(summary: str) -> View:
    """The parts of a summary message's text. One without nodes is a single part, its turns not known yet (0)."""
    found = list(_HEADING.finditer(summary))
    end = _END.search(summary, found[-1].end() if found else 0)
    if not found:
        return _foreign(summary)
    bounds = [*(match.start() for match in found[1:]), end.start() if end else len(summary)]
    parts = tuple(
        _part(match, summary[match.end() : until].strip()) for match, until in zip(found, bounds, strict=True)
    )
    rest = parse_sections(summary[end.end() :].replace(SUMMARY_END, "")) if end else {}
    return View(parts, int(end["turn"]) if end else None, tuple(pins.pinned_in(rest.get(RULES, ""))))


def _part(match: re.Match[str], body: str) -> Part:
    node = Node(
        id=match["id"], thread="", level=int(match["level"]), body=body, tokens=0,
        covered_tokens=_number(match["tokens"]), author=match["author"], first_message=0, last_message=0,
        first_turn=int(match["first"]), last_turn=int(match["last"]), since=0.0, until=0.0, sources=(),
        degraded=match["degraded"] is not None,
    )  # fmt: skip
    return Part(node, _number(match["messages"]))


def _foreign(summary: str) -> View:
    sections = parse_sections(summary.replace(SUMMARY_END, ""))
    rules = tuple(pins.pinned_in(sections.get(RULES, "")))
    told = {**sections, TASK: "", RULES: pins.without_pins(sections.get(RULES, ""))}
    body = defused(render_sections(told, brief=True))
    node = Node(
        id="", thread="", level=0, body=body, tokens=0, covered_tokens=0, author=EARLIER, first_message=0,
        last_message=0, first_turn=0, last_turn=0, since=0.0, until=0.0, sources=(),
    )  # fmt: skip
    return View((Part(node, 0),) if body else (), None, rules)


def named(node: Node) -> Node:
    """The node with its id, made from what it covers and says: the same node is the same id in every process."""
    told = (node.level, node.sources, node.first_turn, node.last_turn, node.covered_tokens, node.body)
    return replace(node, id=f"n{hashlib.sha256(repr(told).encode('utf-8', 'surrogatepass')).hexdigest()[:12]}")


def sections_of(parts: Sequence[Part]) -> Sections:
    """What several nodes say, section by section, oldest first, no line twice; how things stand, by the last."""
    joined: dict[str, dict[str, None]] = {}
    for part in parts:
        for name, text in parse_sections(part.node.body).items():
            if name in STANDING and part is not parts[-1]:
                continue
            lines = (_unnumbered(line) for line in text.split("\n") if line.strip())
            joined.setdefault(name, {}).update(dict.fromkeys(lines))
    return {name: "\n".join(lines) for name, lines in joined.items()}


def whole(marker: str, parts: Sequence[Part], next_turn: int, task: str, pinned: str) -> str:
    """The text of the summary message. What changes least stands first, so that a cache can keep it."""
    now = render_sections({TASK: task, RULES: pinned}, brief=True)
    end = f"[end of nodes; the next user message is turn {next_turn}]"
    return redact("\n\n".join(filter(None, (marker, *(part.text for part in parts), end, now, SUMMARY_END))))


def defused(text: str) -> str:
    """No words of a node can pass for the line that begins one."""
    return _FORGED.sub("(", text).strip()


def plain_author(name: str) -> str:
    return re.sub(r"[\]\n]", " ", name)[:80].strip() or "a model"


def _unnumbered(line: str) -> str:
    """An action without its number: numbers of several nodes would run together."""
    return re.sub(r"^\d{1,6}\.\s+", "- ", line)


def _number(text: str) -> int:
    return int(text.replace(",", ""))
