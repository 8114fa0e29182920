"""Sections: written in either layout, read back from either."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everthread.core.exchange import Request
from everthread.core.summary import (
    BLOCKED,
    CRITICAL,
    DONE,
    GOAL,
    HANDOFF,
    REMAINING,
    SUMMARY_END,
    SUMMARY_START,
    TASK,
    Compaction,
    SummaryDraft,
    SummaryRequest,
    parse_sections,
    render_sections,
    summaries_in,
)

SECTIONS = {TASK: "Fix it.", GOAL: "Ship.", DONE: "1. READ a.py — ok [tool: read]", CRITICAL: "- port: 6543"}


def test_handoff_shows_every_section_in_order() -> None:
    text = render_sections(SECTIONS)
    places = [text.index(f"## {name}\n") for name in HANDOFF]
    assert places == sorted(places)
    assert "## Blocked\nNone." in text
    assert parse_sections(text) == SECTIONS


def test_brief_leaves_empty_sections_out() -> None:
    assert render_sections({GOAL: "Ship."}, brief=True) == "## Goal\nShip."
    assert render_sections({GOAL: "Ship."}, brief=True, template="classic") == "## Goal\nShip."


def test_classic_puts_the_same_under_fewer_headings() -> None:
    text = render_sections({**SECTIONS, BLOCKED: "E1", REMAINING: "Docs."}, template="classic")
    assert "## Goal\nFix it.\n\nShip." in text
    assert "## Progress\n### Done\n1. READ a.py — ok [tool: read]\n\n### Blocked\nE1" in text
    assert "## Next Steps\nDocs." in text
    assert "## Relevant Files\nNone." in text
    assert "Active Task" not in text
    assert parse_sections(text)[DONE] == SECTIONS[DONE]
    assert parse_sections(text)[REMAINING] == "Docs."


def test_headings_are_read_as_models_write_them() -> None:
    text = (
        "Preamble\n# **Goal**\nShip.\n### 3) Completed Actions:\n1. x\n#### Details\nmore\n"
        "## goal\nAgain.\n## Blocked\nNone."
    )
    assert parse_sections(text) == {GOAL: "Ship.\nAgain.", DONE: "1. x\n#### Details\nmore"}
    assert parse_sections("no headings at all") == {}


def test_summaries_are_found_in_messages() -> None:
    text = f"{SUMMARY_START}: x]\nbody\n{SUMMARY_END}"
    assert summaries_in({"role": "user", "content": f"before\n{text}\nafter"}) == [text]
    assert summaries_in({"role": "tool", "content": text}) == []
    assert summaries_in({"role": "user", "content": "nothing"}) == []


def test_values_have_sensible_defaults() -> None:
    assert SummaryRequest([], [], 100).previous == {}
    assert SummaryDraft({}, "x").warnings == ()
    assert Compaction([], "", 1, 1).changed
    assert Request("m", []).params == {}


@given(
    st.dictionaries(st.sampled_from(HANDOFF), st.text(st.characters(exclude_characters="#"), min_size=1, max_size=30))
)
def test_what_was_written_is_read_back(sections: dict[str, str]) -> None:
    kept = {
        k: v.strip()
        for k, v in sections.items()
        if v.strip() and v.strip().rstrip(".").casefold() not in ("none", "n/a")
    }
    assert parse_sections(render_sections(sections)) == {k: v for k, v in kept.items() if v.casefold() != "(none)"}
