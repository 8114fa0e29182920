"""`everthread chat` in a real terminal, against the simulated provider; and without a terminal."""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from everthread.core.messages import text_of
from everthread.core.types import Request
from everthread.core.validation import validate_messages
from everthread.lab.provider import Fault, Provider, ServedModel
from everthread.providers.local import SMOLLM2
from everthread.store.store import Store
from tests.agent.test_processes import are_gone, is_running
from tests.cli.conftest import environment
from tests.cli.fork_server import ForkServer
from tests.cli.provider_thread import (
    call_reply,
    configure,
    configure_provider,
    provider_in_thread,
)
from tests.cli.terminal import ALT_ENTER, CTRL_C, CTRL_D, TAB, UP, Terminal

PROMPT = "› "
LONG = "word " * 200


@pytest.fixture
def terminal_of(home: Path, fork_server: ForkServer) -> Any:
    """Open the command at a terminal, in this home."""

    def opened(*arguments: str, **more: str) -> Terminal:
        return Terminal(fork_server, *arguments, environment=environment(home) | more)

    return opened


@pytest.fixture
def chat(home: Path, workspace: Path, terminal_of: Any) -> Any:
    """Open a chat at a terminal and wait for its prompt."""

    @contextmanager
    def opened(
        served: Provider, *arguments: str, extra: str = ""
    ) -> Iterator[Terminal]:
        configure_provider(home, served, extra=extra)
        with terminal_of("chat", "-w", str(workspace), *arguments) as terminal:
            terminal.see(PROMPT)
            yield terminal

    return opened


def wait_for_pids(file: Path) -> list[int]:
    """Wait for the process ids that a command writes to a file."""
    for _ in range(500):
        if file.exists() and (found := file.read_text("utf-8").split()):
            return [int(pid) for pid in found]
        time.sleep(0.02)
    raise AssertionError(f"nothing was written to {file}")


def last_thread(fill: Any) -> tuple[str, list[Any]]:
    """Return the newest thread and its context for the model."""

    async def read(store: Store) -> tuple[str, list[Any]]:
        (row, *_) = await store.list_threads(limit=1)
        return row.first.id, [
            stored.body for stored in await store.messages(row.tip.id)
        ]

    found: tuple[str, list[Any]] = fill(read)
    return found


def received_request(served: Provider, at: int = -1) -> Request:
    """Return one received request."""
    request = served.log[at].request
    assert request is not None
    return request


