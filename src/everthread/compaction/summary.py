"""Summaries: their sections, what a summariser is asked and answers, and what a compaction is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

from everthread.core.messages import Message
from everthread.core.transcript import SUMMARY_END
from everthread.core.types import Node

if TYPE_CHECKING:
    from everthread.compaction.journal import Journal
    from everthread.compaction.state import ThreadState

# Sections

TemplateName = Literal["handoff", "classic"]
NONE = "None."

TASK = "Active Task"
WORDS = "What the User Said"
GOAL = "Goal"
RULES = "Constraints & Preferences"
DONE = "Completed Actions"
STATE = "Active State"
PROGRESS = "In Progress"
BLOCKED = "Blocked"
DECISIONS = "Key Decisions"
ANSWERED = "Resolved Questions"
ASKS = "Pending User Asks"
FILES = "Relevant Files"
REMAINING = "Remaining Work"
CRITICAL = "Critical Context"

HANDOFF = (
    TASK, WORDS, GOAL, RULES, DONE, STATE, PROGRESS, BLOCKED, DECISIONS, ANSWERED, ASKS, FILES, REMAINING, CRITICAL,
)  # fmt: skip
"""Every section a summary has, in order. The classic layout shows the same content under fewer headings."""

CLASSIC = (
    (WORDS, (WORDS,)),
    (GOAL, (TASK, GOAL)),
    (RULES, (RULES,)),
    ("Progress", (DONE, STATE, PROGRESS, BLOCKED)),
    (DECISIONS, (DECISIONS, ANSWERED)),
    (FILES, (FILES,)),
    ("Next Steps", (ASKS, REMAINING)),
    (CRITICAL, (CRITICAL,)),
)
_CLASSIC_NAMES = {DONE: "Done", PROGRESS: "In Progress", BLOCKED: "Blocked", STATE: "State"}
_KNOWN = {name.casefold(): name for name in HANDOFF} | {
    "done": DONE, "state": STATE, "progress": PROGRESS, "next steps": REMAINING, "constraints": RULES,
}  # fmt: skip

Sections = dict[str, str]
"""Section name -> its text. A missing or empty one is `None.` where a model wrote, and left out where none did."""


def render_sections(sections: Mapping[str, str], *, template: TemplateName = "handoff", brief: bool = False) -> str:
    """The sections as Markdown, headings in English. `brief` leaves empty ones out."""
    if template == "classic":
        return _render_classic(sections, brief=brief)
    blocks = []
    for name in HANDOFF:
        text = sections.get(name, "").strip()
        if text or not (brief or name == WORDS):
            blocks.append(f"## {name}\n{text or NONE}")
    return "\n\n".join(blocks)


def _render_classic(sections: Mapping[str, str], *, brief: bool) -> str:
    blocks = []
    for heading, names in CLASSIC:
        filled = [(name, text) for name in names if (text := sections.get(name, "").strip())]
        if heading == "Progress":
            body = "\n\n".join(f"### {_CLASSIC_NAMES[name]}\n{text}" for name, text in filled)
        else:
            body = "\n\n".join(text for _, text in filled)
        if body or not (brief or heading == WORDS):
            blocks.append(f"## {heading}\n{body or NONE}")
    return "\n\n".join(blocks)


_HEADING = re.compile(r"^#{1,4}[ \t]+(?:\d{1,2}[.)][ \t]*)?\*{0,3}([^\n*]{1,60})\*{0,3}:?[ \t]*$", re.MULTILINE)


def section_name(line: str) -> str | None:
    """The section a line is the heading of."""
    heading = _HEADING.match(line)
    return _KNOWN.get(heading[1].strip().rstrip(":").casefold()) if heading else None


def parse_sections(text: str) -> Sections:
    """The sections of a summary, in either layout. Unknown headings stay in the section they stand in."""
    before, _, last = text.rstrip().rpartition("\n")
    text = before if last.startswith(SUMMARY_END) else text
    sections: Sections = {}
    current: str | None = None
    position = 0
    for match in _HEADING.finditer(text):
        name = _KNOWN.get(match[1].strip().rstrip(":").casefold())
        if name is None:
            continue
        if current is not None:
            _add(sections, current, text[position : match.start()])
        current, position = name, match.end()
    if current is not None:
        _add(sections, current, text[position:])
    return sections


_NODE = re.compile(r"^\[(?:node n[0-9a-f]{12}:[^\n]{1,300}|end of nodes[^\]\n]{0,80})\]$", re.MULTILINE)
_END_OF_NODES = re.compile(r"^\[end of nodes[^\]\n]{0,80}\]$", re.MULTILINE)


def nodes_end(summary: str) -> int:
    """Where the nodes of a graph end in a summary, behind the line that says so; 0 where it has none.

    They stand before every section; what looks like their lines further down is somebody's words.
    """
    first, heading = _NODE.search(summary), _HEADING.search(summary)
    if first is None or (heading is not None and heading.start() < first.start()):
        return 0
    end = _END_OF_NODES.search(summary)
    return end.end() if end else len(summary)


def without_node_lines(summary: str) -> str:
    """The summary without the lines around the nodes of a graph: sections alone."""
    end = nodes_end(summary)
    return _NODE.sub("", summary[:end]) + summary[end:]


def _add(sections: Sections, name: str, text: str) -> None:
    text = text.strip()
    if text and text.rstrip(".").casefold() not in ("none", "n/a", "(none)"):
        sections[name] = f"{sections[name]}\n{text}" if name in sections else text


# What a summariser is asked, and what it answers


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """The middle of a conversation, to be written down within a budget."""

    messages: Sequence[Message]
    """What the summary will stand for, unpruned. Earlier summaries are not among them."""
    pruned: Sequence[Message]
    """The same messages as a model is given them: old outputs are one line each, secrets are gone."""
    budget: int
    """Tokens for the sections."""
    previous: Sections = field(default_factory=dict)
    """The sections of the summary this one replaces, without the user's words; empty for the first."""
    task: str = ""
    """The user's unfulfilled requests, word for word: already known, for context."""
    focus: str | None = None
    ids: Sequence[int | None] = ()
    """Ids of the messages, where they have any."""
    manual: bool = False
    """A person asked for it and waits."""
    journal: Journal | None = None
    """What was done, turn by turn, earlier compactions included."""
    state: ThreadState | None = None
    """How things stand at the end of the messages."""
    stretch: bool = False
    """The messages are a stretch of the conversation; what stands before them is told elsewhere."""
    notes: Sequence[Sections] = ()
    """Summaries of successive stretches, oldest first, to be joined into one: then there are no messages, and
    `previous` says the same in one piece."""


