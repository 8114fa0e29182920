"""Logs of Claude Code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from everthread.core.messages import calls_of
from everthread.lab.importers.claude_code import ClaudeCodeReader
from everthread.lab.importers.log import LoggedMessage
from everthread.lab.importers.read_logs import parse_log
from everthread.lab.replay import replay
from tests.lab.recorded_histories import PLAIN
from tests.lab.recorded_logs import (
    CLAUDE,
    list_compactions,
    list_results,
    list_texts,
    list_user_words,
    parse_sample,
    sample_text,
)


def test_reads_the_last_branch_and_joins_the_lines_of_an_answer() -> None:
    log = parse_sample("claude_code.jsonl")
    assert (log.kind, log.model) == ("claude-code", CLAUDE)
    assert list_texts(log) == [
        ("user", "Fix the build."),
        ("user", "Fix the release build."),
        ("assistant", "I look."),
        ("tool", "one"),
        ("tool", "two"),
        ("assistant", "Done."),
    ]
    answer = log.entries[2]
    assert [call.id for call in calls_of(answer.message)] == ["toolu_1", "toolu_2"]
    assert answer.message["reasoning_content"] == "Two at once."
    assert answer.usage is not None
    assert (answer.usage.cache_read_tokens, answer.usage.output_tokens) == (40, 7)
    assert list_compactions(log) == [(5, "This session is being continued…")]


def test_warns_of_lines_that_it_leaves_out() -> None:
    log = parse_sample("claude_code.jsonl")
    assert log.warnings[0] == "line 19: no JSON object; skipped"
    assert set(log.warnings[1:]) == {
        "line 17: no message that can be read; skipped",
        "2 lines left out: a branch that was given up",
        "1 line left out: a subagent's own conversation",
        "1 line left out: a notice of the client, not of the model",
    }
    result = replay(log, options=PLAIN, with_baselines=False)
    assert (result.times_from, len(result.everthread.calls)) == ("log", 2)
    assert result.notes[0].startswith("line 19")


def test_marks_text_that_the_client_injected() -> None:
    log = parse_sample("claude_code_injected_text.jsonl")
    assert list_user_words(log) == ["Fix it.", "Use tabs.", "And the docs."]
    assert [message["role"] for message in log.messages[2:6]] == [
        "assistant",
        "tool",
        "tool",
        "user",
    ]
    all_text = "\n".join(text for _, text in list_texts(log))
    for injected_text in ("Two spaces.", "Task 7 is done.", "Base directory"):
        assert all_text.count(injected_text) == 1
    assert "not sent" not in all_text
    assert "Use tabs." not in "".join(list_results(log))


def test_takes_the_largest_output_that_the_lines_of_an_answer_state() -> None:
    log = parse_sample("claude_code_streamed_usage.jsonl")
    first, second = (entry for entry in log.entries if entry.usage is not None)
    assert first.usage is not None
    assert first.usage.output_tokens == 400
    assert [call.parsed for call in calls_of(first.message)] == [{}]
    assert second.usage is not None
    calls = replay(log, options=PLAIN, with_baselines=False).everthread.calls
    assert calls[0].output_tokens == 400
    assert calls[1].output_tokens > 300, "1 is the figure of the stream's beginning"


def test_streams_each_message_when_no_later_line_can_change_it() -> None:
    text = sample_text("claude_code_parallel_calls.jsonl")
    lines = [(number, json.loads(line)) for number, line in enumerate(text.split("\n"), 1)]
    read_lines: list[int] = []

    class Lines:
        def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
            for number, value in lines:
                read_lines.append(number)
                yield number, value

    stream = ClaudeCodeReader().stream(Lines(), "log")
    assert stream.log.model == "claude-opus-4-6"
    read_lines.clear()
    last_lines: list[int] = []
    entries: list[LoggedMessage] = []
    for entry in stream.entries:
        last_lines.append(read_lines[-1])
        entries.append(entry)
    assert entries == ClaudeCodeReader().read(lines, "log").entries
    # An answer and everything after it wait for its last line, the others for nothing.
    assert last_lines == [1, 5, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("model", "trigger", "tokens", "window"),
    [
        ("claude-opus-4-6", "auto", 167_000, 200_000),
        ("claude-opus-4-6", "manual", 297_000, 1_000_000),
        ("claude-opus-4-6[1m]", "manual", 1, 1_000_000),
        ("claude-opus-4-6", "manual", 1, None),
    ],
)
def test_finds_the_window_by_model_name_and_compactions(
    model: str, trigger: str, tokens: int, window: int | None
) -> None:
    text = sample_text("claude_code_compaction.jsonl")
    text = text.replace("claude-opus-4-6", model).replace("auto", trigger)
    log = parse_log(text.replace("167000", str(tokens)))
    assert (log.window, log.model) == (window, "claude-opus-4-6")
    assert list_compactions(log) == [(2, "So far: one.")]
    assert log.compactions[0].restored == "a.py\nx = 1"
    result = replay(log, options=PLAIN, with_baselines=False)
    assert result.window == (window or 200_000)