class TestTalking:
    def test_answers_stream_as_markdown_with_figures_below(self, chat: Any) -> None:
        said = "# Plan\n\nThis is **bold**.\n\n- one\n- two\n\n```python\nprint(1)\n```\nDone."
        with provider_in_thread([said, "Second."]) as served, chat(served) as terminal:
            assert "window 64,000 tokens" in terminal.shown
            terminal.see("of 64K")
            shown = terminal.say("hello", "Done.")
            assert "This is bold." in shown
            assert "• one" in shown
            assert "```" not in shown
            terminal.see("cache 0%")
            terminal.say("and", "Second.", PROMPT)
            told = terminal.say("", "everthread chat --resume ", end=CTRL_D)
            assert "2 calls" in told
            assert "from the cache" in told
            assert terminal.leave() == 0

    def test_several_lines_and_history_and_completion(
        self, chat: Any, home: Path, workspace: Path
    ) -> None:
        (workspace / "ledger.py").touch()
        with provider_in_thread() as served:
            with chat(served) as terminal:
                terminal.type("first", ALT_ENTER)
                terminal.type("second\\")
                terminal.say("third", "You said: first", PROMPT)
                assert (
                    text_of(received_request(served).messages[-1])
                    == "first\nsecond\nthird"
                )
                terminal.say("look at led", "ger.py", end=TAB)
                terminal.say("", "You said: look at ledger.py", PROMPT)
                terminal.type("/exit")
                assert terminal.leave() == 0
            with chat(served) as terminal:
                terminal.say("", "/exit", end=UP)
                terminal.say("", "look at ledger.py", end=UP)
        kept = home / "chat_history"
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600, (
            "what was typed is nobody else's business"
        )

    def test_slash_commands_never_reach_the_model(self, chat: Any) -> None:
        with provider_in_thread() as served, chat(served) as terminal:
            terminal.say("hello", "You said: hello")
            for typed, words in [
                ("/help", "/compress [--preview]"),
                ("/usage", "1 call"),
                ("/context", "64,000"),
                ("/search hello", "after #2 assistant (also a match)"),
                ("/compres", "Did you mean /compress"),
                ("/new", "A new conversation"),
            ]:
                terminal.see(PROMPT)
                terminal.say(typed, words)
            terminal.see(PROMPT)
            terminal.say("again", "You said: again")
            assert len(served.log) == 2
            assert len(received_request(served).messages) == 1, (
                "the new conversation knows nothing of the old one"
            )

    def test_after_an_error_the_chat_continues(self, chat: Any) -> None:
        refusal = Fault("payload_too_large", message="no images today")

        def answer(request: Any) -> Any:
            return "Better." if text_of(request.messages[-1]) == "again" else refusal

        with provider_in_thread(answer) as served, chat(served) as terminal:
            terminal.say("hello", "✗ ", PROMPT)
            terminal.say("again", "Better.")
            said = [
                text_of(message)
                for message in received_request(served).messages
                if message["role"] == "user"
            ]
            assert said[0].startswith("hello"), "what failed is not forgotten"

    def test_a_command_is_answered_once(self, chat: Any) -> None:
        long = "The books of month seven are settled. " * 60
        models = [ServedModel("gpt-4o", 12_000, shows="max_model_len")]
        extra = "compression: {background: false, protect_last_n: 2}\n"
        with (
            provider_in_thread(lambda _: f"Noted. {long}", models) as served,
            chat(served, extra=extra) as terminal,
        ):
            for number in range(6):
                terminal.say(f"Month {number} please", "Noted.", PROMPT)
            told = terminal.say("/compress", "1 compaction")
            assert told.count("Compacted: ") == 1
            assert "◆ Compacted" not in told, "the answer says it all"
            told = terminal.say("/undo", "in the prompt again.")
            assert told.count("The last compaction was undone") == 1
            terminal.see(PROMPT)
            assert "compaction" not in terminal.see("of 12K").rpartition(PROMPT)[2], (
                "and the line below knows"
            )

    def test_a_compaction_is_shown(self, chat: Any) -> None:
        long = "The books of month seven are settled. " * 150

        def answer(request: Any) -> str:
            return f"Noted {len(request.messages)}. {long}"

        models = [ServedModel("gpt-4o", 12_000, shows="max_model_len")]
        extra = "compression: {background: false}\n"
        with (
            provider_in_thread(answer, models) as served,
            chat(served, extra=extra) as terminal,
        ):
            for number in range(12):
                terminal.say(f"Month {number} please", "Noted ", "of 12K")
                if "◆ Compacted" in terminal.shown:
                    break
            assert "◆ Compacted " in terminal.shown
            assert "summary by " in terminal.shown
            terminal.see("1 compaction")

    def test_cached_tokens_of_claude_are_shown(
        self, home: Path, terminal_of: Any
    ) -> None:
        models = [ServedModel("claude-sonnet-5", 200_000)]
        with provider_in_thread(["Hello there."], models) as served:
            reached = f"provider: anthropic, base_url: '{served.url}', api_key_env: LAB"
            configure(
                home,
                f"model: {{default: claude-sonnet-5, {reached}}}\nprompt_caching: {{cache_ttl: 1h}}\n",
            )
            with terminal_of("chat", LAB="any") as terminal:
                terminal.see(
                    "💾 Prompt caching: ENABLED (Claude via Anthropic, 1h TTL)", PROMPT
                )
                terminal.say("hello", "Hello there.")
            marks = [
                part
                for message in served.log[0].body["messages"]
                for part in message["content"]
            ]
            assert any(
                part["cache_control"]["ttl"] == "1h"
                for part in marks
                if "cache_control" in part
            )

    def test_a_real_model_with_real_tools_in_its_window(
        self, home: Path, workspace: Path, local_file: Path, terminal_of: Any
    ) -> None:
        place = SMOLLM2.path(home)
        place.parent.mkdir(parents=True)
        place.symlink_to(local_file)
        # It would talk for long.
        (home / "config.yaml").write_text("model: {max_tokens: 24}\n", "utf-8")
        with terminal_of(
            "chat", "-m", f"local/{SMOLLM2.name}", "-w", str(workspace)
        ) as terminal:
            terminal.see("8,192 tokens", PROMPT)
            terminal.say("Say hello in one short sentence.", "cache 0%")
            terminal.type("", CTRL_D)
            assert "1 call" in terminal.see("--resume")
            assert terminal.leave() == 0


