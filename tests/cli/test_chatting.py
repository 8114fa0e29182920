"""Chat output without a terminal: events as lines, text as blocks, figures as the status line."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import stat
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from rich.console import Console

from everthread import open_agent
from everthread.agent.approval import Denial
from everthread.agent.commands.context_commands import CONTEXT_KINDS
from everthread.agent.tool_interface import Permission
from everthread.agent.turn_events import Delegated, ToolFinished, ToolStarted, TurnEnded
from everthread.cli.chat.answer_text import render_context
from everthread.cli.chat.chat_session import Chat
from everthread.cli.chat.editor import ChatCompleter
from everthread.cli.chat.event_lines import ToolLines, render_event, render_tool_result
from everthread.cli.chat.greeting import render_last_exchange
from everthread.cli.chat.input import (
    ApprovalPrompt,
    Interrupts,
    StoppedError,
    render_permission,
)
from everthread.cli.chat.markdown_blocks import MarkdownBlocks
from everthread.cli.chat.pastes import PasteExpandingHistory, Pastes
from everthread.cli.chat.presence import TerminalPresence
from everthread.cli.chat.screen import Screen
from everthread.cli.chat.status_line import Status, format_thousands
from everthread.cli.output import log_unexpected_error
from everthread.cli.shared_options import RESUME_WITHOUT_ID, fill_missing_ids
from everthread.compaction.engine import describe_progress
from everthread.compaction.summarizers.summarizer import Verification
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.testing import ScriptedModel
from everthread.thread import events
from tests.chat_messages import calls_message, result_message

TEXT = (
    "# Title\n\nHello *world*,\nmore.\n\n- a\n- b\n\n  deep\n\n1. x\n\n```python\ndef f():\n\n    return 1\n```\n"
    "After.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nlast"
)


def render_in_pieces(text: str, size: int) -> list[str]:
    blocks = MarkdownBlocks()
    done = [
        block
        for at in range(0, len(text), size)
        for block in blocks.feed(text[at : at + size])
    ]
    return [*done, *blocks.finish()]


class TestBlocks:
    @pytest.mark.parametrize("size", [1, 3, 7, 1_000])
    def test_a_block_is_settled_when_the_next_has_begun_and_not_before(
        self, size: int
    ) -> None:
        done = render_in_pieces(TEXT, size)
        assert [block.split("\n")[0] for block in done] == [
            "# Title",
            "Hello *world*,",
            "- a",
            "1. x",
            "```python",
            "After.",
            "| a | b |",
            "last",
        ]

    @given(st.text(alphabet="ab \n#`-*|1.>\t", max_size=80), st.integers(1, 9))
    def test_no_text_is_lost_or_doubled(self, text: str, size: int) -> None:
        assert "\n".join(render_in_pieces(text, size)) == text

    def test_code_that_is_not_closed_stays_one_block(self) -> None:
        blocks = MarkdownBlocks()
        assert blocks.feed("```\n# no heading\n\n- no list\n\n") == []
        assert blocks.feed("````\n") == [], (
            "longer than the opening: it closes, and nothing has begun after it"
        )
        assert blocks.feed("Then.\n") == ["```\n# no heading\n\n- no list\n\n````"]

    def test_the_tail_of_long_code_is_still_code(self) -> None:
        blocks = MarkdownBlocks()
        blocks.feed("```python\n" + "".join(f"line{n}\n" for n in range(100)))
        assert blocks.tail(4) == "```python\nline98\nline99\n"
        assert len(blocks.tail(500).split("\n")) == 102


def rendered_text(event: events.Event) -> str:
    line = render_event(event)
    assert line is not None
    return line.plain


class TestLines:
    def test_a_compaction_is_one_line_with_its_warnings(self) -> None:
        checked = Verification(facts=12, present=10, added=1, checked=30, unverified=2)
        line = rendered_text(
            events.CompactionDone(
                "s2",
                "s1",
                "in-loop",
                101_000,
                24_500,
                210,
                31,
                "gpt-4o-mini",
                3,
                checked,
                2.34,
                Decimal("0.012"),
                ("the tail was halved",),
                ("the auxiliary model failed",),
            )
        )
        assert line.split("\n") == [
            "◆ Compacted 101K → 24.5K tokens; summary by gpt-4o-mini for $0.0120. /why, /undo",
            "  ! the auxiliary model failed",
        ]

    @pytest.mark.parametrize(
        ("event", "words"),
        [
            (
                events.Recovery("s", "prompt_too_long", 2, "compacting again"),
                "Trying again (2): compacting again",
            ),
            (
                events.LimitLearnt("s", "m", 8_192, "the server said so", True),
                "window of m is 8,192 tokens",
            ),
            (
                events.OutputStored("s", "output:o1", "terminal", 250_000),
                "terminal: 250,000 characters stored as output:o1",
            ),
            (events.Notice("s", "Detail may fade."), "! Detail may fade."),
            (events.CompactionVoid("s", "it grew"), "Nothing was compacted: it grew"),
            (events.CompactionFailed("s", "no room"), "The compaction failed: no room"),
            (events.CompactionProgress("s", "gpt-4o rests"), "gpt-4o rests"),
            (
                events.CompactionProgress(
                    "s",
                    describe_progress(
                        "summary_failed",
                        {"route": "m", "reason": "no sections", "rest": 0.0},
                    ),
                ),
                "◇ m wrote no summary: no sections",
            ),
            (
                Delegated("s", "t2", events.Notice("sub", "Detail may fade.")),
                "  ! Detail may fade.",
            ),
            (TurnEnded("s", "max_rounds", 90, 120, 3.0), "stopped after 90 rounds"),
        ],
    )
    def test_events_have_lines(self, event: events.Event, words: str) -> None:
        assert words in rendered_text(event)

    def test_estimates_background_starts_and_turn_ends_are_not_shown(self) -> None:
        assert render_event(events.Estimated("s", 1, 2, 3, True)) is None
        assert (
            render_event(
                events.CompactionStarted("s", "background", 5_000, background=True)
            )
            is None
        )
        assert render_event(TurnEnded("s", "answered", 1, 1, 1.0)) is None

    def test_foreign_text_cannot_move_the_cursor(self) -> None:
        assert "\x1b" not in rendered_text(events.Notice("s", "\x1b[2Jgone"))


class TestToolLines:
    def test_name_target_outcome_seconds(self) -> None:
        tools = ToolLines()
        assert (
            tools.render(
                ToolStarted("s", "c1", "terminal", {"command": "pytest tests/"})
            )
            is None
        )
        assert "terminal pytest tests/" in tools.running_text
        done = "1 failed, 12 passed\n[exit code: 1]"
        line = tools.render(
            ToolFinished(
                "s",
                "c1",
                "terminal",
                done,
                seconds=1.26,
                arguments={"command": "pytest tests/"},
            )
        )
        assert line is not None
        assert line.plain.startswith("✓ terminal pytest tests/")
        assert "1 failed, 12 passed" in line.plain
        assert line.plain.split("\n")[0].endswith("1.3 s")
        assert tools.running_text == ""

    def test_the_first_lines_of_an_output(self) -> None:
        text = "exit code: 0\n" + "\n".join(f"line {number}" for number in range(315))
        line = render_tool_result(
            ToolFinished("s", "c", "terminal", text, arguments={"command": "make"})
        )
        assert line.plain.split("\n")[1:] == [
            "  │ line 0",
            "  │ line 1",
            "  │ line 2",
            "  │ … 312 more",
        ]
        read = render_tool_result(
            ToolFinished("s", "c", "read_file", text, arguments={"path": "a.py"})
        )
        assert "\n" not in read.plain

    def test_failed_and_refused(self) -> None:
        tools = ToolLines()
        failed = tools.render(
            ToolFinished(
                "s", "c1", "read_file", "Failed: there is no such file", failed=True
            )
        )
        refused = tools.render(
            ToolFinished(
                "s",
                "c2",
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
        assert refused.plain == "✗ terminal rm x  refused", (
            "also what was never begun says what it was"
        )

    def test_a_subagent_is_indented_and_control_characters_are_shown(self) -> None:
        tools = ToolLines()
        inner = ToolFinished("sub", "c1", "ter\x1b[31mminal", "ok")
        line = tools.render(Delegated("s", "t2", inner))
        assert line is not None
        assert line.plain.startswith("  ✓")
        assert "\x1b" not in line.plain

    def test_ids_of_calls_repeat_in_a_subagent(self) -> None:
        tools = ToolLines()
        tools.render(
            ToolStarted("s", "call_0", "delegate", {"task": "Count the files"})
        )
        tools.render(
            Delegated(
                "s", "t2", ToolStarted("sub", "call_0", "terminal", {"command": "ls"})
            )
        )
        tools.render(
            Delegated("s", "t2", ToolFinished("sub", "call_0", "terminal", "ok"))
        )
        assert "Count the files" in tools.running_text
        tools.render(ToolFinished("s", "call_0", "delegate", "Three."))
        assert tools.running_text == ""

    def test_reading_a_file_of_one_line_does_not_print_it(self) -> None:
        read = ToolFinished(
            "s", "c1", "read_file", "1\tUse tabs.", arguments={"path": "AGENTS.md"}
        )
        line = ToolLines().render(read)
        assert line is not None
        assert "Use tabs" not in line.plain
        assert line.plain.startswith("✓ read_file AGENTS.md")


class TestStatus:
    def test_the_line(self) -> None:
        status = Status("gpt-4o", 0, 128_000)
        assert status.as_line() == "gpt-4o · 0 of 128K (0%)"
        usage = CanonicalUsage(
            input_tokens=2_000, cache_read_tokens=6_000, output_tokens=10
        )
        status.update(
            events.UsageRecorded("s", "gpt-4o", "main", usage, Decimal("0.02"))
        )
        status.update(events.Estimated("s", 32_000, 128_000, 64_000, True))
        assert status.as_line() == "gpt-4o · 32K of 128K (25%) · cache 75% · $0.0200"
        status.update(
            events.UsageRecorded("s", "x", "auxiliary", CanonicalUsage(), None)
        )
        done = events.CompactionDone(
            "s2", "s", "manual", 9, 5, 9, 5, "x", 2, Verification(), 0.1
        )
        status.update(done)
        assert status.as_line().endswith("cost $0.0200 + unknown · 2 compactions")

    def test_a_subagents_usage_counts_and_its_window_does_not(self) -> None:
        status = Status("m", 10, 100)
        status.update(Delegated("s", "t2", events.Estimated("sub", 90, 100, 50, True)))
        usage = CanonicalUsage(input_tokens=5)
        status.update(
            Delegated(
                "s",
                "t2",
                events.UsageRecorded("sub", "m", "main", usage, Decimal("0.5")),
            )
        )
        assert status.as_line() == "m · 10 of 100 (10%) · cache 0% · $0.5000"

    def test_an_unknown_price_is_not_zero(self) -> None:
        status = Status("m", 10, 100)
        status.update(
            events.UsageRecorded("s", "m", "main", CanonicalUsage(input_tokens=5), None)
        )
        assert "cost unknown" in status.as_line()

    @pytest.mark.parametrize(
        ("tokens", "text"),
        [
            (0, "0"),
            (950, "950"),
            (12_345, "12.3K"),
            (200_000, "200K"),
            (1_000_000, "1M"),
        ],
    )
    def test_sizes(self, tokens: int, text: str) -> None:
        assert format_thousands(tokens) == text


class ScriptedReader:
    """A reader that returns these answers in turn."""

    is_interactive = True

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)

    async def read(self) -> str:
        raise EOFError

    async def ask(self, question: str) -> str:
        assert "[y]es" in question
        if not self.answers:
            raise EOFError
        return self.answers.pop(0)

    def interrupt(self) -> None:
        """Do nothing: no read is waiting."""

    def hold_typing(
        self,
        *,
        as_one_message: bool = False,  # noqa: ARG002 - as every reader
    ) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def print_to_text(renderable: Any) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


class TestAsking:
    @pytest.mark.parametrize(
        ("typed", "said"),
        [
            (["y"], True),
            (["n"], False),
            ([""], False),
            (["a"], "always"),
            (["what", "YES"], True),
            ([], False),
            (["n use the other file"], Denial("use the other file")),
            (["No, later"], Denial("later")),
        ],
    )
    async def test_yes_no_and_always_are_answers_and_anything_else_is_asked_again(
        self, typed: list[str], said: object
    ) -> None:
        asker = ApprovalPrompt(
            Screen(Console(file=io.StringIO())), ScriptedReader(*typed), lambda: None
        )
        assert await asker(Permission("command", "ls")) == said

    def test_a_permission_is_shown_completely(self) -> None:
        told = print_to_text(
            render_permission(
                Permission("command", "ls\nrm -rf /\x1b[8m # \u202ehidden")
            )
        )
        assert "rm -rf /␛[8m # \\u202ehidden" in told
        diff = print_to_text(
            render_permission(
                Permission(
                    "write", "a.py", "--- a.py\n+++ a.py\n-old\n+new\n" + "+x\n" * 100
                )
            )
        )
        assert "write" in diff
        assert "+new" in diff
        assert "… 44 more lines" in diff


class TestCompleting:
    def offered(self, text: str, folder: Path, *, asked: bool = False) -> list[str]:
        completer = ChatCompleter(
            [("/compress", "compact"), ("/context", "what"), ("/new", "begin")], folder
        )
        event = CompleteEvent(text_inserted=not asked, completion_requested=asked)
        return [item.text for item in completer.get_completions(Document(text), event)]

    def test_commands(self, tmp_path: Path) -> None:
        assert self.offered("/co", tmp_path) == ["/compress", "/context"]
        assert self.offered("/compress", tmp_path) == ["/compress"]
        assert self.offered("say /compr", tmp_path) == [], "only where a message begins"

    def test_paths(self, tmp_path: Path) -> None:
        (tmp_path / "src").mkdir()
        (tmp_path / "src" / "main.py").touch()
        (tmp_path / "src" / ".hidden").touch()
        (tmp_path / "setup.py").touch()
        assert self.offered("look at src/m", tmp_path) == ["main.py"]
        assert self.offered("look at s", tmp_path) == []
        assert self.offered("look at s", tmp_path, asked=True) == ["setup.py", "src/"]
        assert self.offered("look at src/", tmp_path) == ["main.py"]
        assert self.offered("look at nowhere/x", tmp_path) == []


class TestInterrupts:
    async def test_the_first_ctrl_c_stops_the_work_not_the_program(self) -> None:
        async def run() -> list[str]:
            idle: list[str] = []
            interrupts = Interrupts(lambda: idle.append("idle"), idle.append)

            async def work() -> None:
                interrupts.interrupt()
                await asyncio.sleep(60)

            with pytest.raises(StoppedError):
                await interrupts.run(work())
            interrupts.interrupt()
            return idle

        assert await run() == ["idle"]

    async def test_a_second_ctrl_c_does_not_interrupt_the_cleanup(self) -> None:
        told: list[str] = []
        done: list[str] = []
        interrupts = Interrupts(lambda: None, told.append)

        async def work() -> None:
            try:
                interrupts.interrupt()
                await asyncio.sleep(60)
            finally:
                interrupts.interrupt()
                await asyncio.sleep(0)
                done.append("in order")

        with pytest.raises(StoppedError):
            await interrupts.run(work())
        assert done == ["in order"]
        assert "stopping" in told[0]

    @pytest.mark.parametrize(
        ("before", "code"), [(signal.SIG_DFL, 129), (signal.SIG_IGN, 0)]
    )
    async def test_a_hangup_ends_in_good_order_unless_it_is_to_be_ignored(
        self, before: Any, code: int
    ) -> None:
        done: list[str] = []

        async def work() -> None:
            try:
                signal.raise_signal(signal.SIGHUP)
                await asyncio.sleep(0.05)
            finally:
                await asyncio.sleep(0)
                done.append("in order")

        async def run() -> None:
            interrupts = Interrupts(lambda: None, print)
            with interrupts.handle_signals():
                await interrupts.run(work())

        former = signal.signal(signal.SIGHUP, before)
        try:
            left = 0
            try:
                await run()
            except typer.Exit as ended:
                left = ended.exit_code
            assert signal.getsignal(signal.SIGHUP) == before, "as it was found"
        finally:
            signal.signal(signal.SIGHUP, former)
        assert (left, done) == (code, ["in order"])

    async def test_work_that_fails_by_itself_says_so(self) -> None:
        async def run() -> None:
            async def work() -> None:
                raise ValueError("itself")

            await Interrupts(lambda: None, print).run(work())

        with pytest.raises(ValueError, match="itself"):
            await run()


@pytest.mark.parametrize(
    ("given_words", "meant"),
    [
        (["--resume"], ["--resume", RESUME_WITHOUT_ID]),
        (["--resume", "--yes"], ["--resume", RESUME_WITHOUT_ID, "--yes"]),
        (["-r", "abc", "--yes"], ["-r", "abc", "--yes"]),
        (["--", "--resume"], ["--", "--resume"]),
    ],
)
def test_resume_needs_no_id(given_words: list[str], meant: list[str]) -> None:
    assert fill_missing_ids(given_words) == meant


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


class TypedReader:
    """A reader that gives these messages, then ends."""

    is_interactive = False

    def __init__(self, *messages: str) -> None:
        self.messages = list(messages)

    async def read(self) -> str:
        if not self.messages:
            raise EOFError
        return self.messages.pop(0)

    async def ask(self, question: str) -> str:  # noqa: ARG002 - as every reader
        raise EOFError

    def interrupt(self) -> None:
        """Do nothing: no read is waiting."""

    def hold_typing(
        self,
        *,
        as_one_message: bool = False,  # noqa: ARG002 - as every reader
    ) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class TestUnexpectedErrors:
    @pytest.fixture(autouse=True)
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("EVERTHREAD_HOME", str(tmp_path / "home"))
        return tmp_path / "home"

    async def test_an_unexpected_error_is_shown_logged_and_survived(
        self, tmp_path: Path, home: Path
    ) -> None:
        screen = Screen(Console(file=io.StringIO(), width=200))
        chat = Chat(
            screen,
            Status(),
            reader=TypedReader("one", "two"),
            presence=TerminalPresence(home),
        )
        model = ScriptedModel(
            [ZeroDivisionError("with key sk-proj-" + "a1B2c3D4" * 6), "Better."]
        )
        async with await open_agent(
            model=model, workspace=tmp_path, store=tmp_path / "s.db"
        ) as agent:
            await chat.read_and_answer(agent)
        assert isinstance(screen.console.file, io.StringIO)
        said = screen.console.file.getvalue()
        assert "✗ unexpected error: ZeroDivisionError" in said
        assert f"The details are in {home / 'errors.log'}" in said
        assert "Better." in said
        kept = home / "errors.log"
        assert "Traceback (most recent call last)" in kept.read_text("utf-8")
        assert "a1B2c3D4a1B2c3D4" not in kept.read_text("utf-8") + said
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600

    def test_without_a_log_the_traceback_is_shown(self, home: Path) -> None:
        home.write_text("no folder", "utf-8")
        assert "ZeroDivisionError: by nothing" in log_unexpected_error(
            ZeroDivisionError("by nothing")
        )

    def test_the_log_does_not_grow_for_ever(self, home: Path) -> None:
        home.mkdir()
        (home / "errors.log").write_text("x" * 1_000_001, "utf-8")
        log_unexpected_error(ValueError("odd"))
        assert (home / "errors.log").stat().st_size < 1_000


class TestLastExchange:
    def test_the_last_question_and_its_answer_are_shown(self) -> None:
        said: list[Any] = [
            {"role": "user", "content": "First."},
            {"role": "assistant", "content": "One."},
            {
                "role": "user",
                "content": "Second, with sk-ant-api03-" + "Zq8" * 31 + "AA",
            },
            calls_message(text="Two."),
            result_message("c", "3"),
        ]
        shown = render_last_exchange(said)
        assert shown is not None
        assert shown.plain.startswith("› Second, with ")
        assert shown.plain.endswith("Two.")
        assert "Zq8Zq8" not in shown.plain
        assert render_last_exchange([]) is None


class TestPastes:
    def test_a_long_paste_is_folded_and_sent_whole(self, tmp_path: Path) -> None:
        pastes = Pastes()
        long = "\n".join(f"line {number}" for number in range(120))
        folded = pastes.fold(long)
        assert folded == "[paste 1: 120 lines]"
        assert pastes.fold("x" * 900) == "[paste 2: 900 characters]"
        assert pastes.fold("short\nstays") == "short\nstays"
        typed = f"Explain {folded} please"
        assert pastes.expand_placeholders(typed) == f"Explain {long} please"
        history = PasteExpandingHistory(str(tmp_path / "history"), pastes)
        history.append_string(typed)
        [stored] = PasteExpandingHistory(
            str(tmp_path / "history"), Pastes()
        ).load_history_strings()
        assert stored == f"Explain {long} please"


class TestPresence:
    def test_two_terminals_on_one_thread_warn_each_other_once(
        self, tmp_path: Path
    ) -> None:
        code = (
            "import sys; from pathlib import Path;"
            "from everthread.cli.chat.presence import TerminalPresence;"
            "presence = TerminalPresence(Path(sys.argv[1]));"
            "print(presence.enter('thread'), flush=True);"
            "sys.stdin.readline()"
        )
        with TerminalPresence(tmp_path) as mine:
            assert mine.enter("thread") == ""
            with subprocess.Popen(
                [sys.executable, "-c", code, str(tmp_path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as other:
                assert other.stdin is not None
                assert other.stdout is not None
                warning = other.stdout.readline()
                assert (
                    f"open in another terminal too (process {os.getpid()})" in warning
                )
                assert f"(process {other.pid})" in mine.enter("thread")
                assert mine.enter("thread") == ""
                assert mine.enter("another") == ""
                other.stdin.close()
            assert mine.enter("thread") == "", "the other has ended"
        assert list((tmp_path / "terminals").iterdir()) == []


def test_the_context_is_a_bar_with_a_line_for_each_kind() -> None:
    kinds = dict.fromkeys(CONTEXT_KINDS, 0) | {"tools": 2_000, "user": 500}
    data = {"window": 10_000, "threshold": 5_000, "tokens": 2_500, "kinds": kinds}
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
