"""Summaries and compactions: sections, requests to a summariser, drafts and results."""

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
    from everthread.compaction.journal.journal import Journal
    from everthread.compaction.thread_facts import ThreadState

# Sections

TemplateName = Literal["handoff", "classic"]
NONE = "None."

TASK = "Active Task"
USER_WORDS = "What the User Said"
GOAL = "Goal"
RULES = "Constraints & Preferences"
DONE = "Completed Actions"
STATE = "Active State"
PROGRESS = "In Progress"
BLOCKED = "Blocked"
DECISIONS = "Key Decisions"
ANSWERED = "Resolved Questions"
PENDING_ASKS = "Pending User Asks"
FILES = "Relevant Files"
NAMES = "Names in Use"
REMAINING = "Remaining Work"
CRITICAL = "Critical Context"

HANDOFF = (
    TASK,
    USER_WORDS,
    GOAL,
    RULES,
    DONE,
    STATE,
    PROGRESS,
    BLOCKED,
    DECISIONS,
    ANSWERED,
    PENDING_ASKS,
    FILES,
    NAMES,
    REMAINING,
    CRITICAL,
)
"""Every section a summary has, in order. The classic layout shows the same content under fewer headings."""

CLASSIC = (
    (USER_WORDS, (USER_WORDS,)),
    (GOAL, (TASK, GOAL)),
    (RULES, (RULES,)),
    ("Progress", (DONE, STATE, PROGRESS, BLOCKED)),
    (DECISIONS, (DECISIONS, ANSWERED)),
    (FILES, (FILES, NAMES)),
    ("Next Steps", (PENDING_ASKS, REMAINING)),
    (CRITICAL, (CRITICAL,)),
)
_CLASSIC_NAMES = {
    DONE: "Done",
    PROGRESS: "In Progress",
    BLOCKED: "Blocked",
    STATE: "State",
}
_KNOWN = {name.casefold(): name for name in HANDOFF} | {
    "done": DONE,
    "state": STATE,
    "progress": PROGRESS,
    "next steps": REMAINING,
    "constraints": RULES,
}

Sections = dict[str, str]
"""Section name -> its text. If empty or missing, `None.` in a model's summary and left out of a journal."""


def render_sections(
    sections: Mapping[str, str],
    *,
    template: TemplateName = "handoff",
    brief: bool = False,
) -> str:
    """Render the sections as Markdown, headings in English. `brief` leaves out empty ones."""
    if template == "classic":
        return _render_classic(sections, brief=brief)
    blocks = []
    for name in HANDOFF:
        text = sections.get(name, "").strip()
        if text or not (brief or name in (USER_WORDS, NAMES)):
            blocks.append(f"## {name}\n{text or NONE}")
    return "\n\n".join(blocks)


def _render_classic(sections: Mapping[str, str], *, brief: bool) -> str:
    blocks = []
    for heading, names in CLASSIC:
        filled = [
            (name, text) for name in names if (text := sections.get(name, "").strip())
        ]
        if heading == "Progress":
            body = "\n\n".join(
                f"### {_CLASSIC_NAMES[name]}\n{text}" for name, text in filled
            )
        else:
            body = "\n\n".join(text for _, text in filled)
        if body or not (brief or heading == USER_WORDS):
            blocks.append(f"## {heading}\n{body or NONE}")
    return "\n\n".join(blocks)


_HEADING = re.compile(
    r"^#{1,4}[ \t]+(?:\d{1,2}[.)][ \t]*)?\*{0,3}([^\n*]{1,60})\*{0,3}:?[ \t]*$",
    re.MULTILINE,
)


def section_name(line: str) -> str | None:
    """Return the section that this heading line begins, or None."""
    heading = _HEADING.match(line)
    return _KNOWN.get(heading[1].strip().rstrip(":").casefold()) if heading else None


def parse_sections(text: str) -> Sections:
    """Parse the sections of a summary, in either layout. Unknown headings are part of the section around them."""
    body, _, last_line = text.rstrip().rpartition("\n")
    text = body if last_line.startswith(SUMMARY_END) else text
    sections: Sections = {}
    section: str | None = None
    position = 0
    for match in _HEADING.finditer(text):
        name = _KNOWN.get(match[1].strip().rstrip(":").casefold())
        if name is None:
            continue
        if section is not None:
            _add(sections, section, text[position : match.start()])
        section = name
        position = match.end()
    if section is not None:
        _add(sections, section, text[position:])
    return sections


_NODE = re.compile(
    r"^\[(?:node n[0-9a-f]{12}:[^\n]{1,300}|end of nodes[^\]\n]{0,80})\]$", re.MULTILINE
)
_END_OF_NODES = re.compile(r"^\[end of nodes[^\]\n]{0,80}\]$", re.MULTILINE)