class TestApproval:
    def test_yes_no_and_always(self, chat: Any, workspace: Path) -> None:
        touch = call_reply(("terminal", {"command": "touch made; echo done"}))
        script = [
            touch,
            "Refused.",
            touch,
            "Made.",
            touch,
            "Again.",
            touch,
            "Once more.",
        ]
        with provider_in_thread(script) as served, chat(served) as terminal:
            terminal.say("make it", "touch made; echo done", "[a]lways")
            terminal.say("n", "Refused.")
            assert not (workspace / "made").exists()
            terminal.see(PROMPT)
            terminal.say("make it", "[a]lways")
            terminal.type("y")
            assert "exit 0" in terminal.see("Made.")
            assert (workspace / "made").exists()
            terminal.see(PROMPT)
            terminal.say("make it", "[a]lways")
            terminal.say("a", "Again.", PROMPT)
            terminal.type("make it")
            assert "[a]lways" not in terminal.see("Once more."), "always is always"

    def test_a_change_is_shown_for_approval(self, chat: Any, workspace: Path) -> None:
        (workspace / "a.txt").write_text("old line\n", "utf-8")
        script = [
            call_reply(("write_file", {"path": "a.txt", "content": "new line\n"})),
            "Written.",
        ]
        with provider_in_thread(script) as served, chat(served) as terminal:
            shown = terminal.say("write", "[a]lways")
            assert "-old line" in shown
            assert "+new line" in shown
            assert (workspace / "a.txt").read_text("utf-8") == "old line\n"
            terminal.say("y", "Written.")
            assert (workspace / "a.txt").read_text("utf-8") == "new line\n"

    def test_events_during_a_question_are_shown_above_it(self, chat: Any) -> None:
        both = call_reply(
            ("terminal", {"command": "echo one; sleep 0.1"}),
            ("terminal", {"command": "echo two"}),
        )
        with provider_in_thread([both, "Both."]) as served, chat(served) as terminal:
            terminal.say("do both", "echo one", "[a]lways")
            terminal.say("y", "echo two", "✓ terminal echo one", "[a]lways")
            terminal.say("y", "✓ terminal echo two", "Both.")
            results = [
                message["content"]
                for message in served.log[-1].body["messages"]
                if message["role"] == "tool"
            ]
            assert ["one" in results[0], "two" in results[1]] == [True, True]

    def test_with_yes_no_approval_is_asked(self, chat: Any) -> None:
        script = [call_reply(("terminal", {"command": "echo $((40 + 2))"})), "Done."]
        with provider_in_thread(script) as served, chat(served, "--yes") as terminal:
            terminal.type("count")
            assert "[a]lways" not in terminal.see("Done.")


