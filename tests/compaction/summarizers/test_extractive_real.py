"""On real conversations: what was touched, run and said is found again in the summary."""

from __future__ import annotations

import copy
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from everthread.compaction.summarizers.extractive import ExtractiveSummarizer
from everthread.core.messages import Message, calls_of, results_of
from everthread.core.summary import FILES, Sections, SummaryRequest, parse_sections, render_sections
from everthread.core.tokens import TokenCounter
from everthread.core.transcript import spans
from tests.shared_data import ROOT, shared

COUNTER = TokenCounter("claude-sonnet-4-5")
TRANSCRIPTS = sorted(path.name for path in (ROOT / "transcripts").glob("*.json")) or ["coding-long-claude.json"]


def transcript(name: str) -> list[Message]:
    messages: list[Message] = json.loads(Path(shared("transcripts", name)).read_text("utf-8"))["messages"]
    return messages


def summary(messages: list[Message], budget: int, **more: Any) -> Sections:
    return ExtractiveSummarizer(COUNTER).sections(SummaryRequest(messages, messages, budget, **more))


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_every_budget_holds_and_nothing_is_changed(name: str) -> None:
    messages = transcript(name)
    before = copy.deepcopy(messages)
    for budget in (200, 1_000, 4_000, 10_000):
        sections = summary(messages, budget)
        assert COUNTER.text(render_sections(sections)) <= budget
        assert f"from {len(messages):,} messages" in render_sections(sections)
        assert parse_sections(render_sections(sections)) == sections
    assert messages == before
    assert summary(before, 4_000) == summary(messages, 4_000)


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_ten_in_a_row_with_new_turns(name: str) -> None:
    messages = transcript(name)
    starts = [span.start for span in spans(messages)]
    cuts = sorted({starts[len(starts) * place // 10] for place in range(10)} | {len(messages)})
    sections: Sections = {}
    for start, end in pairwise(cuts):
        sections = parse_sections(render_sections(summary(messages[start:end], 3_000, previous=sections)))
        assert COUNTER.text(render_sections(sections)) <= 3_000
    assert f"from {len(messages):,} messages" in render_sections(sections)
    touched = paths(messages)
    kept = sum(path in sections[FILES] for path in touched)
    assert kept >= 0.95 * len(touched)


def paths(messages: list[Message]) -> set[str]:
    arguments = (call.parsed for message in messages for call in calls_of(message))
    return {given["path"] for given in arguments if isinstance(given.get("path"), str)}


def errors(messages: list[Message]) -> set[str]:
    """Compiler errors as a person would look for them."""
    texts = (result.text for message in messages for result in results_of(message))
    return {
        line.strip() for text in texts for line in text.split("\n") if re.match(r"src\S+\(\d+,\d+\): error TS", line)
    }


@pytest.mark.parametrize(("budget", "least_errors"), [(10_000, 0.85), (3_000, 0.3)])
def test_a_long_session_keeps_its_files_and_its_last_errors(budget: int, least_errors: float) -> None:
    messages = transcript("coding-long-claude.json")
    text = render_sections(summary(messages, budget))
    assert [path for path in paths(messages) if path not in text] == []
    last = errors(messages[len(messages) * 2 // 3 :])
    assert sum(error in text for error in last) >= least_errors * len(last)
