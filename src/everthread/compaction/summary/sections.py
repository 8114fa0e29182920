"""The sections of a summary: their names, and functions to render and to parse them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from everthread.core.summary_marks import SUMMARY_END

TemplateName = Literal["handoff", "classic"]
EMPTY_SECTION_TEXT = "None."

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

HANDOFF_SECTIONS = (
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

CLASSIC_SECTIONS = (
    (USER_WORDS, (USER_WORDS,)),
    (GOAL, (TASK, GOAL)),
    (RULES, (RULES,)),
    ("Progress", (DONE, STATE, PROGRESS, BLOCKED)),
    (DECISIONS, (DECISIONS, ANSWERED)),
    (FILES, (FILES, NAMES)),
    ("Next Steps", (PENDING_ASKS, REMAINING)),
    (CRITICAL, (CRITICAL,)),
)
_CLASSIC_SUBHEADINGS = {
    DONE: "Done",
    PROGRESS: "In Progress",
    BLOCKED: "Blocked",
    STATE: "State",
}
_SECTIONS_BY_HEADING = {name.casefold(): name for name in HANDOFF_SECTIONS} | {
    "done": DONE,
    "state": STATE,
    "progress": PROGRESS,
    "next steps": REMAINING,
    "constraints": RULES,
}

Sections = dict[str, str]
"""Texts by section name. In a model's summary an empty section is shown as `None.`; in a journal it is left out."""
_HEADING_PATTERN = re.compile(
    r"^#{1,4}[ \t]+(?:\d{1,2}[.)][ \t]*)?\*{0,3}([^\n*]{1,60})\*{0,3}:?[ \t]*$",
    re.MULTILINE,
)
_NODE_LINE_PATTERN = re.compile(
    r"^\[(?:node n[0-9a-f]{12}:[^\n]{1,300}|end of nodes[^\]\n]{0,80})\]$", re.MULTILINE
)
_END_OF_NODES_PATTERN = re.compile(r"^\[end of nodes[^\]\n]{0,80}\]$", re.MULTILINE)


def render_sections(
    sections: Mapping[str, str],
    *,
    template: TemplateName = "handoff",
    skip_empty: bool = False,
) -> str:
    """Render the sections as Markdown. Leave out empty ones if `skip_empty`; the user's words and names always."""
    if template == "classic":
        return _render_classic(sections, skip_empty=skip_empty)
    blocks = []
    for name in HANDOFF_SECTIONS:
        text = sections.get(name, "").strip()
        if text or not (skip_empty or name in (USER_WORDS, NAMES)):
            blocks.append(f"## {name}\n{text or EMPTY_SECTION_TEXT}")
    return "\n\n".join(blocks)


def _render_classic(sections: Mapping[str, str], *, skip_empty: bool) -> str:
    """Render the sections in the classic layout, which has fewer headings."""
    blocks = []
    for heading, names in CLASSIC_SECTIONS:
        filled_sections = [
            (name, text) for name in names if (text := sections.get(name, "").strip())
        ]
        if heading == "Progress":
            body = "\n\n".join(
                f"### {_CLASSIC_SUBHEADINGS[name]}\n{text}" for name, text in filled_sections
            )
        else:
            body = "\n\n".join(text for _, text in filled_sections)
        if body or not (skip_empty or heading == USER_WORDS):
            blocks.append(f"## {heading}\n{body or EMPTY_SECTION_TEXT}")
    return "\n\n".join(blocks)


def find_section_name(line: str) -> str | None:
    """Return the section that this heading line begins, or None."""
    heading = _HEADING_PATTERN.match(line)
    return _SECTIONS_BY_HEADING.get(heading[1].strip().rstrip(":").casefold()) if heading else None


def parse_sections(text: str) -> Sections:
    """Parse the sections of a summary, in either layout. Unknown headings are part of the section around them."""
    body, _, last_line = text.rstrip().rpartition("\n")
    text = body if last_line.startswith(SUMMARY_END) else text
    sections: Sections = {}
    section: str | None = None
    position = 0
    for match in _HEADING_PATTERN.finditer(text):
        name = _SECTIONS_BY_HEADING.get(match[1].strip().rstrip(":").casefold())
        if name is None:
            continue
        if section is not None:
            _add_section(sections, section, text[position : match.start()])
        section = name
        position = match.end()
    if section is not None:
        _add_section(sections, section, text[position:])
    return sections


def find_nodes_end(summary: str) -> int:
    """Return the position after the nodes of a graph in a summary, or 0 if the summary has no nodes.

    Nodes come before every section. Similar lines in a section are quoted words.
    """
    first_node = _NODE_LINE_PATTERN.search(summary)
    heading = _HEADING_PATTERN.search(summary)
    if first_node is None or (heading is not None and heading.start() < first_node.start()):
        return 0
    end = _END_OF_NODES_PATTERN.search(summary)
    return end.end() if end else len(summary)


def without_node_lines(summary: str) -> str:
    """Return the summary without the lines that mark the nodes of a graph, so that only sections are left."""
    end = find_nodes_end(summary)
    return _NODE_LINE_PATTERN.sub("", summary[:end]) + summary[end:]


def _add_section(sections: Sections, name: str, text: str) -> None:
    """Add text to a section, unless the text only says that the section is empty."""
    text = text.strip()
    if text and text.rstrip(".").casefold() not in ("none", "n/a", "(none)"):
        sections[name] = f"{sections[name]}\n{text}" if name in sections else text