class TestInterrupting:
    def test_in_mid_stream(self, chat: Any, fill: Any) -> None:
        with (
            provider_in_thread([Fault("slow", LONG, seconds=0.05), "Go on."]) as served,
            chat(served) as terminal,
        ):
            terminal.say("tell", "word word word")
            terminal.say("", "■ Stopped", PROMPT, end=CTRL_C)
            terminal.say("and now", "Go on.", PROMPT)
            terminal.type("", CTRL_D)
            assert terminal.leave() == 0
        _, messages = last_thread(fill)
        assert [message["role"] for message in messages] == [
            "user",
            "assistant",
            "user",
            "assistant",
        ]
        assert "interrupted" in text_of(messages[1])
        assert text_of(messages[1]).startswith("word word word")

    def test_a_paste_in_mid_stream_waits_for_the_next_message(
        self, chat: Any, fill: Any
    ) -> None:
        script = [Fault("slow", LONG, seconds=0.05), "Read it."]
        pasted = "".join(f"line {number} of a long log\r" for number in range(300))
        with provider_in_thread(script) as served, chat(served) as terminal:
            terminal.say("tell", "word word word")
            terminal.type(f"\x1b[200~{pasted}\x1b[201~", "")
            terminal.say("", "■ Stopped", "[paste 1: 300 lines]", end=CTRL_C)
            terminal.say("", "Read it.", PROMPT)
            terminal.type("", CTRL_D)
            assert terminal.leave() == 0
        _, messages = last_thread(fill)
        assert [message["role"] for message in messages] == [
            "user",
            "assistant",
            "user",
            "assistant",
        ]
        assert text_of(messages[2]).splitlines()[-1] == "line 299 of a long log"

    @pytest.mark.parametrize("marks", [("", ""), ("\x1b[200~", "\x1b[201~")])
    def test_a_paste_before_the_first_prompt_is_one_message(
        self,
        home: Path,
        workspace: Path,
        terminal_of: Any,
        fill: Any,
        marks: tuple[str, str],
    ) -> None:
        lines = [f"line {number} of a long log" for number in range(60)]
        with provider_in_thread(["Read it."]) as served:
            configure_provider(home, served)
            with terminal_of("chat", "-w", str(workspace)) as terminal:
                pasted = "".join(f"{line}\r" for line in lines)
                terminal.say(
                    f"{marks[0]}{pasted}{marks[1]}", "[paste 1: 60 lines]", end=""
                )
                terminal.say("", "Read it.", PROMPT)
                terminal.type("", CTRL_D)
                assert terminal.leave() == 0
        _, messages = last_thread(fill)
        assert [message["role"] for message in messages] == ["user", "assistant"]
        assert text_of(messages[0]).splitlines() == lines

    def test_one_line_before_the_first_prompt_is_sent(
        self, home: Path, workspace: Path, terminal_of: Any
    ) -> None:
        with provider_in_thread(["Read it."]) as served:
            configure_provider(home, served)
            with terminal_of("chat", "-w", str(workspace)) as terminal:
                terminal.say("hello", "Read it.", PROMPT)
                terminal.type("", CTRL_D)
                assert terminal.leave() == 0

    def test_keys_typed_ahead_do_not_answer_a_question(
        self, chat: Any, workspace: Path
    ) -> None:
        first = Fault(
            "slow",
            call_reply(("terminal", {"command": "touch made"}), say=LONG),
            seconds=0.05,
        )
        with provider_in_thread([first, "Not made."]) as served:
            with chat(served) as terminal:
                terminal.say("make it", "word word word")
                terminal.say("y", "[a]lways")
                terminal.say("n", "Not made.")
                terminal.type("", CTRL_C)
            assert not (workspace / "made").exists()

    def test_in_mid_tool_the_child_is_ended_and_the_history_is_valid(
        self, chat: Any, fill: Any, workspace: Path
    ) -> None:
        command = "touch began; sleep 60; touch ended"
        script = [call_reply(("terminal", {"command": command})), "Go on."]
        with provider_in_thread(script) as served, chat(served, "--yes") as terminal:
            terminal.say("wait", "⚙ terminal")
            terminal.say("", "■ Stopped", PROMPT, end=CTRL_C)
            terminal.say("and now", "Go on.", PROMPT)
            terminal.type("", CTRL_D)
            assert terminal.leave() == 0
        assert not (workspace / "ended").exists()
        _, messages = last_thread(fill)
        assert not validate_messages(messages)
        (result,) = [message for message in messages if message["role"] == "tool"]
        assert "nterrupted" in text_of(result)

    def test_closing_the_terminal_ends_running_tools_and_is_recorded(
        self, chat: Any, fill: Any, workspace: Path
    ) -> None:
        command = "echo $$ > pid; sleep 60"
        with (
            provider_in_thread(
                [call_reply(("terminal", {"command": command}))]
            ) as served,
            chat(served, "--yes") as terminal,
        ):
            terminal.say("wait", "⚙ terminal")
            (pid,) = wait_for_pids(workspace / "pid")
            assert is_running(pid)
        assert asyncio.run(are_gone(pid))
        _, messages = last_thread(fill)
        assert [message["role"] for message in messages] == [
            "user",
            "assistant",
            "tool",
        ]
        assert "nterrupted" in text_of(messages[-1])

    def test_at_the_question(self, chat: Any, workspace: Path) -> None:
        with (
            provider_in_thread(
                [call_reply(("terminal", {"command": "touch made"})), "Go on."]
            ) as served,
            chat(served) as terminal,
        ):
            terminal.say("make", "[a]lways")
            terminal.say("", "■ Stopped", PROMPT, end=CTRL_C)
            assert not (workspace / "made").exists()

    def test_at_the_prompt_once_warns_and_twice_ends(
        self, chat: Any, fill: Any
    ) -> None:
        with provider_in_thread() as served, chat(served) as terminal:
            terminal.type("half a thou", CTRL_C)
            terminal.say("", "Ctrl-C again", PROMPT, end=CTRL_C)
            terminal.type("", CTRL_C)
            assert terminal.leave() == 0
            assert not served.log
        assert fill(lambda store: store.list_threads()) == [], (
            "where nothing was said nothing is kept"
        )


