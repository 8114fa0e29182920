"""Logs of today's clients: the user's text, the client's additions, usage of streams, windows, their compactions."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everthread.core.messages import calls_of, results_of, text_of
from everthread.core.turns import is_user_message, user_text
from everthread.errors import TranscriptError
from everthread.lab.importers.claude_code import ClaudeCodeReader
from everthread.lab.importers.log import Log, LoggedMessage
from everthread.lab.importers.log_fields import parse_time
from everthread.lab.importers.read_logs import parse_log, read_log
from everthread.lab.replay import replay
from tests.lab.recorded_histories import PLAIN
from tests.shared_data import shared_path

STAMP = "2026-06-01T10:00:00.000Z"


def _parse(*values: Any) -> Log:
    return parse_log("\n".join(json.dumps(value) for value in values))


def _user_words(log: Log) -> list[str]:
    return [
        user_text(message).strip()
        for message in log.messages
        if is_user_message(message)
    ]


def _line(kind: str, content: Any, **more: Any) -> dict[str, Any]:
    message = {"role": kind, "content": content, **more.pop("message", {})}
    return {
        "type": kind,
        "uuid": more.pop("uuid", ""),
        "timestamp": STAMP,
        "message": message,
        **more,
    }


def _answer(content: Any, output: int, name: str, **message: Any) -> dict[str, Any]:
    usage = {"input_tokens": 9, "cache_read_input_tokens": 90, "output_tokens": output}
    fields = {"id": name, "model": "claude-opus-4-6", "usage": usage, **message}
    return _line("assistant", content, message=fields)


def _call(name: str, number: str = "toolu_1", **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": number, "name": name, "input": given}


def _result(text: str, number: str = "toolu_1") -> dict[str, Any]:
    return {
        "type": "tool_result",
        "tool_use_id": number,
        "content": text,
        "is_error": True,
    }


def _attachment(**attachment: Any) -> dict[str, Any]:
    return {"type": "attachment", "timestamp": STAMP, "attachment": attachment}


def test_claude_code_tells_the_users_words_from_its_own() -> None:
    rejected = (
        "The user doesn't want to proceed with this tool use. "
        "To tell you how to proceed, the user said:\nUse tabs."
    )
    log = _parse(
        _line("user", "Fix it."),
        _line(
            "user",
            [{"type": "text", "text": "Base directory for this skill: /s"}],
            isMeta=True,
        ),
        _answer([_call("Edit"), _call("Edit", "toolu_2")], 7, "m1"),
        _line("user", [_result(rejected), _result("ok", "toolu_2")]),
        _attachment(
            type="queued_command",
            prompt="And the docs.",
            commandMode="prompt",
            origin={"kind": "human"},
        ),
        _attachment(
            type="queued_command",
            prompt="Task 7 is done.",
            commandMode="task-notification",
        ),
        _attachment(
            type="nested_memory",
            path="/r",
            content={"content": "Two spaces.", "rawContent": "Two spaces."},
        ),
        _attachment(type="hook_success", hookEvent="PostToolUse", content="not sent"),
        _line(
            "user",
            "<task-notification>done</task-notification>",
            origin={"kind": "task-notification"},
        ),
        _answer("Done.", 3, "m2"),
    )
    assert _user_words(log) == ["Fix it.", "Use tabs.", "And the docs."]
    assert [message["role"] for message in log.messages[2:6]] == [
        "assistant",
        "tool",
        "tool",
        "user",
    ]
    said = "\n".join(text_of(message) for message in log.messages)
    assert (
        said.count("Two spaces.")
        == said.count("Task 7 is done.")
        == said.count("Base directory")
        == 1
    )
    assert "not sent" not in said
    assert "Use tabs." not in "".join(
        result.text for message in log.messages for result in results_of(message)
    )


def test_claude_codes_streams_state_their_output_in_any_line() -> None:
    log = _parse(
        _line("user", "Fix it."),
        _answer([{"type": "text", "text": "I look."}], 400, "m1"),
        _answer(
            [_call("ExitPlanMode", plan="# The plan, as the file has it")], 2, "m1"
        ),
        _line("user", [_result("ok")]),
        _answer("Done: " + "many words " * 200, 1, "m2"),
    )
    first, second = (
        entry for entry in log.entries if entry.message["role"] == "assistant"
    )
    assert first.usage is not None
    assert first.usage.output_tokens == 400
    assert [call.parsed for call in calls_of(first.message)] == [{}]
    assert second.usage is not None
    outputs = [
        call.output_tokens
        for call in replay(log, options=PLAIN, with_baselines=False).everthread.calls
    ]
    assert outputs[0] == 400
    assert outputs[1] > 300, (
        "the figure of a stream's beginning is not the answer's size"
    )


def test_claude_codes_log_is_read_as_it_is_stored() -> None:
    values = [
        _line("user", "look at both files", uuid="1"),
        _answer([{"type": "text", "text": "Reading."}], 1, "msg_1"),
        _answer([_call("read", "toolu_1", path="a")], 1, "msg_1"),
        _line("user", [_result("one", "toolu_1")]),
        _answer([_call("read", "toolu_2", path="b")], 9, "msg_1"),
        _line("user", [_result("two", "toolu_2")]),
        _answer([{"type": "text", "text": "Done."}], 3, "msg_2"),
        _line("user", "thanks", uuid="2"),
    ]
    lines = list(enumerate(values, 1))
    seen: list[int] = []

    class Lines:
        def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
            for number, value in lines:
                seen.append(number)
                yield number, value

    stream = ClaudeCodeReader().stream(Lines(), "log")
    assert stream.log.model == "claude-opus-4-6"
    seen.clear()
    given = {}
    entries: list[LoggedMessage] = []
    for entry in stream.entries:
        given[len(entries)] = seen[-1]
        entries.append(entry)
    assert entries == ClaudeCodeReader().read(lines, "log").entries
    # An answer and everything after it wait for its last line, the others for nothing.
    assert given == {0: 1, 1: 5, 2: 5, 3: 6, 4: 7, 5: 8}


def _boundary(before: int, trigger: str = "auto") -> dict[str, Any]:
    metadata = {"trigger": trigger, "preTokens": before}
    return {
        "type": "system",
        "subtype": "compact_boundary",
        "timestamp": STAMP,
        "compactMetadata": metadata,
    }


@pytest.mark.parametrize(
    ("model", "boundary", "window"),
    [
        ("claude-opus-4-6", _boundary(167_000), 200_000),
        ("claude-opus-4-6", _boundary(297_000, "manual"), 1_000_000),
        ("claude-opus-4-6[1m]", {"type": "mode"}, 1_000_000),
        ("claude-opus-4-6", {"type": "mode"}, None),
    ],
)
def test_claude_codes_window_is_that_of_the_log(
    model: str, boundary: Any, window: int | None
) -> None:
    kept = _attachment(
        type="file",
        filename="a.py",
        content={"type": "text", "file": {"content": "x = 1"}},
    )
    log = _parse(
        _line("user", "Fix it."),
        _answer("One.", 3, "m1", model=model),
        boundary,
        _line("user", "So far: one.", isCompactSummary=True),
        kept,
        _answer("Two.", 3, "m2", model=model),
    )
    assert (log.window, log.model) == (window, "claude-opus-4-6")
    assert [
        (one.next_entry_index, one.summary, one.restored) for one in log.compactions
    ] == [(2, "So far: one.", "a.py\nx = 1")]
    assert replay(log, options=PLAIN, with_baselines=False).window == (
        window or 200_000
    )


def test_copilots_events() -> None:
    request = {"toolCallId": "c1", "name": "bash", "arguments": {"command": "ls"}}
    answer = {
        "content": "I look.",
        "toolRequests": [request],
        "outputTokens": 41,
        "reasoningText": "Look first.",
    }
    events: list[tuple[str, dict[str, Any]]] = [
        ("session.start", {"sessionId": "s-1"}),
        ("session.model_change", {"newModel": "claude-opus-4.8"}),
        ("system.message", {"content": "You are Copilot."}),
        (
            "user.message",
            {
                "content": "Fix it.",
                "transformedContent": "<now>1</now>\n\nFix it.\n\n<tables>none</tables>",
            },
        ),
        ("assistant.turn_start", {"turnId": "0"}),
        ("assistant.message", answer),
        (
            "tool.execution_complete",
            {"toolCallId": "c1", "success": True, "result": {"content": "a.py"}},
        ),
        (
            "session.compaction_complete",
            {
                "success": True,
                "summaryContent": "Looked.",
                "preCompactionTokens": 9_000,
            },
        ),
        ("assistant.message", {"content": "Sub.", "parentToolCallId": "c9"}),
        ("assistant.message", {"content": "Fixed.", "model": "gpt-5.5"}),
    ]
    log = _parse(
        *({"type": kind, "data": data, "timestamp": STAMP} for kind, data in events)
    )
    assert (log.kind, log.session, log.system, log.model) == (
        "copilot",
        "s-1",
        "You are Copilot.",
        "gpt-5.5",
    )
    assert _user_words(log) == ["Fix it."]
    first, last = (
        entry for entry in log.entries if entry.message["role"] == "assistant"
    )
    assert (first.model, first.message["reasoning_content"]) == (
        "claude-opus-4.8",
        "Look first.",
    )
    assert first.usage is not None
    assert (first.usage.output_tokens, first.timestamp) == (41, parse_time(STAMP))
    assert text_of(last.message) == "Fixed."
    assert [one.text for message in log.messages for one in results_of(message)] == [
        "a.py"
    ]
    assert [
        (one.next_entry_index, one.summary, one.tokens_before)
        for one in log.compactions
    ] == [(5, "Looked.", 9_000)]
    assert log.warnings == ["1 line left out: a subagent's own conversation"]


def _gemini(name: str, text: str, **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "timestamp": STAMP,
        "type": "gemini",
        "content": text,
        "model": "gemini-3-pro",
        **more,
    }


def _gemini_session() -> list[dict[str, Any]]:
    response = {
        "functionResponse": {"id": "c1", "name": "ls", "response": {"output": "a.py"}}
    }
    tool = {
        "id": "c1",
        "name": "ls",
        "args": {"path": "."},
        "result": [response],
        "timestamp": STAMP,
    }
    tokens = {"input": 100, "cached": 60, "output": 7, "thoughts": 3}
    user = {"timestamp": STAMP, "type": "user"}
    return [
        {"sessionId": "s-1", "projectHash": "h", "startTime": STAMP},
        {**user, "id": "u1", "content": [{"text": "Fix it."}]},
        _gemini("g1", "I look."),
        _gemini(
            "g1",
            "I look.",
            tokens=tokens,
            toolCalls=[tool],
            thoughts=[{"subject": "Plan", "description": "Look."}],
        ),
        {"$set": {"summary": "Fixing", "lastUpdated": STAMP}},
        {**user, "id": "u2", "content": "Wrong."},
        _gemini("g2", "Given up."),
        {"$rewindTo": "u2"},
        {
            "$set": {
                "messages": [{**user, "id": "s1", "content": [{"text": "Looked."}]}],
                "lastUpdated": STAMP,
            }
        },
        {**user, "id": "u3", "content": [{"text": "And now?"}]},
        _gemini("g3", "Fixed."),
    ]


def test_gemini_cli_may_write_its_history_again_under_new_ids() -> None:
    header = _gemini_session()[0]
    first = {"id": "u0", "type": "user", "content": [{"text": "The setting."}]}
    told = {"id": "u1", "type": "user", "content": [{"text": "Fix it."}]}
    answered = _gemini("g8", "Round 1: next.", tokens={"input": 100})
    both = [{"text": "The setting."}, {"text": "Fix it."}]
    again = [
        {"id": "n1", "type": "user", "content": both},
        {"id": "n2", "type": "gemini", "content": [{"text": "Round 1: next."}]},
        {"id": "n3", "type": "user", "content": [{"functionResponse": {"id": "c"}}]},
    ]
    later = _gemini("g9", "Round 2: next.")
    log = _parse(
        header, first, told, answered, *again, {"$set": {"messages": again}}, later
    )
    assert [text_of(message) for message in log.messages] == [
        "The setting.",
        "Fix it.",
        "Round 1: next.",
        "Round 2: next.",
    ]
    assert log.compactions == []
    assert log.entries[2].usage is not None


def test_gemini_clis_sessions() -> None:
    log = _parse(*_gemini_session())
    assert (log.kind, log.session, log.title, log.model) == (
        "gemini-cli",
        "s-1",
        "Fixing",
        "gemini-3-pro",
    )
    assert [(message["role"], text_of(message)) for message in log.messages] == [
        ("user", "Fix it."),
        ("assistant", "I look."),
        ("tool", "a.py"),
        ("user", "And now?"),
        ("assistant", "Fixed."),
    ]
    usage = log.entries[1].usage
    assert usage is not None
    assert (
        usage.prompt_tokens,
        usage.cache_read_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
    ) == (
        100,
        60,
        10,
        3,
    )
    assert [(one.next_entry_index, one.summary) for one in log.compactions] == [
        (3, "Looked.")
    ]
    header, *records = _gemini_session()[:4]
    assert (
        parse_log(json.dumps({**header, "messages": records})).messages
        == log.messages[:3]
    )


def test_a_damaged_line_of_pi_costs_that_line_only() -> None:
    lines = [json.dumps({"type": "session", "version": 3, "id": "s", "cwd": "/work"})]
    for number in range(6):
        message = {"role": "user", "content": f"Wish {number}"}
        parent = f"m{number - 1}" if number else None
        line = {"type": "message", "id": f"m{number}", "parentId": parent}
        lines.append(json.dumps({**line, "message": message}))
    lines[3] = lines[3][:40]
    log = parse_log("\n".join(lines))
    assert _user_words(log) == ["Wish 0", "Wish 1", "Wish 3", "Wish 4", "Wish 5"]


def test_pi_states_its_system_prompt_tools_and_edits() -> None:
    answer = {
        "role": "assistant",
        "model": "claude-opus-4-6",
        "content": [{"type": "text", "text": "Done."}],
    }
    messages: list[dict[str, Any]] = [
        {
            "role": "system",
            "content": "",
            "sections": {"preamble": "You are pi.", "skills": "None."},
            "toolsAdded": [
                {"name": "read", "description": "Reads.", "parameters": {}},
                {"name": "write"},
            ],
        },
        {"role": "user", "content": "Fix it."},
        {"role": "bashExecution", "command": "ls", "output": "a.py"},
        {
            "role": "bashExecution",
            "command": "secret",
            "output": "x",
            "excludeFromContext": True,
        },
        {
            **answer,
            "usage": {
                "input": 5,
                "output": 6,
                "cacheRead": 70,
                "cacheWrite": 8,
                "cacheWrite1h": 8,
            },
        },
        {
            "role": "system",
            "content": "",
            "sections": {"skills": None},
            "toolsRemoved": [{"name": "write"}],
        },
        {"role": "user", "content": "A very long paste."},
        answer,
    ]
    lines: list[dict[str, Any]] = [
        {
            "type": "message",
            "id": str(at),
            "parentId": str(at - 1) if at else None,
            "timestamp": STAMP,
            "message": one,
        }
        for at, one in enumerate(messages)
    ]
    edit = {
        "type": "context_edit",
        "id": "8",
        "parentId": "7",
        "targetId": "6",
        "replacement": "A paste.",
    }
    summary = {
        "type": "compaction",
        "id": "9",
        "parentId": "8",
        "summary": "Fixed.",
        "firstKeptEntryId": "6",
    }
    log = _parse(
        {"type": "session", "version": 3, "id": "s-1", "cwd": "/w"},
        *lines,
        edit,
        summary,
    )
    assert log.system == "You are pi."
    assert [tool["function"]["name"] for tool in log.tools] == ["read"]
    assert _user_words(log) == ["Fix it.", "A paste."]
    assert "secret" not in json.dumps(log.messages)
    assert "Ran `ls`" in json.dumps(log.messages)
    assert log.entries[2].usage is not None
    assert log.entries[2].usage.cache_write_1h_tokens == 8
    assert [(one.next_entry_index, one.summary) for one in log.compactions] == [
        (5, "Fixed.")
    ]
    assert "A paste." in log.compactions[0].restored


def test_an_unknown_form_names_the_supported_ones(tmp_path: Path) -> None:
    file = tmp_path / "unknown.jsonl"
    file.write_text('{"event": "x"}\n{"event": "y"}', "utf-8")
    with pytest.raises(
        TranscriptError,
        match=r"Supported: .*Claude Code, Codex, Copilot CLI, Gemini CLI, opencode and pi",
    ):
        read_log(str(file))


def test_a_gzipped_log_is_read(tmp_path: Path) -> None:
    packed = tmp_path / "session.jsonl.gz"
    text = json.dumps(
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    )
    packed.write_bytes(gzip.compress(text.encode()))
    assert len(read_log(str(packed)).entries) == 2
    packed.write_bytes(gzip.compress(text.encode())[:20])
    with pytest.raises(TranscriptError, match="cannot be unpacked"):
        read_log(str(packed))


def test_every_recorded_session_is_read_whole() -> None:
    for path in sorted(shared_path("logs").glob("*.jsonl.gz")):
        log = read_log(str(path))
        answers = [
            entry for entry in log.entries if entry.message["role"] == "assistant"
        ]
        assert all(entry.timestamp is not None and entry.model for entry in answers), (
            path
        )
        assert sum(entry.usage is not None for entry in answers) >= 0.99 * len(
            answers
        ), path
        assert log.kind == "copilot" or log.compactions, path