def nodes_end(summary: str) -> int:
    """Return the end of the graph's nodes in a summary, after the line that marks it; 0 if it has none.

    They come before every section; similar lines further down are quoted words.
    """
    first_node = _NODE.search(summary)
    heading = _HEADING.search(summary)
    if first_node is None or (
        heading is not None and heading.start() < first_node.start()
    ):
        return 0
    end = _END_OF_NODES.search(summary)
    return end.end() if end else len(summary)


def without_node_lines(summary: str) -> str:
    """Return the summary without the lines around the nodes of a graph: sections alone."""
    end = nodes_end(summary)
    return _NODE.sub("", summary[:end]) + summary[end:]


def _add(sections: Sections, name: str, text: str) -> None:
    text = text.strip()
    if text and text.rstrip(".").casefold() not in ("none", "n/a", "(none)"):
        sections[name] = f"{sections[name]}\n{text}" if name in sections else text


# Requests to a summariser, and its drafts


@dataclass(frozen=True, slots=True)
class RefusedDraft:
    """A draft of this compaction that could not be used."""

    route: str
    """The summariser that wrote it."""
    reason: str
    is_final: bool
    """Whether its route used both attempts and is not tried again."""


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """The middle of a conversation, to be written down within a budget."""

    messages: Sequence[Message]
    """The messages that the summary will replace, unpruned and without earlier summaries."""
    pruned: Sequence[Message]
    """The same messages for a model: old outputs are one line each, secrets are redacted."""
    budget: int
    """Tokens for the sections."""
    previous: Sections = field(default_factory=dict)
    """The sections of the summary this one replaces, without the user's words; empty for the first."""
    task: str = ""
    """The user's unfulfilled requests, word for word: already known, for context."""
    focus: str | None = None
    ids: Sequence[int | None] = ()
    """Ids of the messages, if they have any."""
    manual: bool = False
    """Whether a person requested it and waits."""
    journal: Journal | None = None
    """The work so far, turn by turn, earlier compactions included."""
    state: ThreadState | None = None
    """The thread's state at the end of the messages."""
    stretch: bool = False
    """The messages are a stretch of the conversation; earlier ones are summarised elsewhere."""
    refused: tuple[RefusedDraft, ...] = ()
    """Drafts that were refused before, oldest first."""
    notes: Sequence[Sections] = ()
    """Summaries of successive stretches, oldest first, to be joined into one.

    Then `messages` is empty, and `previous` says the same in one piece.
    """


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of checking a summary against its sources."""

    facts: int = 0
    """Files and open errors that a summary should name."""
    present: int = 0
    """Number of those in the original summary."""
    added: int = 0
    """Number of those added by the engine."""
    checked: int = 0
    """Names and figures in the summary that can be looked up in the sources."""
    unverified: int = 0
    """Number of those in no source; they are marked."""


@dataclass(frozen=True, slots=True)
class SummaryDraft:
    """A summariser's draft. `author`: `journal`, or a model's name."""

    sections: Sections
    author: str
    warnings: tuple[str, ...] = ()
    usage: tuple[Mapping[str, Any], ...] = ()
    """The usage of each call to a model, with its model under `model`."""
    verification: Verification = Verification()
    route: str = ""
    """The summariser of a chain that wrote it."""
    was_repeated: bool = False
    """Whether the summariser was already called again, because its first answer was unusable."""


class Summarizer(Protocol):
    """An author of summaries."""

    @property
    def name(self) -> str: ...

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        """Return the draft, or raise `SummaryError` if it cannot be written."""
        ...


# Compactions


class CompactionLevel(IntEnum):
    """The strength of a compaction: after an overflow each attempt is stronger than the one before."""

    NORMAL = 0
    HALF_TAIL = 1
    LATEST_GROUP = 2


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a compaction: tokens before and after, and a note."""

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
    """Indices of the input's messages that the summary covers."""
    kept: tuple[int | None, ...] = ()
    """The input index of each message of the result; None for a new one."""
    changed: bool = True
    reason: str = ""
    """The reason why nothing changed, or the trigger of the compaction."""
    author: str = ""
    phases: tuple[Phase, ...] = ()
    verification: Verification = Verification()
    to_store: tuple[Any, ...] = ()
    """Outputs the result cites (`outputs.OutputToStore`): to be stored before the result is used."""
    boundaries: tuple[str, ...] = ()
    """The end of the head and the start of the tail, with reasons."""
    steps: tuple[str, ...] = ()
    """The reductions needed for the tail to fit."""
    warnings: tuple[str, ...] = ()
    system_note: str = ""
    """A block to add to the system prompt at a thread's first compaction."""
    usage: tuple[Mapping[str, Any], ...] = ()
    duration: float = 0.0
    state: Mapping[str, Any] = field(default_factory=dict)
    """The engine's state once this is committed."""
    nodes: tuple[Node, ...] = ()
    """Summaries of a graph that the result cites: stored with it, in one transaction."""

    def __repr__(self) -> str:
        figures = f"{len(self.messages)} messages, {self.tokens_before:,} -> {self.tokens_after:,} tokens"
        return f"<Compaction: {figures}{'' if self.changed else ', unchanged'}>"
