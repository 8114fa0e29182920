"""The lines of a chat for events and tool calls."""

from __future__ import annotations

from decimal import Decimal

import pytest

from everthread.agent.turn_events import Delegated, ToolFinished, ToolStarted, TurnEnded
from everthread.cli.chat.event_lines import ToolLines, render_event, render_tool_result
from everthread.compaction.engine import describe_progress
from everthread.thread import events
from tests.cli.chat.event_builders import compaction_done, tool_finished


def rendered_text(event: events.Event) -> str:
    line = render_event(event)
    assert line is not None
    return line.plain


FAILED_SUMMARY = describe_progress(
    "summary_failed",
    {
        "route": "m",
        "reason": "no sections",
        "rest": 0.0,
    },
)


class TestLines:
    def test_a_compaction_is_one_line_with_its_warnings(self) -> None:
        event = compaction_done(
            tokens_before=101_000,
            tokens_after=24_500,
            author="gpt-4o-mini",
            cost=Decimal("0.012"),
            steps=("the tail was halved",),
            warnings=("the auxiliary model failed",),
        )
        line = rendered_text(event)
        assert line.split("\n") == [
            "◆ Compacted 101K → 24.5K tokens; summary by gpt-4o-mini for $0.0120. /why, /undo",
            "  ! the auxiliary model failed",
        ]

    @pytest.mark.parametrize(
        ("event", "words"),
        [
            (
                events.Recovery(
                    session="s",
                    problem="prompt_too_long",
                    attempt=2,
                    action="compacting again",
                ),
                "Trying again (2): compacting again",
            ),
            (
                events.LimitLearnt(
                    session="s",
                    model="m",
                    window=8_192,
                    source="the server said so",
                    is_stored=True,
                ),
                "window of m is 8,192 tokens",
            ),
            (
                events.OutputStored(
                    session="s",
                    output="output:o1",
                    tool="terminal",
                    chars=250_000,
                ),
                "terminal: 250,000 characters stored as output:o1",
            ),
            (events.Notice("s", "Detail may fade."), "! Detail may fade."),
            (events.CompactionVoid("s", "it grew"), "Nothing was compacted: it grew"),
            (events.CompactionFailed("s", "no room"), "The compaction failed: no room"),
            (events.CompactionProgress("s", "gpt-4o rests"), "gpt-4o rests"),
            (events.CompactionProgress("s", FAILED_SUMMARY), "◇ m wrote no summary: no sections"),
            (
                Delegated("s", "t2", events.Notice("sub", "Detail may fade.")),
                "  ! Detail may fade.",
            ),
            (
                TurnEnded(
                    "s",
                    "max_rounds",
                    rounds=90,
                    calls=120,
                    seconds=3.0,
                ),
                "stopped after 90 rounds",
            ),
        ],
    )
    def test_events_are_shown_as_lines(self, event: events.Event, words: str) -> None:
        assert words in rendered_text(event)

    def test_estimates_background_starts_and_turn_ends_are_not_shown(self) -> None:
        estimate = events.Estimated(
            "s",
            1,
            window=2,
            threshold=3,
            is_reported=True,
        )
        start = events.CompactionStarted("s", "background", 5_000, is_background=True)
        end = TurnEnded(
            "s",
            "answered",
            rounds=1,
            calls=1,
            seconds=1.0,
        )
        assert render_event(estimate) is None
        assert render_event(start) is None
        assert render_event(end) is None

    def test_foreign_text_cannot_move_the_cursor(self) -> None:
        assert "\x1b" not in rendered_text(events.Notice("s", "\x1b[2Jgone"))


class TestToolLines:
    def test_a_finished_tool_is_a_line_with_target_outcome_and_seconds(self) -> None:
        tools = ToolLines()
        arguments = {"command": "pytest tests/"}
        start = ToolStarted("s", "c1", "terminal", arguments)
        assert tools.render(start) is None
        assert "terminal pytest tests/" in tools.running_text
        output = "1 failed, 12 passed\n[exit code: 1]"
        line = tools.render(tool_finished("terminal", output, seconds=1.26, arguments=arguments))
        assert line is not None
        assert line.plain.startswith("✓ terminal pytest tests/")
        assert "1 failed, 12 passed" in line.plain
        assert line.plain.split("\n")[0].endswith("1.3 s")
        assert tools.running_text == ""

    def test_the_first_lines_of_an_output_are_shown(self) -> None:
        text = "exit code: 0\n" + "\n".join(f"line {number}" for number in range(315))
        line = render_tool_result(tool_finished("terminal", text, arguments={"command": "make"}))
        assert line.plain.split("\n")[1:] == [
            "  │ line 0",
            "  │ line 1",
            "  │ line 2",
            "  │ … 312 more",
        ]
        read = render_tool_result(tool_finished("read_file", text, arguments={"path": "a.py"}))
        assert "\n" not in read.plain

    def test_failed_and_refused_calls_are_marked(self) -> None:
        tools = ToolLines()
        failed = tools.render(
            tool_finished("read_file", "Failed: there is no such file", failed=True)
        )
        refused = tools.render(
            tool_finished(
                "terminal",
                "Refused: …",
                failed=True,
                refused=True,
                arguments={"command": "rm x"},
            )
        )
        assert failed is not None
        assert failed.plain.startswith("✗ read_file")
        assert refused is not None
        assert refused.plain == "✗ terminal rm x  refused", "a refused call is named too"

    def test_a_subagent_is_indented_and_control_characters_are_shown(self) -> None:
        tools = ToolLines()
        inner = ToolFinished("sub", "c1", "ter\x1b[31mminal", "ok")
        line = tools.render(Delegated("s", "t2", inner))
        assert line is not None
        assert line.plain.startswith("  ✓")
        assert "\x1b" not in line.plain

    def test_a_subagent_may_repeat_call_ids(self) -> None:
        tools = ToolLines()
        tools.render(ToolStarted("s", "call_0", "delegate", {"task": "Count the files"}))
        tools.render(
            Delegated("s", "t2", ToolStarted("sub", "call_0", "terminal", {"command": "ls"}))
        )
        tools.render(Delegated("s", "t2", ToolFinished("sub", "call_0", "terminal", "ok")))
        assert "Count the files" in tools.running_text
        tools.render(ToolFinished("s", "call_0", "delegate", "Three."))
        assert tools.running_text == ""

    def test_the_content_of_a_read_file_is_not_shown(self) -> None:
        event = tool_finished("read_file", "1\tUse tabs.", arguments={"path": "AGENTS.md"})
        line = ToolLines().render(event)
        assert line is not None
        assert "Use tabs" not in line.plain
        assert line.plain.startswith("✓ read_file AGENTS.md")
