"""Logs of other programs: which lines are read or left out; garbage is reported and harmless."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.messages import calls_of, results_of, text_of
from everthread.errors import InputError, TranscriptError
from everthread.factory import open_store
from everthread.lab.importers.client_log import format_line_numbers
from everthread.lab.importers.conversation_file import read_conversation
from everthread.lab.importers.find_logs import find_logs
from everthread.lab.importers.log_fields import parse_time
from everthread.lab.importers.read_logs import parse_log, read_log
from everthread.lab.importers.thread_import import import_log, make_thread_id
from everthread.lab.replay import replay
from tests.lab.recorded_histories import PLAIN
from tests.shared_data import shared_path

CLAUDE = "claude-opus-4-5"


def _lines(*values: Any) -> str:
    return "\n".join(
        value if isinstance(value, str) else json.dumps(value) for value in values
    )


def _entry(
    kind: str, content: Any, uuid: str, parent: str | None, **more: Any
) -> dict[str, Any]:
    message = {"role": kind, "content": content}
    if kind == "assistant":
        usage = {
            "input_tokens": 3,
            "cache_read_input_tokens": 40,
            "cache_creation_input_tokens": 5,
            "output_tokens": 7,
        }
        message |= {
            "model": CLAUDE,
            "id": more.pop("answer", f"msg_{uuid}"),
            "usage": usage,
        }
    message |= more.pop("message", {})
    seconds = int(uuid[1:]) if uuid[1:].isdigit() else 0
    stamp = f"2026-03-01T10:00:{seconds:02d}.500Z"
    return {
        "type": kind,
        "uuid": uuid,
        "parentUuid": parent,
        "timestamp": stamp,
        "message": message,
        **more,
    }


def _claude_code() -> str:
    """A session with a rewritten prompt, parallel calls, a subagent, a summary, an error, a line cut short."""
    use = {"type": "tool_use", "name": "Bash", "input": {"command": "ls"}}
    return _lines(
        {"type": "summary", "summary": "Fixing the build", "leafUuid": "u9"},
        {"type": "file-history-snapshot", "snapshot": {}},
        _entry("user", "Fix the build.", "u1", None),
        _entry("user", "Fix the bulid", "u2", "u1"),
        _entry("assistant", [{"type": "text", "text": "Which build?"}], "a3", "u2"),
        _entry("user", "Fix the release build.", "u4", "u1"),
        _entry(
            "assistant",
            [{"type": "thinking", "thinking": "Two at once.", "signature": "x"}],
            "a5",
            "u4",
            answer="m",
        ),
        _entry(
            "assistant", [{"type": "text", "text": "I look."}], "a6", "a5", answer="m"
        ),
        _entry("assistant", [{**use, "id": "toolu_1"}], "a7", "a6", answer="m"),
        _entry(
            "user",
            [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "one"}],
            "u8",
            "a7",
        ),
        _entry("assistant", [{**use, "id": "toolu_2"}], "a9", "a7", answer="m"),
        _entry(
            "user",
            [{"type": "tool_result", "tool_use_id": "toolu_2", "content": "two"}],
            "u10",
            "a9",
        ),
        _entry("assistant", "Sub.", "a11", None, isSidechain=True),
        _entry("assistant", "API Error", "a12", "u10", isApiErrorMessage=True),
        {
            "type": "system",
            "subtype": "compact_boundary",
            "uuid": "s13",
            "parentUuid": None,
        },
        _entry(
            "user",
            "This session is being continued…",
            "u14",
            "s13",
            isCompactSummary=True,
        ),
        _entry("user", [{"type": "tool_result"}], "u15", "u14"),
        _entry("assistant", "Done.", "a16", "u14"),
        '{"type":"assistant","message":{"role":"assi',
    )


def test_claude_codes_sessions() -> None:
    log = parse_log(_claude_code(), "session.jsonl")
    assert (log.kind, log.model) == ("claude-code", CLAUDE)
    shown = [
        (entry.message["role"], text_of(entry.message))
        for entry in log.entries
        if not results_of(entry.message)
    ]
    assert shown == [
        ("user", "Fix the build."),
        ("user", "Fix the release build."),
        ("assistant", "I look."),
        ("assistant", "Done."),
    ]
    answer = next(entry for entry in log.entries if calls_of(entry.message))
    assert [call.id for call in calls_of(answer.message)] == ["toolu_1", "toolu_2"]
    assert answer.message.get("reasoning_content") == "Two at once."
    assert answer.usage is not None
    assert (answer.usage.cache_read_tokens, answer.usage.output_tokens) == (40, 7)
    assert [
        result.text for entry in log.entries for result in results_of(entry.message)
    ] == ["one", "two"]
    told = "\n".join(log.warnings)
    assert "line 19: no JSON object" in told
    assert "line 17: no message that can be read" in told
    assert "2 lines left out: a branch that was given up" in told
    for reason in ("a subagent's own", "a notice of the client"):
        assert f"1 line left out: {reason}" in told
    assert [(one.next_entry_index, one.summary) for one in log.compactions] == [
        (5, "This session is being continued…")
    ]
    found = replay(log, options=PLAIN, with_baselines=False)
    assert (found.time_source, len(found.everthread.calls)) == ("log", 2)
    assert found.notes[0].startswith("line 19")


def _item(kind: str, second: int, **payload: Any) -> dict[str, Any]:
    stamp = f"2026-03-01T10:00:{second:02d}.000Z"
    return {
        "timestamp": stamp,
        "type": "response_item",
        "payload": {"type": kind, **payload},
    }


def _codex() -> str:
    usage = {
        "input_tokens": 5_000,
        "cached_input_tokens": 4_096,
        "output_tokens": 60,
        "reasoning_output_tokens": 9,
    }
    count = {
        "type": "token_count",
        "info": {"last_token_usage": usage, "total_token_usage": usage},
    }
    part = {"type": "output_text", "text": "I look."}
    return _lines(
        {
            "type": "session_meta",
            "payload": {"id": "s", "base_instructions": {"text": "You are Codex."}},
        },
        {"type": "turn_context", "payload": {"model": "gpt-5-codex", "effort": "high"}},
        _item(
            "message",
            1,
            role="developer",
            content=[{"type": "input_text", "text": "Sandbox: on."}],
        ),
        _item(
            "message",
            2,
            role="user",
            content=[{"type": "input_text", "text": "Why is it red?"}],
        ),
        {
            "type": "event_msg",
            "payload": {"type": "user_message", "message": "Why is it red?"},
        },
        "garbage",
        _item("reasoning", 3, summary=[], encrypted_content="abc"),
        _item("message", 4, role="assistant", content=[part]),
        _item(
            "function_call",
            4,
            name="shell",
            arguments='{"command": ["make"]}',
            call_id="call_1",
        ),
        {"type": "event_msg", "payload": count},
        _item("function_call_output", 9, call_id="call_1", output="error: no rule"),
        {"type": "compacted", "payload": {"message": "So far …"}},
        _item(
            "custom_tool_call",
            10,
            name="apply_patch",
            input="*** Begin Patch",
            call_id="call_2",
        ),
        {"type": "event_msg", "payload": {"type": "token_count", "info": None}},
        _item("custom_tool_call_output", 11, call_id="call_2", output="ok"),
        _item(
            "message",
            12,
            role="assistant",
            content=[{"type": "output_text", "text": "Green now."}],
        ),
        _item("message", 13, content=["no role"]),
    )


def test_codexs_rollouts() -> None:
    log = parse_log(_codex(), "rollout.jsonl")
    assert (log.kind, log.model, log.system) == (
        "codex",
        "gpt-5-codex",
        "You are Codex.",
    )
    assert [entry.message["role"] for entry in log.entries] == [
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
    assert (
        first.usage.prompt_tokens,
        first.usage.cache_read_tokens,
        first.usage.output_tokens,
    ) == (5_000, 4_096, 60)
    assert log.entries[4].usage is None
    assert log.entries[3].timestamp == parse_time("2026-03-01T10:00:09+00:00")
    told = "\n".join(log.warnings)
    assert "line 6: no JSON object" in told
    assert "line 17: no item that can be read" in told
    assert [(one.next_entry_index, one.summary) for one in log.compactions] == [
        (4, "So far …")
    ]
    found = replay(log, options=PLAIN, with_baselines=False)
    assert found.everthread.calls[0].output_tokens == 60
    assert [round(call.sent_at) for call in found.everthread.calls] == [0, 7, 9]


def _count(prompt: int, in_all: int, window: int = 258_400) -> dict[str, Any]:
    usage = {
        "input_tokens": prompt,
        "cached_input_tokens": prompt // 2,
        "output_tokens": 60,
    }
    total = {"total_tokens": in_all}
    info = {
        "last_token_usage": usage,
        "total_token_usage": total,
        "model_context_window": window,
    }
    return {"type": "event_msg", "payload": {"type": "token_count", "info": info}}


def test_codex_counts_tokens_after_the_outputs_of_the_tools() -> None:
    log = parse_log(
        _lines(
            {"type": "turn_context", "payload": {"model": "gpt-5.5"}},
            _item(
                "message",
                1,
                role="user",
                content=[{"type": "input_text", "text": "Why is it red?"}],
            ),
            _item("function_call", 2, name="shell", arguments="{}", call_id="call_1"),
            _item("function_call", 2, name="shell", arguments="{}", call_id="call_2"),
            _item("function_call_output", 3, call_id="call_1", output="one"),
            _item("function_call_output", 4, call_id="call_2", output="two"),
            _count(20_000, 20_060),
            _count(20_000, 20_060),  # repeated with new rate limits
            _item("function_call", 5, name="shell", arguments="{}", call_id="call_3"),
            _count(20_000, 20_060),  # and once more, while the next call runs
            _item("function_call_output", 6, call_id="call_3", output="three"),
            _count(21_000, 41_120),
            {"type": "compacted", "payload": {"message": ""}},
            _count(9_000, 50_180),  # of the summary
            _item(
                "message",
                9,
                role="assistant",
                content=[{"type": "output_text", "text": "Green."}],
            ),
            _count(7_000, 57_240),
        )
    )
    answers = [entry for entry in log.entries if entry.message["role"] == "assistant"]
    assert [entry.usage.prompt_tokens for entry in answers if entry.usage] == [
        20_000,
        21_000,
        7_000,
    ]
    assert log.window == 258_400
    assert replay(log, options=PLAIN, with_baselines=False).window == 258_400


def test_every_answer_of_a_recorded_codex_session_has_its_usage() -> None:
    for path in sorted(shared_path("logs").glob("codex-*.jsonl.gz")):
        log = parse_log(gzip.decompress(path.read_bytes()).decode())
        answers = [
            entry for entry in log.entries if entry.message["role"] == "assistant"
        ]
        assert sum(entry.usage is not None for entry in answers) >= 0.99 * len(answers)
        assert log.window == 258_400


def test_codexs_older_rollouts_hold_bare_items() -> None:
    log = parse_log(
        _lines(
            {
                "id": "s",
                "timestamp": "2025-08-01T10:00:00Z",
                "instructions": "Be careful.",
            },
            {"record_type": "state"},
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Hi"}],
            },
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Hello"}],
            },
        )
    )
    assert (log.kind, log.system, len(log.entries)) == ("codex", "Be careful.", 2)


def test_messages_in_every_plain_form() -> None:
    chat: list[Any] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi", "timestamp": "2026-01-01T00:00:00Z"},
        {"role": "assistant", "content": "Hello", "created_at": 1_767_225_605},
    ]
    for log in (
        parse_log(json.dumps(chat)),
        parse_log(json.dumps({"messages": chat})),
        parse_log(_lines(*chat, "x{")),
    ):
        assert (log.system, [entry.message["content"] for entry in log.entries]) == (
            "Be kind.",
            ["Hi", "Hello"],
        )
        assert [entry.timestamp for entry in log.entries] == [
            1_767_225_600.0,
            1_767_225_605.0,
        ]
    assert parse_log(_lines(*chat, "x{", {"note": 1})).warnings == [
        "line 4: no JSON object; skipped",
        "line 5: no message with a role; skipped",
    ]
    claude = {"system": "Be kind.", "messages": chat[1:], "model": CLAUDE}
    assert parse_log(json.dumps(claude)).kind == "anthropic"
    responses = {
        "input": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello"},
        ]
    }
    assert len(parse_log(json.dumps(responses)).entries) == 2


def test_usage_of_every_shape_finds_its_answer() -> None:
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
    ] * 2
    usage: list[Any] = [
        {
            "before_message": 1,
            "prompt": 90,
            "output": 4,
            "model": "gpt-4.1",
            "cost_usd": 0.25,
        },
        {"before_message": 2, "prompt": 1},
        {
            "before_message": 3,
            "input_tokens": 8,
            "cache_read_input_tokens": 70,
            "output_tokens": 5,
        },
        "no entry",
    ]
    log = parse_log(json.dumps({"messages": messages, "usage": usage}))
    first = log.entries[1]
    second = log.entries[3]
    assert log.entries[2].usage is None
    assert first.usage is not None
    assert second.usage is not None
    assert (
        log.model,
        first.cost,
        first.usage.prompt_tokens,
        first.usage.output_tokens,
    ) == ("gpt-4.1", 0.25, 90, 4)
    assert second.usage.cache_read_tokens == 70
    in_order = parse_log(
        json.dumps(
            {
                "messages": messages,
                "usage": [{"prompt": 7}, {"prompt": 9}, {"prompt": 11}],
            }
        )
    )
    assert [entry.usage.prompt_tokens for entry in in_order.entries if entry.usage] == [
        7,
        9,
    ]


def _pi() -> str:
    """A session with a branch that was given up, a call, a summary of the client and a line cut short."""
    call = {
        "type": "toolCall",
        "id": "c1",
        "name": "bash",
        "arguments": {"command": "ls"},
    }
    used = {
        "input": 10,
        "output": 5,
        "cacheRead": 100,
        "cacheWrite": 7,
        "cost": {"total": 0.02},
    }
    answer = {"role": "assistant", "model": CLAUDE, "usage": used}
    thought = {"type": "thinking", "thinking": "Look first."}
    found = {
        "role": "toolResult",
        "toolCallId": "c1",
        "toolName": "bash",
        "content": [{"type": "text", "text": "a.py"}],
    }
    entries: list[tuple[str, str | None, dict[str, Any]]] = [
        ("1", None, {"role": "user", "content": "Fix it."}),
        ("2", "1", {**answer, "content": [{"type": "text", "text": "Given up."}]}),
        (
            "3",
            "1",
            {**answer, "content": [thought, {"type": "text", "text": "I look."}, call]},
        ),
        ("4", "3", found),
        ("6", "5", {**answer, "content": [{"type": "text", "text": "Fixed."}]}),
    ]
    lines: list[Any] = [
        {
            "type": "message",
            "id": key,
            "parentId": parent,
            "timestamp": f"2026-03-01T10:00:0{key}Z",
            "message": message,
        }
        for key, parent, message in entries
    ]
    lines.insert(
        4, {"type": "compaction", "id": "5", "parentId": "4", "summary": "Looked."}
    )
    return _lines(
        {"type": "session", "version": 3, "id": "s-1", "cwd": "/work"}, *lines, "{cut"
    )


def _opencode() -> dict[str, Any]:
    tool = {
        "type": "tool",
        "callID": "c1",
        "tool": "bash",
        "state": {"status": "completed", "input": {"command": "ls"}, "output": "a.py"},
    }
    tokens = {
        "input": 3,
        "output": 4,
        "reasoning": 1,
        "cache": {"read": 50, "write": 2},
    }
    end = {"type": "step-finish", "tokens": tokens, "cost": 0.01}
    steps = [
        {"type": "step-start"},
        {"type": "reasoning", "text": "Look first."},
        {"type": "text", "text": "I look."},
        tool,
        end,
        {"type": "step-start"},
        {"type": "text", "text": "Fixed."},
        end,
    ]
    info = {
        "id": "msg_2",
        "role": "assistant",
        "modelID": CLAUDE,
        "time": {"created": 1_767_225_605_000},
    }
    asked = {"id": "msg_1", "role": "user", "time": {"created": 1_767_225_600_000}}
    return {
        "info": {"id": "ses_1", "projectID": "p", "title": "Fix it"},
        "messages": [
            {"info": asked, "parts": [{"type": "text", "text": "Fix it."}]},
            {"info": info, "parts": steps},
            {
                "info": {**info, "summary": True},
                "parts": [{"type": "text", "text": "A summary."}],
            },
        ],
    }


def test_pi() -> None:
    log = parse_log(_pi())
    assert (log.kind, log.session, log.model) == ("pi", "s-1", CLAUDE)
    assert [entry.message["role"] for entry in log.entries] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    asked, looked, result, last = log.entries
    assert text_of(asked.message) == "Fix it."
    assert [call.parsed for call in calls_of(looked.message)] == [{"command": "ls"}]
    assert looked.message["reasoning_content"] == "Look first."
    assert [(one.call_id, one.text) for one in results_of(result.message)] == [
        ("c1", "a.py")
    ]
    assert text_of(last.message) == "Fixed."
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.cost, last.timestamp) == (
        117,
        0.02,
        parse_time("2026-03-01T10:00:06Z"),
    )
    assert log.warnings == [
        "line 8: no JSON object; skipped",
        "1 line left out: branches that were given up",
    ]
    assert [(one.next_entry_index, one.summary) for one in log.compactions] == [
        (3, "Looked.")
    ]


def test_opencode() -> None:
    exported = _opencode()
    log = parse_log(json.dumps(exported))
    assert (log.kind, log.session, log.title, log.model) == (
        "opencode",
        "ses_1",
        "Fix it",
        CLAUDE,
    )
    assert [entry.message["role"] for entry in log.entries] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [call.parsed for call in calls_of(log.entries[1].message)] == [
        {"command": "ls"}
    ]
    assert log.entries[1].usage is not None
    assert (log.entries[1].usage.prompt_tokens, log.entries[1].cost) == (55, 0.01)
    assert log.warnings == []
    assert [(one.next_entry_index, one.summary) for one in log.compactions] == [
        (4, "A summary.")
    ]


def test_sessions_of_opencodes_database_are_found_and_read(tmp_path: Path) -> None:
    exported = _opencode()
    folder = tmp_path / "opencode"
    folder.mkdir()
    database = folder / "opencode.db"
    connection = sqlite3.connect(database)
    connection.executescript(
        "CREATE TABLE session (id text, parent_id text, title text, time_created integer);"
        "CREATE TABLE message (id text, session_id text, time_created integer, data text);"
        "CREATE TABLE part (id text, message_id text, session_id text, data text);"
        "INSERT INTO session VALUES ('ses_1', NULL, 'Fix it', 1), ('ses_2', 'ses_1', 'A subagent', 2);"
    )
    for number, entry in enumerate(exported["messages"]):
        message = (f"msg_{number}", "ses_1", number, json.dumps(entry["info"]))
        connection.execute("INSERT INTO message VALUES (?, ?, ?, ?)", message)
        for at, part in enumerate(entry["parts"]):
            row = (f"prt_{number}_{at}", f"msg_{number}", "ses_1", json.dumps(part))
            connection.execute("INSERT INTO part VALUES (?, ?, ?, ?)", row)
    connection.commit()
    connection.close()
    found = find_logs("opencode", env={"XDG_DATA_HOME": str(tmp_path)})
    assert found == [f"{database}#ses_1"]
    log = read_log(found[0])
    same = parse_log(json.dumps(exported))
    assert (log.messages, log.session, log.title) == (
        same.messages,
        same.session,
        same.title,
    )
    assert read_conversation(found[0]).request.messages == log.messages
    with pytest.raises(TranscriptError, match="#ses_9: has no session ses_9"):
        read_log(f"{database}#ses_9")
    with pytest.raises(
        TranscriptError,
        match=r"is a database; of opencode's, .*#SESSION_ID is one conversation",
    ):
        read_log(str(database))
    with sqlite3.connect(database) as changed:
        changed.execute("ALTER TABLE session RENAME TO session_v2")
    with pytest.raises(
        TranscriptError,
        match="no such table: session; `opencode export ID` writes one session",
    ):
        find_logs("opencode", env={"XDG_DATA_HOME": str(tmp_path)})


async def test_a_log_becomes_a_thread_once(tmp_path: Path) -> None:
    store = open_store(tmp_path / "x.db")
    try:
        first = await import_log(store, parse_log(_pi()))
        again = await import_log(store, parse_log(_pi()))
        assert (first[0], first[1], again) == (
            make_thread_id(parse_log(_pi())),
            4,
            (first[0], 0),
        )
        assert [message.body["role"] for message in await store.history(first[0])] == [
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        session = await store.session(first[0])
        assert (session.title, session.platform, session.model) == (
            "Fix it.",
            "pi",
            CLAUDE,
        )
        assert [
            record.usage.prompt_tokens for record in await store.usage(first[0])
        ] == [117, 117]
    finally:
        await store.close()


def test_where_logs_are_found(tmp_path: Path) -> None:
    places = {
        "claude-code": ".claude/projects/p/1.jsonl",
        "codex": ".codex/sessions/2026/01/02/rollout-1.jsonl",
        "pi": ".pi/agent/sessions/--p--/1.jsonl",
        "copilot": ".copilot/session-state/1/events.jsonl",
        "gemini-cli": ".gemini/tmp/p/chats/session-1.jsonl",
    }
    for client, place in places.items():
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text("{}", "utf-8")
        assert find_logs(client, home=tmp_path, env={}) == [str(tmp_path / place)]
    with pytest.raises(
        InputError,
        match="use one of: claude-code, codex, pi, opencode, copilot, gemini-cli",
    ):
        find_logs("vim")
    with pytest.raises(
        InputError,
        match=r"no sessions of opencode in .*share/opencode; XDG_DATA_HOME names another",
    ):
        find_logs("opencode", home=tmp_path, env={})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("not json at all", "is not JSON"),
        ("[1, 2]", "message 0 is not an object with a role"),
        ('{"a": 1}', "no line has a role; the keys of the first are: a"),
        ('[{"role": "user", "content": "Hi"}]', "holds no answer of a model"),
        ("[" * 100_000, "is nested too deeply|is not JSON"),
    ],
)
def test_a_file_that_is_no_conversation_is_refused(
    text: str, told: str, tmp_path: Path
) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text(text, "utf-8")
    with pytest.raises(TranscriptError, match=told):
        read_log(str(file))
    with pytest.raises(TranscriptError, match="cannot be read"):
        read_log(str(tmp_path / "absent.jsonl"))


@given(st.sampled_from([_claude_code(), _codex(), _pi()]), st.data())
def test_a_log_cut_and_spoilt_anywhere_is_read_or_refused(
    text: str, data: st.DataObject
) -> None:
    lines = text.split("\n")
    for _ in range(3):
        at = data.draw(st.integers(0, len(lines) - 1))
        lines[at] = data.draw(
            st.sampled_from(
                ["null", "[]", "{", '{"type": 3}', lines[at][: len(lines[at]) // 2]]
            )
        )
    values = [
        json.loads(line)
        for line in lines
        if line.startswith("{") and line.endswith("}}")
    ]
    for value in values[:2]:
        for key in value:
            spoilt = {
                **value,
                key: data.draw(
                    st.sampled_from([None, 7, "x", [], {"role": 5}, {"type": []}])
                ),
            }
            lines.append(json.dumps(spoilt))
    try:
        log = parse_log("\n".join(lines))
    except TranscriptError:
        return
    assert log.warnings
    assert all(entry.message["role"] for entry in log.entries)


def test_times_and_line_numbers() -> None:
    assert (
        parse_time("2026-01-01T00:00:00Z")
        == parse_time(1_767_225_600_000)
        == parse_time(1_767_225_600)
    )
    assert [parse_time(value) for value in ("soon", None, True, -5)] == [None] * 4
    assert format_line_numbers([4]) == "line 4"
    assert format_line_numbers([1, 2, 9]) == "lines 1, 2 and 9"
    assert (
        format_line_numbers([*range(20)])
        == "lines 0, 1, 2, 3, 4, 5, 6, 7, … (20 in all)"
    )
