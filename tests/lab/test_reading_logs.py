"""Finding, reading and importing logs of any format; invalid files are refused or reported."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.errors import InputError, TranscriptError
from everthread.factory import open_store
from everthread.lab.importers.client_log import format_line_numbers
from everthread.lab.importers.find_logs import find_logs
from everthread.lab.importers.line_file import LineFile
from everthread.lab.importers.log_fields import parse_time
from everthread.lab.importers.read_logs import open_lines, parse_log, read_log
from everthread.lab.importers.thread_import import import_log, make_thread_id
from tests.lab.recorded_logs import CLAUDE, parse_sample, sample_text
from tests.shared_data import shared_path

CHAT: list[Any] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hi", "timestamp": "2026-01-01T00:00:00Z"},
    {"role": "assistant", "content": "Hello", "created_at": 1_767_225_605},
]
SESSION = [
    {
        "type": role,
        "uuid": f"u{number}",
        "parentUuid": f"u{number - 1}" if number else None,
        "sessionId": "s1",
        "message": {"role": role, "content": f"{role} says {number}"},
    }
    for number, role in enumerate(("user", "assistant", "user", "assistant"))
]


def join_lines(*values: Any) -> str:
    """Join values as JSON lines; a text is a line already."""
    return "\n".join(value if isinstance(value, str) else json.dumps(value) for value in values)


SESSION_TEXT = join_lines("\ufeff" + json.dumps(SESSION[0]), "", *SESSION[1:])
"""A log with a byte order mark and a blank line."""


@pytest.mark.parametrize(
    "text",
    [json.dumps(CHAT), json.dumps({"messages": CHAT}), join_lines(*CHAT, "x{")],
    ids=["list", "request", "lines"],
)
def test_reads_chat_messages_with_their_times(text: str) -> None:
    log = parse_log(text)
    assert log.system == "Be kind."
    assert [message["content"] for message in log.messages] == ["Hi", "Hello"]
    assert [entry.timestamp for entry in log.entries] == [
        1_767_225_600.0,
        1_767_225_605.0,
    ]


def test_warns_of_lines_without_a_message() -> None:
    assert parse_log(join_lines(*CHAT, "x{", {"note": 1})).warnings == [
        "line 4: no JSON object; skipped",
        "line 5: no message with a role; skipped",
    ]


def test_reads_requests_of_other_protocols() -> None:
    claude = {"system": "Be kind.", "messages": CHAT[1:], "model": CLAUDE}
    assert parse_log(json.dumps(claude)).kind == "anthropic"
    items = [{"role": message["role"], "content": "Hi"} for message in CHAT[1:]]
    assert len(parse_log(json.dumps({"input": items})).entries) == 2


def test_adds_usage_to_the_answers_that_it_names() -> None:
    messages = [{"role": "user"} | CHAT[1], CHAT[2]] * 2
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
    _, first, second_question, second = log.entries
    assert second_question.usage is None
    assert first.usage is not None
    assert (first.usage.prompt_tokens, first.usage.output_tokens) == (90, 4)
    assert (log.model, first.cost) == ("gpt-4.1", 0.25)
    assert second.usage is not None
    assert second.usage.cache_read_tokens == 70


def test_adds_usage_to_the_answers_in_order() -> None:
    usage = [{"prompt": 7}, {"prompt": 9}, {"prompt": 11}]
    log = parse_log(json.dumps({"messages": CHAT[1:] * 2, "usage": usage}))
    assert [entry.usage.prompt_tokens for entry in log.entries if entry.usage] == [7, 9]


@pytest.mark.parametrize("is_packed", [False, True])
def test_reads_lines_again_on_each_pass(tmp_path: Path, *, is_packed: bool) -> None:
    file = tmp_path / "session.jsonl"
    content = f"{SESSION_TEXT}\n[1]\n{{broken\n".encode()
    file.write_bytes(gzip.compress(content) if is_packed else content)
    lines = open_lines(str(file))
    assert lines is not None
    assert list(lines) == list(lines)
    assert [number for number, _ in lines] == [1, 3, 4, 5]
    assert lines.bad_line_numbers == {6, 7}
    assert lines.first_object == SESSION[0]


def test_a_file_and_its_text_give_the_same_log(tmp_path: Path) -> None:
    file = tmp_path / "session.jsonl"
    file.write_text(f"{SESSION_TEXT}\nnoise\n", "utf-8")
    log = read_log(str(file))
    assert log == parse_log(file.read_text("utf-8-sig"), str(file))
    assert log.warnings == ["line 6: no JSON object; skipped"]


@pytest.mark.parametrize("text", ["{}", "[1]\n[2]\n", "", "{\n}\n"])
def test_does_not_open_other_formats_as_lines(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text, "utf-8")
    assert open_lines(str(file)) is None


@pytest.mark.parametrize("file", ["/nowhere/absent.jsonl", "-"])
def test_does_not_open_absent_files_and_standard_input_as_lines(file: str) -> None:
    assert open_lines(file) is None


def test_refuses_a_truncated_gzip_file(tmp_path: Path) -> None:
    file = tmp_path / "cut.jsonl.gz"
    noise = [json.dumps({"n": number * 7919 % 104729}) for number in range(50_000)]
    file.write_bytes(gzip.compress("\n".join(noise).encode())[:-2_000])
    with pytest.raises(TranscriptError, match="cannot be unpacked"):
        list(LineFile(file, str(file)))


def test_reads_gzipped_json(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps(CHAT).encode())
    file = tmp_path / "session.jsonl.gz"
    file.write_bytes(packed)
    assert len(read_log(str(file)).entries) == 2
    file.write_bytes(packed[:20])
    with pytest.raises(TranscriptError, match="cannot be unpacked"):
        read_log(str(file))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("not json at all", "is not JSON"),
        ("[1, 2]", "message 0 is not an object with a role"),
        ('{"a": 1}', "no line has a role; the keys of the first are: a"),
        ('[{"role": "user", "content": "Hi"}]', "holds no answer of a model"),
        ("[" * 100_000, "is nested too deeply|is not JSON"),
        (
            '{"event": "x"}\n{"event": "y"}',
            r"Supported: .*Claude Code, Codex, Copilot CLI, Gemini CLI, opencode and pi",
        ),
    ],
)
def test_refuses_a_file_without_a_conversation(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text(text, "utf-8")
    with pytest.raises(TranscriptError, match=reason):
        read_log(str(file))


def test_refuses_an_absent_file(tmp_path: Path) -> None:
    with pytest.raises(TranscriptError, match="cannot be read"):
        read_log(str(tmp_path / "absent.jsonl"))


@given(st.sampled_from(["claude_code.jsonl", "codex.jsonl", "pi.jsonl"]), st.data())
def test_reads_or_refuses_a_log_with_any_damage(name: str, data: st.DataObject) -> None:
    lines = sample_text(name).split("\n")
    for _ in range(3):
        index = data.draw(st.integers(0, len(lines) - 1))
        half_line = lines[index][: len(lines[index]) // 2]
        damages = ["null", "[]", "{", '{"type": 3}', half_line]
        lines[index] = data.draw(st.sampled_from(damages))
    values = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}}")]
    wrong_values: st.SearchStrategy[Any] = st.sampled_from(
        [None, 7, "x", [], {"role": 5}, {"type": []}]
    )
    for value in values[:2]:
        lines += [json.dumps(value | {key: data.draw(wrong_values)}) for key in value]
    try:
        log = parse_log("\n".join(lines))
    except TranscriptError:
        return
    assert log.warnings
    assert all(message["role"] for message in log.messages)


@pytest.mark.parametrize("time", ["2026-01-01T00:00:00Z", 1_767_225_600_000, 1_767_225_600])
def test_parses_times(time: str | int) -> None:
    assert parse_time(time) == 1_767_225_600


@pytest.mark.parametrize("time", ["soon", None, True, -5])
def test_does_not_parse_other_values_as_times(time: object) -> None:
    assert parse_time(time) is None


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ([4], "line 4"),
        ([1, 2, 9], "lines 1, 2 and 9"),
        ([*range(20)], "lines 0, 1, 2, 3, 4, 5, 6, 7, … (20 in all)"),
    ],
)
def test_formats_line_numbers(lines: list[int], text: str) -> None:
    assert format_line_numbers(lines) == text


@pytest.mark.parametrize(
    ("client", "path"),
    [
        ("claude-code", ".claude/projects/p/1.jsonl"),
        ("codex", ".codex/sessions/2026/01/02/rollout-1.jsonl"),
        ("pi", ".pi/agent/sessions/--p--/1.jsonl"),
        ("copilot", ".copilot/session-state/1/events.jsonl"),
        ("gemini-cli", ".gemini/tmp/p/chats/session-1.jsonl"),
    ],
)
def test_finds_the_logs_of_a_client(client: str, path: str, tmp_path: Path) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text("{}", "utf-8")
    assert find_logs(client, home=tmp_path, env={}) == [str(file)]


def test_explains_why_it_finds_no_logs(tmp_path: Path) -> None:
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


async def test_imports_a_log_as_a_thread_once(tmp_path: Path) -> None:
    log = parse_sample("pi.jsonl")
    store = open_store(tmp_path / "x.db")
    try:
        thread, count = await import_log(store, log)
        assert (thread, count) == (make_thread_id(log), 4)
        assert await import_log(store, log) == (thread, 0)
        history = await store.load_history(thread)
        roles = ["user", "assistant", "tool", "assistant"]
        assert [message.body["role"] for message in history] == roles
        session = await store.load_session(thread)
        assert (session.title, session.platform) == ("Fix it.", "pi")
        assert session.model == CLAUDE
        records = await store.usage.list_usage(thread)
        assert [record.usage.prompt_tokens for record in records] == [117, 117]
    finally:
        await store.close()


def test_reads_every_recorded_session_whole() -> None:
    for path in sorted(shared_path("logs").glob("*.jsonl.gz")):
        log = read_log(str(path))
        answers = [entry for entry in log.entries if entry.message["role"] == "assistant"]
        assert all(entry.timestamp and entry.model for entry in answers), path
        usage_count = sum(entry.usage is not None for entry in answers)
        assert usage_count >= 0.99 * len(answers), path
        assert log.kind == "copilot" or log.compactions, path
