"""A summary is checked against its sources: whole names only, and only what is true is a source."""

from __future__ import annotations

import pytest

from everthread.compaction.steps.reading import Reader
from everthread.compaction.steps.verify import UNVERIFIED, haystack, mark_unverified, missing_facts, verified
from everthread.core.facts import COMMAND, DECISION, FIGURE, RULE, Fact
from everthread.core.mentions import ERROR, IDENTIFIER, VALUE
from everthread.core.messages import FunctionCall, Message, ToolCall

SHOWN = FunctionCall(name="bash", arguments='{"command": "cat a\\\\nb_file.py"}')
SOURCES: list[Message] = [
    {"role": "user", "content": "See load_config_file in src/app/settings.py at 3f2a9c1d77, please."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [ToolCall(id="a", type="function", function=SHOWN)],
    },
    {"role": "tool", "tool_call_id": "a", "content": "ValueError: port 70000 is out of range"},
]


@pytest.mark.parametrize(
    "line",
    [
        "- `load_config_file` reads it",
        "- src/app/settings.py holds the defaults",
        "- app/settings.py, as people write it",
        "- commit 3f2a9c1d is good",
        '- it failed with "ValueError: port 70000 is out of range"',
        "- b_file.py was shown",
        "- 4711 rows, a number nobody said",
    ],
)
def test_what_the_sources_say_is_not_marked(line: str) -> None:
    assert mark_unverified(line, haystack(Reader().read(SOURCES), []))[0] == line


@pytest.mark.parametrize(
    "line",
    [
        "- `load_config` reads it",
        "- `config_file` reads it",
        "- src/app/setting.py holds the defaults",
        "- commit 2a9c1d77 is good",
        '- it failed with "ValueError: port 80 is out of range"',
        "- see https://example.org/made/up",
    ],
)
def test_a_part_of_a_longer_name_or_an_invention_is(line: str) -> None:
    marked, checked, unknown = mark_unverified(line, haystack(Reader().read(SOURCES), []))
    assert marked == f"{line} {UNVERIFIED}"
    assert checked >= unknown >= 1
    assert mark_unverified(marked, "")[0] == marked, "once"


def test_headings_are_not_checked() -> None:
    assert mark_unverified("## made_up_name", "") == ("## made_up_name", 0, 0)


def test_an_unverified_line_of_an_earlier_summary_is_no_source() -> None:
    earlier = f"- `made_up_name` is broken {UNVERIFIED}\n- `true_name` works"
    assert verified(earlier) == "- `true_name` works"
    sources = haystack([], [earlier])
    assert mark_unverified("- `made_up_name` is broken", sources)[2] == 1
    assert mark_unverified("- `true_name` works", sources)[2] == 0


def test_facts_a_text_lacks() -> None:
    command = Fact(COMMAND, "cd app &&\n  echo `date` && " + "x" * 200)
    told = "We chose Vue. cd app && echo 'date' && " + "x" * 80
    facts = [
        Fact(RULE, "Never push."),
        Fact(VALUE, "3 rows"),
        Fact(VALUE, "port 80", by_user=True),
        Fact(ERROR, "[exit code 1]"),
        Fact(ERROR, "KeyError: x"),
        Fact(DECISION, "We chose Vue."),
        Fact(FIGURE, "12 of 40 done"),
        Fact(IDENTIFIER, "load_all"),
        command,
    ]
    looked_for, missing = missing_facts(facts, told)
    assert looked_for == 6
    assert [fact.value for fact in missing] == ["port 80", "KeyError: x", "12 of 40 done", "load_all"]
