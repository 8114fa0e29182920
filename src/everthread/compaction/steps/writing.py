"""The summary message: what the summariser wrote, completed from the transcript, checked, and made to fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from everthread.compaction.steps import importance, pins, verify
from everthread.compaction.steps.additions import Additions
from everthread.compaction.steps.cutting import Plan
from everthread.compaction.steps.importance import Quote
from everthread.compaction.steps.task import request_text, unfulfilled
from everthread.core.decisions import SUPERSEDED
from everthread.core.facts import Fact
from everthread.core.redaction import redact
from everthread.core.summary import (
    CRITICAL,
    DECISIONS,
    FILES,
    RULES,
    SUMMARY_END,
    SUMMARY_START,
    TASK,
    Sections,
    SummaryDraft,
    TemplateName,
    Verification,
    render_sections,
)

Count = Callable[[str], int]

SPARE = 12
"""Tokens that are left free."""
LESSER = 400
GONE = 60
"""So many characters tell a decision."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What surrounds the summariser's words, and how many tokens are left for them."""

    marker: str
    task: str
    pins: str
    room: int
    """For the sections, the facts they lack and quotations."""
    draft: int
    """Of that, for what the summariser writes."""
    quoting: int
    """Of that, for quotations."""
    quotes: list[Quote]
    """Messages worth quoting, the best first."""
    facts: list[Fact]
    """What must not be lacking, the most important first."""
    lesser: list[Fact]
    """What is told too where there is room."""
    files: list[str]
    """Every file the thread touched, changed ones first."""
    gone: tuple[str, ...]
    """Decisions that hold no longer."""
    warnings: tuple[str, ...]
    end: str = SUMMARY_END


@dataclass(frozen=True, slots=True)
class Written:
    text: str
    verification: Verification
    warnings: tuple[str, ...]


def task_text(plan: Plan, room: int, count: Count) -> str:
    """The unfulfilled requests word for word, the latest in full as far as there is room."""
    texts: list[str] = []
    for index in reversed(unfulfilled(plan.messages)):
        message = plan.read[index].message
        said = request_text(message, 10**9)
        tokens = count(said)
        if tokens > room:
            said = request_text(message, len(said) * max(room, 1) // tokens)
        texts.insert(0, said)
        room -= min(tokens, room)
        if room <= 0:
            break
    return "\n".join(texts)


def write(
    plan: Plan, made: Frame, draft: SummaryDraft, count: Count, *, template: TemplateName, small: bool
) -> Written:
    """The whole text of the summary message, within the budget."""
    sections = {name: _defused(text) for name, text in draft.sections.items()}
    sections[TASK] = ""
    sections[RULES] = _without_pinned(pins.without_pins(sections.get(RULES, "")), made.pins)
    sections = {name: _settled(text, made.gone, drop=name == DECISIONS) for name, text in sections.items()}
    sources = verify.haystack(plan.read, plan.previous.values())
    names = verify.names_in(plan.read)
    checked = unknown = 0
    for name, text in sections.items():
        sections[name], here, bad = verify.mark_unverified(text, sources, names)
        checked, unknown = checked + here, unknown + bad
    overhead = count(render_sections(sections, template=template, brief=small)) - sum(map(count, sections.values()))
    sections = fit(sections, made.draft - overhead, count)
    body = render_sections(sections, template=template, brief=small)
    quotes = importance.quotes(made.quotes, "\n".join((body, made.task, made.pins)), made.quoting, count)
    files, left = _files(made.files, body, made.room - count(body) - count(quotes), count)
    told = "\n".join((body, *files, made.task, made.pins, quotes))
    wanted, missing = verify.missing_facts(made.facts, told)
    more = Additions(left - 8, count)
    more.share_out(missing)
    figures = Verification(wanted, wanted - len(missing), more.added, checked, unknown)

    def whole() -> str:
        full = dict(sections)
        for name, new in ((FILES, files), (DECISIONS, more.decisions), (CRITICAL, more.lines)):
            full[name] = "\n".join(filter(None, (full.get(name, ""), *new)))
        full[TASK] = made.task
        full[RULES] = "\n".join(filter(None, (made.pins, full[RULES])))
        shown = render_sections(full, template=template, brief=small)
        return "\n\n".join(filter(None, (made.marker, shown, quotes, made.end)))

    # Counting piece by piece is a little too careful: what is left in the end goes to lesser facts.
    more.room = plan.budget - count(whole()) - SPARE
    more.share_out([*missing, *verify.missing_facts(made.lesser, told)[1]])
    return Written(redact(whole()), figures, made.warnings)


def fit(sections: Sections, room: int, count: Count) -> Sections:
    """The sections within so many tokens: lines go from the end of the longest ones."""
    lines = {name: [(line, count(line) + 1) for line in text.split("\n")] for name, text in sections.items()}
    sizes = {name: sum(size for _, size in found) for name, found in lines.items()}
    total = sum(sizes.values())
    while total > room and any(sizes.values()):
        name = max(sizes, key=lambda name: sizes[name])
        _, size = lines[name].pop()
        sizes[name] -= size
        total -= size
        if not lines[name]:
            sizes[name] = 0
    return {name: "\n".join(line for line, _ in found) for name, found in lines.items()}


def _files(paths: Sequence[str], body: str, room: int, count: Count) -> tuple[list[str], int]:
    """Files that were touched and that the summary does not name, changed ones first; what room is left."""
    missing = [path for path in paths if path not in body]
    kept: list[str] = []
    left = min(room, room * 2 // 3)
    for path in missing:
        cost = count(path) + 1
        if cost > left:
            break
        left -= cost
        kept.append(path)
    used = min(room, room * 2 // 3) - left
    return ([f"- also touched: {', '.join(kept)}"] if kept else []), room - used - 8


def _defused(text: str) -> str:
    """No words of a summary can end it or begin another."""
    return re.sub(r"\[(END OF )?EVERTHREAD SUMMARY", r"(\1EVERTHREAD SUMMARY", text)


def _settled(text: str, gone: Sequence[str], *, drop: bool) -> str:
    """Lines that tell a decision which holds no longer say so; `drop`: they go, the decision being all they tell."""
    lines: list[str] = []
    for line in text.split("\n"):
        past = tells(line, gone)
        if not (past and drop):
            lines.append(f"{line} {SUPERSEDED}" if past and SUPERSEDED not in line else line)
    return "\n".join(lines)


def tells(text: str, gone: Sequence[str]) -> bool:
    """Whether a text tells one of the decisions that hold no longer."""
    return any(decision[:GONE] in text for decision in gone)


def _without_pinned(text: str, pinned: str) -> str:
    """What the section says besides the rules that are pinned."""
    known = {line.removeprefix("- ").strip() for line in pinned.split("\n")}
    return "\n".join(
        line for line in text.split("\n") if line.strip().removeprefix("- ").strip(' "“”') not in known
    ).strip()


assert SUMMARY_START.startswith("[EVERTHREAD SUMMARY")  # noqa: S101 - what `_defused` looks for
