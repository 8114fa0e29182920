"""Logs of Codex, Copilot CLI, Gemini CLI, pi and opencode."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import pytest

from everthread.core.messages import calls_of, text_of
from everthread.errors import TranscriptError
from everthread.lab.importers.conversation_file import read_conversation
from everthread.lab.importers.find_logs import find_logs
from everthread.lab.importers.log_fields import parse_time
from everthread.lab.importers.read_logs import parse_log, read_log
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
from tests.shared_data import shared_path


def test_codex_items_become_messages() -> None:
    log = parse_sample("codex.jsonl")
    assert (log.kind, log.model) == ("codex", "gpt-5-codex")
    assert log.system == "You are Codex."
    assert [role for role, _ in list_texts(log)] == [
        "developer",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    first = log.entries[2]
    assert text_of(first.message) == "I look."
    assert [call.name for call in calls_of(first.message)] == ["shell"]
    assert first.usage is not None
    assert first.usage.prompt_tokens == 5_000
    assert first.usage.cache_read_tokens == 4_096
    assert first.usage.output_tokens == 60
    assert log.entries[4].usage is None
    assert log.entries[3].timestamp == parse_time("2026-03-01T10:00:09+00:00")
    assert log.warnings == [
        "line 6: no JSON object; skipped",
        "line 17: no item that can be read; skipped",
    ]
    assert list_compactions(log) == [(4, "So far …")]
    calls = replay(log, options=PLAIN, with_baselines=False).everthread.calls
    assert calls[0].output_tokens == 60
    assert [round(call.sent_at) for call in calls] == [0, 7, 9]


def test_codex_counts_tokens_after_the_outputs_of_the_tools() -> None:
    """Counts are repeated with new rate limits, and the count after a compaction is that of the summary."""
    log = parse_sample("codex_token_counts.jsonl")
    usages = [entry.usage for entry in log.entries if entry.usage]
    assert [usage.prompt_tokens for usage in usages] == [20_000, 21_000, 7_000]
    assert log.window == 258_400
    assert replay(log, options=PLAIN, with_baselines=False).window == 258_400


def test_every_answer_of_a_recorded_codex_session_has_its_usage() -> None:
    for path in sorted(shared_path("logs").glob("codex-*.jsonl.gz")):
        log = parse_log(gzip.decompress(path.read_bytes()).decode())
        answers = [entry for entry in log.entries if entry.message["role"] == "assistant"]
        assert sum(entry.usage is not None for entry in answers) >= 0.99 * len(answers)
        assert log.window == 258_400


def test_codex_files_without_an_envelope_are_read() -> None:
    log = parse_sample("codex_bare_items.jsonl")
    assert (log.kind, log.system, len(log.entries)) == ("codex", "Be careful.", 2)


def test_copilot_events_become_messages() -> None:
    log = parse_sample("copilot.jsonl")
    assert (log.kind, log.session_id) == ("copilot", "s-1")
    assert (log.system, log.model) == ("You are Copilot.", "gpt-5.5")
    assert list_user_words(log) == ["Fix it."]
    first, last = (entry for entry in log.entries if entry.message["role"] == "assistant")
    assert first.model == "claude-opus-4.8"
    assert first.message["reasoning_content"] == "Look first."
    assert first.usage is not None
    assert first.usage.output_tokens == 41
    assert first.timestamp == parse_time("2026-06-01T10:00:00.000Z")
    assert text_of(last.message) == "Fixed."
    assert list_results(log) == ["a.py"]
    assert list_compactions(log) == [(5, "Looked.")]
    assert log.compactions[0].tokens_before == 9_000
    assert log.warnings == ["1 line left out: a subagent's own conversation"]


def test_gemini_cli_records_become_messages() -> None:
    log = parse_sample("gemini_cli.jsonl")
    assert (log.kind, log.session_id) == ("gemini-cli", "s-1")
    assert (log.title, log.model) == ("Fixing", "gemini-3-pro")
    assert list_texts(log) == [
        ("user", "Fix it."),
        ("assistant", "I look."),
        ("tool", "a.py"),
        ("user", "And now?"),
        ("assistant", "Fixed."),
    ]
    usage = log.entries[1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.cache_read_tokens) == (100, 60)
    assert (usage.output_tokens, usage.reasoning_tokens) == (10, 3)
    assert list_compactions(log) == [(3, "Looked.")]


def test_gemini_cli_sessions_of_older_versions_are_one_object() -> None:
    lines = sample_text("gemini_cli.jsonl").split("\n")
    header, *records = (json.loads(line) for line in lines[:4])
    session = json.dumps({**header, "messages": records})
    expected = parse_sample("gemini_cli.jsonl").messages[:3]
    assert parse_log(session).messages == expected


def test_gemini_cli_may_write_its_history_again_under_new_ids() -> None:
    log = parse_sample("gemini_cli_rewritten.jsonl")
    assert [text for _, text in list_texts(log)] == [
        "The setting.",
        "Fix it.",
        "Round 1: next.",
        "Round 2: next.",
    ]
    assert log.compactions == []
    assert log.entries[2].usage is not None


def test_pi_lines_of_the_last_branch_become_messages() -> None:
    log = parse_sample("pi.jsonl")
    assert (log.kind, log.session_id, log.model) == ("pi", "s-1", CLAUDE)
    assert list_texts(log) == [
        ("user", "Fix it."),
        ("assistant", "I look."),
        ("tool", "a.py"),
        ("assistant", "Fixed."),
    ]
    _, call, _, last = log.entries
    assert [call.parsed for call in calls_of(call.message)] == [{"command": "ls"}]
    assert call.message["reasoning_content"] == "Look first."
    assert log.messages[2]["tool_call_id"] == "c1"
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.cost) == (117, 0.02)
    assert last.timestamp == parse_time("2026-03-01T10:00:06Z")
    assert log.warnings == [
        "line 8: no JSON object; skipped",
        "1 line left out: branches that were given up",
    ]
    assert list_compactions(log) == [(3, "Looked.")]


def test_a_damaged_line_of_pi_loses_that_line_only() -> None:
    words = list_user_words(parse_sample("pi_damaged_line.jsonl"))
    assert words == ["Wish 0", "Wish 1", "Wish 3", "Wish 4", "Wish 5"]


def test_pi_states_its_system_prompt_tools_and_edits() -> None:
    log = parse_sample("pi_system_prompt.jsonl")
    assert log.system == "You are pi."
    assert [tool["function"]["name"] for tool in log.tools] == ["read"]
    assert list_user_words(log) == ["Fix it.", "A paste."]
    assert "secret" not in json.dumps(log.messages)
    assert "Ran `ls`" in json.dumps(log.messages)
    assert log.entries[2].usage is not None
    assert log.entries[2].usage.cache_write_1h_tokens == 8
    assert list_compactions(log) == [(5, "Fixed.")]
    assert "A paste." in log.compactions[0].restored


def test_an_export_of_opencode_is_read() -> None:
    log = parse_sample("opencode_export.json")
    assert (log.kind, log.session_id) == ("opencode", "ses_1")
    assert (log.title, log.model) == ("Fix it", CLAUDE)
    assert [role for role, _ in list_texts(log)] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    answer = log.entries[1]
    assert [call.parsed for call in calls_of(answer.message)] == [{"command": "ls"}]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.cost) == (55, 0.01)
    assert log.warnings == []
    assert list_compactions(log) == [(4, "A summary.")]


@pytest.fixture
def opencode_database(tmp_path: Path) -> Path:
    """A database of opencode with the session of the sample export, and one of a subagent."""
    export = json.loads(sample_text("opencode_export.json"))
    path = tmp_path / "opencode" / "opencode.db"
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE session (id text, parent_id text, title text, time_created integer);"
        "CREATE TABLE message (id text, session_id text, time_created integer, data text);"
        "CREATE TABLE part (id text, message_id text, session_id text, data text);"
        "INSERT INTO session VALUES ('ses_1', NULL, 'Fix it', 1), ('ses_2', 'ses_1', 'A subagent', 2);"
    )
    for number, entry in enumerate(export["messages"]):
        message = (f"msg_{number}", "ses_1", number, json.dumps(entry["info"]))
        connection.execute("INSERT INTO message VALUES (?, ?, ?, ?)", message)
        for index, part in enumerate(entry["parts"]):
            row = (f"prt_{number}_{index}", f"msg_{number}", "ses_1", json.dumps(part))
            connection.execute("INSERT INTO part VALUES (?, ?, ?, ?)", row)
    connection.commit()
    connection.close()
    return path


def test_sessions_of_opencodes_database_are_found_and_read(
    opencode_database: Path, tmp_path: Path
) -> None:
    address = f"{opencode_database}#ses_1"
    assert find_logs("opencode", env={"XDG_DATA_HOME": str(tmp_path)}) == [address]
    log = read_log(address)
    export = parse_sample("opencode_export.json")
    assert log.messages == export.messages
    assert (log.session_id, log.title) == (export.session_id, export.title)
    assert read_conversation(address).request.messages == log.messages


def test_problems_of_opencodes_database_are_explained(
    opencode_database: Path, tmp_path: Path
) -> None:
    with pytest.raises(TranscriptError, match="#ses_9: has no session ses_9"):
        read_log(f"{opencode_database}#ses_9")
    with pytest.raises(
        TranscriptError,
        match=r"is a database; of opencode's, .*#SESSION_ID is one conversation",
    ):
        read_log(str(opencode_database))
    with sqlite3.connect(opencode_database) as connection:
        connection.execute("ALTER TABLE session RENAME TO session_v2")
    with pytest.raises(
        TranscriptError,
        match="no such table: session; `opencode export ID` writes one session",
    ):
        find_logs("opencode", env={"XDG_DATA_HOME": str(tmp_path)})
