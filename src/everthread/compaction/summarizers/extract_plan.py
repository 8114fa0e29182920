"""Remaining Work, as it was last stated: task lists of tools, open checkboxes, lists under `Next steps`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from everthread.compaction.summarizers.extract_lines import Line, aged, once, recalled
from everthread.compaction.summarizers.extract_reading import Story
from everthread.compaction.summarizers.extract_tasks import FINISHED, STARTED
from everthread.compaction.summarizers.extract_text import trim
from everthread.compaction.summarizers.extract_wording import NEXT_STEPS
from everthread.core.topics import overlap

_RECENT = 6
"""Only what the last few turns say is still a plan."""
_ROOM = 160
_ITEM = re.compile(r"^[ \t]*(?:[-*+•]|\d{1,3}[.)])[ \t]+(?!\[[xX]\])(?:\[ \][ \t]*)?(\S[^\n]{2,300})")
_BOX = re.compile(r"^[ \t]*[-*+][ \t]+\[ \][ \t]+(\S[^\n]{2,300})", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Plan:
    """A task list as it was last written."""

    open: tuple[str, ...] = ()
    started: tuple[str, ...] = ()
    where: int = -1


def plan_of(story: Story) -> Plan:
    """The last task list a tool was given."""
    for deed in reversed(list(story.deeds)):
        if deed.step.tasks:
            rest = tuple(text for text, state in deed.step.tasks if state not in FINISHED | STARTED)
            return Plan(rest, tuple(text for text, state in deed.step.tasks if state in STARTED), deed.where)
    return Plan()


def remaining_lines(story: Story, previous: str) -> list[Line]:
    """What is left to do: the last task list, what the last turns announce, and what an earlier summary had left."""
    plan = plan_of(story)
    answers = [episode.answer for episode in story.episodes if episode.answer]
    lines = [Line(trim(text, _ROOM), 2.0, plan.where) for text in plan.open]
    lines += _announced(story)
    if plan.where < 0:
        known = aged(recalled(previous), 0.8)
        lines += (line for line in known if not any(overlap(line.text, answer) >= 0.7 for answer in answers))
    return once(lines)


def _announced(story: Story) -> Iterator[Line]:
    """Open checkboxes and items under `Next steps` of the last turns; of the latest message that has any."""
    for episode in reversed(story.episodes[-_RECENT:]):
        text = episode.answer or episode.last_said
        found = _BOX.findall(text) or _under_heading(text)
        if found:
            yield from (Line(trim(item, _ROOM), 1.5, episode.end) for item in found)
            return


def _under_heading(text: str) -> list[str]:
    lead = NEXT_STEPS.search(text[-8_000:])
    if lead is None:
        return []
    found: list[str] = []
    for line in text[-8_000:][lead.end() :].split("\n"):
        item = _ITEM.match(line)
        if item:
            found.append(item[1])
        elif line.strip() and (found or not line.startswith((" ", "\t"))):
            break
    return found
