"""`everthread inspect`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from examples.long_session import conversation
from tests.cli.conftest import Command
from tests.cli.conversation_files import ANTHROPIC, OPENAI


class TestInspect:
    def test_problems_and_repairs_are_listed(self, everthread: Command) -> None:
        conversation = json.dumps(
            [
                {"role": "assistant", "content": "Hi!"},
                *OPENAI[:2],
                {"role": "user", "content": "Stop."},
            ]
        ).encode()
        report = everthread.json("inspect -", stdin=conversation)
        assert [turn["user"] for turn in report["turns"]] == [
            "",
            "List the files.",
            "Stop.",
        ]
        assert report["groups"] == [
            {
                "assistant": 2,
                "calls": 1,
                "results": 0,
                "missing": ["c1"],
            }
        ]
        assert [p["rule"] for p in report["problems"]["openai"]] == ["missing-result"]
        assert [p["rule"] for p in report["problems"]["anthropic"]] == [
            "starts-with-assistant",
            "missing-result",
        ]
        assert len(report["repair"]) == 2
        output = everthread("inspect -", stdin=conversation).stdout
        for words in (
            "3 turns",
            "missing-result",
            "repair would make 2 changes",
        ):
            assert words in output

    def test_a_valid_conversation_needs_no_repair(self, everthread: Command) -> None:
        output = everthread("inspect -", stdin=json.dumps(ANTHROPIC).encode()).stdout
        assert "valid for openai and anthropic" in output
        assert "repair would change nothing" in output

    def test_long_lists_are_cut_with_a_note(self, everthread: Command) -> None:
        conversation = json.dumps(
            [{"role": "user", "content": f"ask {i}"} for i in range(30)]
        ).encode()
        assert "and 10 more" in everthread("inspect -", stdin=conversation).stdout
        assert "ask 29" in everthread("inspect - --all", stdin=conversation).stdout


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
def test_garbage_is_one_line_of_error(everthread: Command, command: str, garbage: bytes) -> None:
    result = everthread(f"{command} -", stdin=garbage)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("everthread: standard input: ")
    assert result.stderr.count("\n") == 1


def test_a_missing_file_and_a_directory(everthread: Command, tmp_path: Path) -> None:
    for path in (tmp_path / "absent.json", tmp_path):
        assert "cannot be read" in everthread.refuses(f"tokens {path}")


def test_a_closed_pipe_is_not_an_error() -> None:
    conversation = json.dumps(
        [{"role": "user", "content": f"ask {i}"} for i in range(20_000)]
    ).encode()
    command = f"{sys.executable} -m everthread inspect --all - | head -1"
    result = subprocess.run(
        ["bash", "-c", command],
        input=conversation,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert b"Traceback" not in result.stderr
    assert b"Exception" not in result.stderr


def test_the_shipped_session_equals_its_generator_output() -> None:
    shipped = Path(__file__).parents[2] / "examples" / "long_session.json"
    assert json.loads(shipped.read_text("utf-8")) == conversation()