class TestResuming:
    def test_by_id_by_number_and_the_last(
        self, chat: Any, fill: Any, terminal_of: Any
    ) -> None:
        with provider_in_thread() as served:
            with chat(served) as terminal:
                terminal.say("remember the harbour", "You said", PROMPT)
                terminal.say("", "--resume ", end=CTRL_D)
                assert terminal.leave() == 0
            thread, _ = last_thread(fill)
            with chat(served, "--resume", thread[:8]) as terminal:
                assert (
                    f"continuing thread {thread[:8]}: 2 messages in context"
                    in terminal.shown
                )
                terminal.say("by id", "You said: by id")
            with chat(served, "--continue") as terminal:
                terminal.say("the last", "You said: the last")
            with terminal_of("chat", "--resume") as terminal:
                terminal.see("remember the harbour", "Which one?")
                terminal.say("1", "continuing thread")
        assert [
            text_of(message)
            for message in received_request(served).messages
            if message["role"] == "user"
        ] == [
            "remember the harbour",
            "by id",
            "the last",
        ]


class TestWithoutATerminal:
    def test_in_a_pipe_calls_that_need_approval_are_refused(
        self, everthread: Any, home: Path, workspace: Path
    ) -> None:
        script = [
            "**Hello.**",
            call_reply(("terminal", {"command": "touch made"})),
            "It was refused.",
        ]
        with provider_in_thread(script) as served:
            configure_provider(home, served)
            answer = everthread(
                "chat",
                "-w",
                str(workspace),
                given=b"hello \\\nthere\n/usage\nmake it\n",
            )
        assert answer.returncode == 0, answer.stderr
        assert "**Hello.**\n" in answer.stdout, "a pipe gets the text as it is"
        assert "1 call" in answer.stdout
        assert "refused" in answer.stdout
        assert "\x1b" not in answer.stdout
        assert "everthread chat --resume" in answer.stdout
        assert not (workspace / "made").exists()
        assert text_of(received_request(served, 0).messages[-1]) == "hello \nthere"

    def test_the_resume_command_repeats_the_base_url(
        self, everthread: Any, workspace: Path
    ) -> None:
        with provider_in_thread(
            ["Hello.", "Again."], [ServedModel("mine", 64_000)]
        ) as served:
            at = f"{served.url}/v1"
            first = everthread(
                "chat",
                "-w",
                str(workspace),
                "--base-url",
                at,
                "-m",
                "mine",
                given=b"hello\n",
            )
            command = first.stdout.split("Continue with: everthread ")[-1].split()
            assert command[-2:] == ["--base-url", at], first.stdout + first.stderr
            second = everthread(*command, "-w", str(workspace), given=b"and on\n")
        assert "Again." in second.stdout, (
            "the thread knows its own model: " + second.stderr
        )
        assert received_request(served).model == "mine"

    def test_a_dumb_terminal_gets_no_escape_sequences_and_can_approve(
        self, home: Path, workspace: Path, terminal_of: Any
    ) -> None:
        with provider_in_thread(
            [call_reply(("terminal", {"command": "echo hi"})), "# Plain"]
        ) as served:
            configure_provider(home, served)
            with terminal_of("chat", "-w", str(workspace), TERM="dumb") as terminal:
                terminal.see(PROMPT)
                terminal.say("hello", "[a]lways", end="\n")
                terminal.say("y", "# Plain", PROMPT, end="\n")
                terminal.say("", "Ctrl-C again", PROMPT, end=CTRL_C)
                terminal.type("", CTRL_D)
                assert terminal.leave() == 0
                assert "\x1b[" not in terminal.raw

    def test_without_a_model_it_says_how_to_get_one(
        self, everthread: Any, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
        for text in ("{}\n", "model: {default: claude-sonnet-4-5}\n"):
            configure(home, text)
            assert "everthread init" in everthread.refuses("chat")

    def test_at_a_terminal_the_local_model_is_offered(self, terminal_of: Any) -> None:
        with terminal_of("chat") as terminal:
            terminal.see("everthread init", "Use the small model on this machine now")
            terminal.type("n")
            assert terminal.leave() == 2

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("--workspace", "/nowhere"), "there is no such directory"),
            (("--resume", "0123"), "0123"),
            (("--continue",), "no thread to continue"),
        ],
    )
    def test_bad_input(
        self, everthread: Any, home: Path, arguments: tuple[str, ...], words: str
    ) -> None:
        configure(
            home,
            "model: {default: mine, base_url: 'http://127.0.0.1:9/v1', context_length: 9000}\n",
        )
        error = everthread.refuses("chat", *arguments)
        assert words in error
        assert error.startswith("everthread: ")
