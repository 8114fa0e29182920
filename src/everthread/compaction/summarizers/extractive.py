"""The summariser that needs no model: a summary made of the transcript's own words.

Deterministic. Every section is a list of candidate lines, each with a weight; the budget decides how many of them are
told (`extract_budget`). An earlier summary's lines are candidates too, brought up to date by what happened since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from everthread.compaction.summarizers.extract_actions import action_lines, is_numbered, next_number
from everthread.compaction.summarizers.extract_budget import Page
from everthread.compaction.summarizers.extract_context import context_lines, note, noted
from everthread.compaction.summarizers.extract_decisions import Decision, decision_lines, decisions
from everthread.compaction.summarizers.extract_files import file_lines, files_of
from everthread.compaction.summarizers.extract_lines import ALSO_DONE, ALSO_RAN, Line, Scale
from everthread.compaction.summarizers.extract_open import blocked_lines, progress_lines
from everthread.compaction.summarizers.extract_plan import remaining_lines
from everthread.compaction.summarizers.extract_reading import Reader, Story
from everthread.compaction.summarizers.extract_state import state_lines, state_of
from everthread.compaction.summarizers.extract_talk import answered_lines, goal_lines, pending_lines, rule_lines
from everthread.compaction.summarizers.extract_text import identity
from everthread.compaction.summarizers.extract_topic import Topic, topic_lines, topic_of
from everthread.core.decisions import SUPERSEDED
from everthread.core.redaction import redact
from everthread.core.summary import (
    ANSWERED,
    ASKS,
    BLOCKED,
    CRITICAL,
    DECISIONS,
    DONE,
    FILES,
    GOAL,
    HANDOFF,
    PROGRESS,
    REMAINING,
    RULES,
    STATE,
    Sections,
    SummaryDraft,
    SummaryRequest,
    render_sections,
)
from everthread.core.tokens import TokenCounter

FULL = 160
"""From this budget on the headings of empty sections are counted as well: below it they are left out."""
NOTE = 36
"""Tokens for the line that says what this summary is."""
REFILLS = 3
"""Counting line by line is a little too careful: what is left in the end is filled again, so often."""
SLACK = 16
TOPIC = 0.65
"""What a topic the user named gets of the budget."""

Drafts = dict[str, list[Line]]


class ExtractiveSummarizer:
    """Writes a summary from the transcript itself. Always works."""

    name = "extractive"

    def __init__(self, counter: TokenCounter) -> None:
        self._count = counter.text
        self._reader = Reader()

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        return SummaryDraft(self.sections(request), self.name)

    def sections(self, request: SummaryRequest) -> Sections:
        """The sections, together within the budget."""
        story = self._reader.story(request.messages, request.facts, request.ranked)
        drafts = _drafts(story, request)
        topic = topic_of(request.focus, story) if request.focus else None
        before, left_out = noted(request.previous.get(CRITICAL, ""))
        empty = self._count(render_sections({})) if request.budget >= FULL else 0
        page = Page(self._count)
        _fill(page, drafts, topic, story, request.budget - empty - NOTE)
        refills = REFILLS
        while True:
            rest = page.left_out(drafts)
            earlier = not before and any(request.previous.values())
            last = note(before + len(request.messages), left_out + rest, earlier=earlier)
            told = _told(page, request.previous, last)
            over = self._count(render_sections(told, brief=not empty)) - request.budget
            if over > 0 and not page.drop(over):
                return {}
            if over <= 0 and (-over < SLACK or not refills):
                return told
            if over <= 0:
                refills -= 1
                page.fill(page.rest(drafts), -over)


def _drafts(story: Story, request: SummaryRequest) -> Drafts:
    """Every section's candidates."""
    scale = Scale(request.budget, len(story.episodes))
    earlier = {name: request.previous.get(name, "") for name in HANDOFF}
    state = state_of(story, earlier[STATE], scale)
    files = files_of(story, earlier[FILES], state.directory)
    holding, gone = decisions(story, earlier[DECISIONS])
    decided, rules = decision_lines(holding, story, scale), rule_lines(story, earlier[RULES], request.rules)
    decided = [line for line in decided if line.text not in request.rules]
    told = {identity(text) for text in (*(line.text for line in (*decided, *rules)), *request.rules)}
    goals = [line for line in goal_lines(story, earlier[GOAL], scale) if identity(line.text) not in told]
    return {
        GOAL: _marked(goals, gone),
        RULES: rules,
        DONE: _marked(action_lines(story, earlier[DONE], scale), gone),
        STATE: list(state_lines(state, files, scale)),
        PROGRESS: progress_lines(story, earlier[PROGRESS], scale),
        BLOCKED: blocked_lines(story, earlier[BLOCKED], scale),
        DECISIONS: decided,
        ANSWERED: answered_lines(story, earlier[ANSWERED], scale),
        ASKS: pending_lines(story, earlier[ASKS], scale),
        FILES: list(file_lines(files, story, scale)),
        REMAINING: remaining_lines(story, earlier[REMAINING]),
        CRITICAL: _marked(context_lines(story, earlier[CRITICAL], scale), gone),
    }


def _marked(lines: Sequence[Line], gone: Sequence[Decision]) -> list[Line]:
    """Where a decision is quoted that no longer holds, that is said."""
    starts = [decision.text[:60] for decision in gone]
    return [
        replace(line, text=f"{line.text} {SUPERSEDED}")
        if any(start in line.text for start in starts) and not line.text.endswith(SUPERSEDED)
        else line
        for line in lines
    ]


def _fill(page: Page, drafts: Drafts, topic: Topic | None, story: Story, budget: int) -> None:
    """The topic first, where there is one; what is left over goes to the rest, and from there to whatever has more."""
    left = budget
    if topic is not None:
        drafts[CRITICAL] += topic_lines(topic, story)
        about = {name: [line for line in lines if topic.takes(line)] for name, lines in drafts.items()}
        share = int(budget * TOPIC)
        left += page.fill(about, share) - share
    left = page.fill(page.rest(drafts), left)
    if left > 0:
        page.fill(page.rest(drafts), left)


def _told(page: Page, previous: Sections, last: str) -> Sections:
    """The page as sections: bullets, numbers for actions, the last line telling what this is."""
    told: Sections = {}
    number = next_number(previous.get(DONE, ""))
    for name in HANDOFF:
        texts = page.chosen[name].texts() if name in page.chosen else []
        shown: list[str] = []
        for text in texts:
            if name != DONE or text.startswith((f"{ALSO_RAN}:", f"{ALSO_DONE}:")):
                shown.append(f"- {text}")
            elif is_numbered(text):
                shown.append(text)
            else:
                shown.append(f"{number}. {text}")
                number += 1
        if name == CRITICAL:
            shown.append(last)
        if shown:
            told[name] = redact("\n".join(shown))
    return told
