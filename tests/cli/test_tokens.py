"""`everthread tokens`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, configure
from tests.cli.conversation_files import ANTHROPIC, OPENAI, RESPONSES, write


class TestTokens:
    @pytest.mark.parametrize(
        ("value", "api", "messages"),
        [
            (OPENAI, "openai_chat", 4),
            (
                {
                    "messages": OPENAI,
                    "system": None,
                    "tools": None,
                    "usage": [],
                },
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
    def test_every_file_format_is_read(
        self, everthread: Command, tmp_path: Path, value: Any, api: str, messages: int
    ) -> None:
        output = everthread.succeeds(
            "tokens", write(tmp_path / "session.json", value), "--json --messages"
        )
        report = json.loads(output)
        assert report["api"] == api
        assert len(report["messages"]) == messages
        assert sum(row["tokens"] for row in report["messages"]) == sum(
            r["tokens"] for r in report["by_role"].values()
        )
        assert (
            report["total"] >= sum(row["tokens"] for row in report["messages"]) + report["system"]
        )

    def test_tokens_are_printed_as_a_table(self, everthread: Command, tmp_path: Path) -> None:
        output = everthread.succeeds(
            "tokens",
            write(tmp_path / "s.json", OPENAI),
            "--window 1000 --top 2",
        )
        for words in (
            "role",
            "terminal",
            "the biggest messages",
            "of a window of 1,000",
            "[bold]odd[/bold] name.py",
        ):
            assert words in output

    def test_tokens_reads_standard_input(self, everthread: Command) -> None:
        report = everthread.json("tokens -", stdin=json.dumps(OPENAI).encode())
        assert report["source"] == "standard input"

    def test_the_window_comes_from_the_configuration(self, everthread: Command, home: Path) -> None:
        configure(home, "model: {context_length: 32000}")
        report = everthread.json("tokens -", stdin=b'[{"role": "user", "content": "hi"}]')
        assert (report["window"], report["window_source"]) == (32000, "configuration")

    def test_counts_an_empty_conversation(self, everthread: Command) -> None:
        assert everthread("tokens -", stdin=b"[]").returncode == 0
        assert everthread("inspect -", stdin=b"[]").returncode == 0
