"""Commands in a real process with real files: output and exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from everthread.cli.main import COMMANDS, load_command
from examples.long_session import conversation
from tests.chat_messages import calls_message, function_call, result_message

OPENAI = [
    {"role": "user", "content": "List the files."},
    calls_message(function_call("c1", "terminal", '{"command": "ls"}')),
    result_message("c1", "main.py\n[bold]odd[/bold] name.py"),
    {"role": "assistant", "content": "Two files."},
]
ANTHROPIC = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 100,
    "system": "Be brief.",
    "tools": [
        {
            "name": "terminal",
            "description": "Run.",
            "input_schema": {"type": "object", "properties": {}},
        }
    ],
    "messages": [
        {"role": "user", "content": "List the files."},
        {
            "role": "assistant",
            "content": [
                {
                    "type": "tool_use",
                    "id": "t1",
                    "name": "terminal",
                    "input": {"command": "ls"},
                }
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "main.py"}
            ],
        },
    ],
}
RESPONSES = {
    "model": "gpt-5",
    "instructions": "Be brief.",
    "input": [{"role": "user", "content": "List the files."}],
}


def write(path: Path, value: Any) -> str:
    path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
    return str(path)


class TestTokens:
    @pytest.mark.parametrize(
        ("value", "api", "messages"),
        [
            (OPENAI, "openai_chat", 4),
            (
                {"messages": OPENAI, "system": None, "tools": None, "usage": []},
                "openai_chat",
                4,
            ),
            (
                "\n".join(json.dumps(message) for message in OPENAI) + "\n\n",
                "openai_chat",
                4,
            ),
            (json.dumps(OPENAI[0]), "openai_chat", 1),
            (ANTHROPIC, "anthropic", 3),
            (RESPONSES, "openai_responses", 1),
        ],
    )
    def test_every_form_is_read(
        self, everthread: Any, tmp_path: Path, value: Any, api: str, messages: int
    ) -> None:
        shown = everthread.succeeds(
            "tokens", write(tmp_path / "session.json", value), "--json", "--messages"
        )
        report = json.loads(shown)
        assert report["api"] == api
        assert len(report["messages"]) == messages
        assert sum(row["tokens"] for row in report["messages"]) == sum(
            r["tokens"] for r in report["by_role"].values()
        )
        assert (
            report["total"]
            >= sum(row["tokens"] for row in report["messages"]) + report["system"]
        )

    def test_a_table_for_people(self, everthread: Any, tmp_path: Path) -> None:
        shown = everthread.succeeds(
            "tokens",
            write(tmp_path / "s.json", OPENAI),
            "--window",
            "1000",
            "--top",
            "2",
        )
        for words in (
            "role",
            "terminal",
            "the biggest messages",
            "of a window of 1,000",
            "[bold]odd[/bold] name.py",
        ):
            assert words in shown

    def test_standard_input(self, everthread: Any) -> None:
        report = everthread.json("tokens", "-", given=json.dumps(OPENAI).encode())
        assert report["source"] == "standard input"

    def test_the_window_comes_from_the_configuration(
        self, everthread: Any, home: Path
    ) -> None:
        home.mkdir()
        (home / "config.yaml").write_text("model: {context_length: 32000}", "utf-8")
        report = everthread.json(
            "tokens", "-", given=b'[{"role": "user", "content": "hi"}]'
        )
        assert (report["window"], report["window_source"]) == (32000, "configuration")

    def test_an_empty_conversation(self, everthread: Any) -> None:
        assert everthread("tokens", "-", given=b"[]").returncode == 0
        assert everthread("inspect", "-", given=b"[]").returncode == 0


class TestInspect:
    def test_problems_and_repairs_are_listed(self, everthread: Any) -> None:
        given = json.dumps(
            [
                {"role": "assistant", "content": "Hi!"},
                *OPENAI[:2],
                {"role": "user", "content": "Stop."},
            ]
        ).encode()
        report = everthread.json("inspect", "-", given=given)
        assert [turn["user"] for turn in report["turns"]] == [
            "",
            "List the files.",
            "Stop.",
        ]
        assert report["groups"] == [
            {"assistant": 2, "calls": 1, "results": 0, "missing": ["c1"]}
        ]
        assert [p["rule"] for p in report["problems"]["openai"]] == ["missing-result"]
        assert [p["rule"] for p in report["problems"]["anthropic"]] == [
            "starts-with-assistant",
            "missing-result",
        ]
        assert len(report["repair"]) == 2
        shown = everthread("inspect", "-", given=given).stdout
        for words in (
            "3 turns",
            "missing-result",
            "repair would make 2 changes",
        ):
            assert words in shown

    def test_a_sound_conversation(self, everthread: Any) -> None:
        shown = everthread("inspect", "-", given=json.dumps(ANTHROPIC).encode()).stdout
        assert "valid for openai and anthropic" in shown
        assert "repair would change nothing" in shown

    def test_long_lists_are_cut_and_say_so(self, everthread: Any) -> None:
        given = json.dumps(
            [{"role": "user", "content": f"ask {i}"} for i in range(30)]
        ).encode()
        assert "and 10 more" in everthread("inspect", "-", given=given).stdout
        assert "ask 29" in everthread("inspect", "-", "--all", given=given).stdout


GARBAGE = [
    b"",
    b"   \n",
    b"not json",
    b"{",
    b"42",
    b'"text"',
    b"null",
    b"[1, 2]",
    b'[{"content": "no role"}]',
    b'{"no": "messages"}',
    b'{"messages": 3}',
    b'{"messages": ["x"]}',
    b'{"role": "user", "content": "a"}\nnot json\n',
    b"\xff\xfe\x00\x01",
    b"[" * 100_000,
]


@pytest.mark.parametrize("command", ["tokens", "inspect"])
@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda g: repr(g[:20]))
def test_garbage_gets_one_clear_line(
    everthread: Any, command: str, garbage: bytes
) -> None:
    done = everthread(command, "-", given=garbage)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("everthread: standard input: ")
    assert done.stderr.count("\n") == 1


def test_a_missing_file_and_a_directory(everthread: Any, tmp_path: Path) -> None:
    for path in (tmp_path / "absent.json", tmp_path):
        assert "cannot be read" in everthread.refuses("tokens", str(path))


class TestConfig:
    def test_show_check_path(self, everthread: Any, home: Path) -> None:
        assert everthread("config", "path").stdout.strip() == str(home / "config.yaml")
        assert "not there, using defaults" in everthread("config", "check").stdout
        home.mkdir()
        (home / "config.yaml").write_text("compression: {threshold: 0.6}", "utf-8")
        assert "fine" in everthread("config", "check").stdout
        assert (
            everthread("config", "show", "--changed").stdout
            == "compression:\n  threshold: 0.6\n"
        )
        assert everthread.json("config", "show")["compression"]["threshold"] == 0.6

    def test_a_wrong_file(self, everthread: Any, tmp_path: Path) -> None:
        assert "compression.threshold = 7" in everthread.refuses(
            "config", "check", write(tmp_path / "c.yaml", "compression: {threshold: 7}")
        )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_values_and_not_their_types(command: str, everthread: Any) -> None:
    inner = getattr(load_command(command), "commands", {})
    for words in [(command,), *((command, name) for name in inner)]:
        assert not re.search(r"<[a-z\[\]| ]+>", everthread(*words, "--help").stdout), (
            words
        )


def test_json_is_an_object_everywhere(everthread: Any, tmp_path: Path) -> None:
    talk = write(tmp_path / "talk.json", OPENAI)
    for command in (
        ["keys", "list"],
        ["sessions", "list"],
        ["sessions", "search", "x"],
        ["models", "list"],
        ["plugins"],
        ["usage"],
        ["insights"],
        ["tokens", talk],
        ["inspect", talk],
        ["compress", talk],
        ["config", "show"],
    ):
        done = everthread(*command, "--json")
        assert isinstance(json.loads(done.stdout), dict), command


def test_help_names_an_option_and_its_value(everthread: Any) -> None:
    assert "--focus               FOCUS" in everthread("compress", "--help").stdout


def test_help_and_version(everthread: Any) -> None:
    assert everthread("--version").stdout.startswith("everthread 0.")
    assert "tokens" in everthread("--help").stdout
    assert everthread("tokens", "--help").returncode == 0
    assert everthread("nonsense").returncode == 2


def test_a_closed_pipe_is_not_an_error() -> None:
    given = json.dumps(
        [{"role": "user", "content": f"ask {i}"} for i in range(20_000)]
    ).encode()
    command = f"{sys.executable} -m everthread inspect --all - | head -1"
    done = subprocess.run(
        ["bash", "-c", command],
        input=given,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr


def test_the_shipped_session_equals_its_generator_output() -> None:
    shipped = Path(__file__).parents[2] / "examples" / "long_session.json"
    assert json.loads(shipped.read_text("utf-8")) == conversation()
