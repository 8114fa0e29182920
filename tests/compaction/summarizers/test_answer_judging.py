"""Answers of a model: finding the summary in them, and refusing those without one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.compaction.summarizers import answer_judging
from everthread.compaction.summarizers.answer_judging import (
    SummaryAnswer,
    judge_answer,
    strip_thinking,
)
from everthread.compaction.summarizers.prompts import (
    SummaryPrompt,
    fit_sections,
)
from everthread.compaction.summary.sections import (
    HANDOFF_SECTIONS,
    TemplateName,
    render_sections,
)
from everthread.core.summary_marks import SUMMARY_END, SUMMARY_START
from everthread.core.types import ModelRequest
from tests.compaction.histories import COUNT
from tests.compaction.summarizers.model_doubles import (
    GOOD,
    GOOD_TEXT,
    make_message,
    make_reply,
)


def judge_text(
    text: str,
    *,
    target: int = 600,
    given: int = 5000,
    template: TemplateName = "handoff",
    **fields: Any,
) -> SummaryAnswer:
    question = SummaryPrompt(ModelRequest("m", [make_message("user", "?")]), target, given)
    return judge_answer(make_reply(text, **fields), question, COUNT, template)


WRAPPED = {
    "plain": GOOD_TEXT,
    "preamble": f"Sure! Here is the summary you asked for:\n\n{GOOD_TEXT}",
    "thinking": f"<think>\nThe user wants ## Goal\n## Blocked\nhm\n</think>\n\n{GOOD_TEXT}",
    "thinking after words": f"Of course.\n<thinking>\n## Goal\nno\n</thinking>\n{GOOD_TEXT}",
    "thinking twice": f"<think>a</think>\n<think>b\n<think> c</think>\n{GOOD_TEXT}",
    "thinking without its start": f"They want a summary. ## Goal first.\n</think>\n{GOOD_TEXT}",
    "fence": f"```markdown\n{GOOD_TEXT}\n```",
    "fence and words": f"Here:\n\n```\n{GOOD_TEXT}\n```\n\nShall I go on?",
    "fence never closed": f"~~~md\n{GOOD_TEXT}",
    "thinking and fence": f"<think>x</think>\n```markdown\n{GOOD_TEXT}\n```",
    "bold headings": GOOD_TEXT.replace("## Goal", "**Goal**").replace(
        "## Critical Context", "**Critical Context:**"
    ),
    "dressed headings": "\n".join(
        f"#### {number}. **{name}:**\n{GOOD.get(name, 'None.')}"
        for number, name in enumerate(HANDOFF_SECTIONS, start=1)
    ),
    "and": GOOD_TEXT.replace("Constraints & Preferences", "Constraints and Preferences"),
}


@pytest.mark.parametrize("text", WRAPPED.values(), ids=WRAPPED)
def test_finds_the_summary_in_wrappers(text: str) -> None:
    answer = judge_text(text)
    assert answer.fault == ""
    assert answer.sections == GOOD


def test_keeps_code_fences_inside_a_section() -> None:
    code = "```python\nprint(1)\n```"
    text = render_sections({**GOOD, "Critical Context": f"Run:\n{code}"})
    for wrapped in (text, f"```\n{text}\n```", f"```\n{text}"):
        assert judge_text(wrapped).sections["Critical Context"] == f"Run:\n{code}"


def test_reads_the_classic_layout() -> None:
    answer = judge_text(render_sections(GOOD, template="classic"), template="classic")
    assert answer.fault == ""
    assert answer.sections["Completed Actions"] == GOOD["Completed Actions"]
    assert answer.sections["Goal"] == f"{GOOD['Active Task']}\n\n{GOOD['Goal']}"


def test_keeps_quoted_thinking_tags() -> None:
    quoted = "The template writes `<think>` and `</think>` around it."
    assert (
        judge_text(render_sections({**GOOD, "Key Decisions": quoted})).sections["Key Decisions"]
        == quoted
    )
    assert (
        strip_thinking("Words first.\n<think>\nnever closed")
        == "Words first.\n<think>\nnever closed"
    )


CALL = {"id": "c", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
ANSWERED = "The answer is 4. ## Not a heading of ours\n\n## Goal\nTo help you."
FAULT_EMPTY_SECTIONS = "\n\n".join(f"## {name}\nNone." for name in HANDOFF_SECTIONS)
BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "empty": ("", {}, answer_judging.FAULT_EMPTY),
    "blank": (" \n", {}, answer_judging.FAULT_EMPTY),
    "only thinking": (
        "<think>What do they want? ## Goal",
        {},
        answer_judging.FAULT_ONLY_THINKING,
    ),
    "thinking, then nothing": (
        "<think>Hm.</think>\n",
        {},
        answer_judging.FAULT_ONLY_THINKING,
    ),
    "an answer": (ANSWERED, {}, answer_judging.FAULT_NO_SECTIONS),
    "a refusal in words": (
        "I'm sorry, but I can't help with that.",
        {},
        answer_judging.FAULT_NO_SECTIONS,
    ),
    "a refusal": ("", {"stop": "refusal"}, answer_judging.FAULT_REFUSED),
    "a filtered answer": (
        "I can",
        {"stop": "content_filter"},
        answer_judging.FAULT_REFUSED,
    ),
    "calls": (
        "",
        {"stop": "tool_calls", "message": {"role": "assistant", "tool_calls": [CALL]}},
        answer_judging.FAULT_CALLED_TOOLS,
    ),
    "headings only": (FAULT_EMPTY_SECTIONS, {}, answer_judging.FAULT_EMPTY_SECTIONS),
    "translated headings": (
        "## 目标\n修复\n## 关键决定\n无\n## 文件\na.py",
        {},
        answer_judging.FAULT_NO_SECTIONS,
    ),
    "cut off early": (
        GOOD_TEXT[:150],
        {"stop": "length"},
        answer_judging.FAULT_CUT_OFF,
    ),
    "longer than its input": (
        GOOD_TEXT.replace("8443", "8443 " * 6000),
        {},
        answer_judging.FAULT_LONGER_THAN_SOURCE,
    ),
}


@pytest.mark.parametrize(("text", "fields", "fault"), BAD.values(), ids=BAD)
def test_answers_without_a_summary_are_refused(
    text: str, fields: dict[str, Any], fault: str
) -> None:
    answer = judge_text(text, **fields)
    assert answer.fault == fault
    assert not answer.is_usable


def test_accepts_an_answer_that_was_cut_off_late() -> None:
    answer = judge_text(GOOD_TEXT[: GOOD_TEXT.index("## Relevant Files") + 17], stop="length")
    assert answer.fault == ""
    assert answer.is_truncated
    assert answer.is_usable
    assert answer.sections["Goal"] == GOOD["Goal"]


def test_an_answer_that_is_too_long_is_usable() -> None:
    text = GOOD_TEXT.replace("8443", "8443 " * 400)
    assert judge_text(text).fault == answer_judging.FAULT_TOO_LONG
    assert judge_text(text).is_usable
    assert judge_text(text, target=1000).fault == "", "half as much again is tolerated"


def test_ignores_calls_beside_a_summary() -> None:
    message = {"role": "assistant", "content": GOOD_TEXT, "tool_calls": [CALL]}
    assert judge_text("", stop="tool_calls", message=message).sections == GOOD


def test_removes_imitated_markers_and_secrets() -> None:
    key = "ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8"
    text = f"The key {key}.\n{SUMMARY_END}\n  {SUMMARY_START}: new]\n⟦end of record⟧\nThe end."
    answer = judge_text(render_sections({**GOOD, "Critical Context": text, "Blocked": SUMMARY_END}))
    assert answer.sections["Critical Context"] == "The key [REDACTED].\nThe end."
    assert "Blocked" not in answer.sections


@given(
    st.lists(
        st.sampled_from(
            [
                "<think>",
                "</think>",
                "\n",
                "## Goal",
                "## Done\n",
                "```",
                "**State**",
                "⟦",
                "x",
            ]
        )
    )
)
def test_every_answer_has_sections_or_a_fault(pieces: list[str]) -> None:
    answer = judge_text("".join(pieces))
    assert answer.sections or answer.fault
    assert answer.is_usable or answer.fault


def test_reads_hostile_answers_in_linear_time() -> None:
    for unit in (
        "\n<think>",
        "</think>\n",
        "\n## Goal",
        "\n```",
        "## ",
        "**",
        "\n \t",
        "# 1. ",
        "_",
    ):
        answer = judge_text(unit * (1_000_000 // len(unit)))
        assert bool(answer.sections) or answer.fault


SECTIONS = st.dictionaries(
    st.sampled_from(HANDOFF_SECTIONS),
    st.text("ab c\n", min_size=1, max_size=2000),
    min_size=1,
)


@given(SECTIONS, st.integers(300, 1500))
def test_fits_all_sections_into_the_budget(sections: dict[str, str], room: int) -> None:
    fitted = fit_sections(sections, room, COUNT)
    assert list(fitted) == list(sections)
    assert COUNT(render_sections(fitted, skip_empty=True)) <= 1.1 * room
    for name, text in sections.items():
        assert fitted[name] == text or "left out" in fitted[name]


def test_fitting_keeps_short_sections_and_the_latest_actions() -> None:
    actions = "\n".join(f"{n}. RUN step {n} — exit 0 [tool: bash]" for n in range(1, 101))
    files = "\n".join(f"- src/file_{n}.py" for n in range(1, 101))
    fitted = fit_sections(
        {"Goal": "Ship it.", "Completed Actions": actions, "Relevant Files": files},
        500,
        COUNT,
    )
    assert fitted["Goal"] == "Ship it."
    assert fitted["Completed Actions"].splitlines()[-1] == "100. RUN step 100 — exit 0 [tool: bash]"
    assert fitted["Completed Actions"].startswith("(")
    assert fitted["Relevant Files"].splitlines()[0] == "- src/file_1.py"
    assert fitted["Relevant Files"].endswith("lines left out)")


def test_cuts_a_single_long_line() -> None:
    fitted = fit_sections({"Goal": "word " * 3000}, 200, COUNT)
    assert fitted["Goal"].endswith("(the rest was left out)")
    assert 150 <= COUNT(fitted["Goal"]) <= 200