@dataclass(frozen=True, slots=True)
class Verification:
    """How a summary was checked against its sources."""

    facts: int = 0
    """Files and open errors that a summary should name."""
    present: int = 0
    """Of those, in the summary as it was written."""
    added: int = 0
    """Of those, added by the engine."""
    checked: int = 0
    """Names and figures in the summary that can be looked up in the sources."""
    unverified: int = 0
    """Of those, in no source: marked."""


@dataclass(frozen=True, slots=True)
class SummaryDraft:
    """What a summariser wrote. `author` tells who: `journal`, or a model's name."""

    sections: Sections
    author: str
    warnings: tuple[str, ...] = ()
    usage: tuple[Mapping[str, Any], ...] = ()
    """What each call to a model reported, with its model under `model`."""
    verification: Verification = Verification()


class Summarizer(Protocol):
    """Who writes a summary."""

    @property
    def name(self) -> str: ...

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        """The sections, or `SummaryError` when it cannot be done."""
        ...


# What a compaction is


class CompactionLevel(IntEnum):
    """How hard a compaction begins: after an overflow each attempt is stronger than the one before."""

    NORMAL = 0
    HALF_TAIL = 1
    LATEST_GROUP = 2


@dataclass(frozen=True, slots=True)
class Phase:
    """What one phase did: tokens before and after, and a sentence."""

    name: str
    before: int
    after: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of compacting a list of messages. `changed` is False when nothing could be made smaller."""

    messages: list[Message]
    summary: str
    """The whole summary message's text; empty when nothing changed."""
    tokens_before: int
    tokens_after: int
    covered: tuple[int, ...] = ()
    """Indices of the input's messages that the summary stands for."""
    kept: tuple[int | None, ...] = ()
    """For each message of the result the index of the input message it is, None for one made here."""
    changed: bool = True
    reason: str = ""
    """Why nothing changed, or what made it happen."""
    author: str = ""
    phases: tuple[Phase, ...] = ()
    verification: Verification = Verification()
    to_store: tuple[Any, ...] = ()
    """Outputs the result cites (`outputs.ToStore`): to be stored before the result is used."""
    steps: tuple[str, ...] = ()
    """What had to be given up for the tail to fit."""
    warnings: tuple[str, ...] = ()
    system_note: str = ""
    """For a thread's first compaction: what the system prompt gains, as a block of its own."""
    usage: tuple[Mapping[str, Any], ...] = ()
    duration: float = 0.0
    state: Mapping[str, Any] = field(default_factory=dict)
    """What the engine will know once this is committed."""
    nodes: tuple[Node, ...] = ()
    """Summaries of a graph that the result cites: stored with it, in one transaction."""

    def __repr__(self) -> str:
        figures = f"{len(self.messages)} messages, {self.tokens_before:,} -> {self.tokens_after:,} tokens"
        return f"<Compaction: {figures}{'' if self.changed else ', unchanged'}>"
