"""The screen of a chat: streamed text, the last exchange, the context bar."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from everthread.agent.commands.context_commands import CONTEXT_KINDS
from everthread.cli.chat.answer_text import render_context
from everthread.cli.chat.greeting import render_last_exchange
from everthread.cli.chat.screen import Screen
from tests.chat_messages import calls_message, result_message


class TestScreen:
    def test_without_a_terminal_text_is_printed_unchanged(self) -> None:
        console = Console(file=io.StringIO(), width=40)
        screen = Screen(console)
        for piece in ("# Hi\n\n", "**you", "**"):
            screen.show_text(piece)
        screen.print("a line")
        screen.flush()
        assert isinstance(console.file, io.StringIO)
        assert console.file.getvalue() == "# Hi\n\n**you**\na line\n"

    def test_printed_blocks_are_never_drawn_again(self) -> None:
        console = Console(
            file=io.StringIO(),
            width=40,
            height=20,
            force_terminal=True,
            color_system=None,
        )
        screen = Screen(console)
        for piece in ("First block.\n\nSec", "ond block.\n\n", "Third."):
            screen.show_text(piece)
        screen.flush()
        assert isinstance(console.file, io.StringIO)
        out = console.file.getvalue()
        last = out.rindex("First block.")
        assert "Second block." in out[last:]
        assert out.rstrip().endswith("Third.")


class TestLastExchange:
    def test_the_last_question_and_its_answer_are_shown(self) -> None:
        messages: list[Any] = [
            {"role": "user", "content": "First."},
            {"role": "assistant", "content": "One."},
            {
                "role": "user",
                "content": "Second, with sk-ant-api03-" + "Zq8" * 31 + "AA",
            },
            calls_message(text="Two."),
            result_message("c", "3"),
        ]
        exchange = render_last_exchange(messages)
        assert exchange is not None
        assert exchange.plain.startswith("› Second, with ")
        assert exchange.plain.endswith("Two.")
        assert "Zq8Zq8" not in exchange.plain
        assert render_last_exchange([]) is None


def test_the_context_is_a_bar_with_a_line_for_each_kind() -> None:
    kinds = dict.fromkeys(CONTEXT_KINDS, 0) | {"tools": 2_000, "user": 500}
    data = {
        "window": 10_000,
        "threshold": 5_000,
        "tokens": 2_500,
        "kinds": kinds,
    }
    head, bar, *rows = render_context(data, 80).plain.split("\n")
    assert head == "2,500 of 10,000 tokens (25%)"
    assert bar.count("█") == 18
    assert bar.index("│") == 36
    assert rows == [
        "■ tools              2,000   20.0%",
        "■ user                 500    5.0%",
        "· free               7,500   75.0%",
        "│ compaction starts at 5,000 tokens",
    ]
