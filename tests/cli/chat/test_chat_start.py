"""Starting a chat: resuming a thread, without a terminal, without a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from everthread.core.messages import text_of
from everthread.lab.provider import ServedModel
from tests.chat_messages import call_reply
from tests.cli.chat.chat_checks import PROMPT, last_thread, received_request
from tests.cli.chat.conftest import OpenChat, OpenTerminal
from tests.cli.conftest import Command, RunOnStore, configure
from tests.cli.provider_thread import configured_provider, provider_in_thread
from tests.cli.terminal import CTRL_C, CTRL_D


class TestResuming:
    def test_a_thread_is_resumed_by_id_by_number_or_as_the_last(
        self, chat: OpenChat, run_on_store: RunOnStore, open_terminal: OpenTerminal
    ) -> None:
        with provider_in_thread() as provider:
            with chat(provider) as terminal:
                terminal.enter("remember the harbour", "You said", PROMPT)
                terminal.enter("", "--resume ", end=CTRL_D)
                assert terminal.wait_for_exit() == 0
            thread, _ = last_thread(run_on_store)
            with chat(provider, f"--resume {thread[:8]}") as terminal:
                assert f"continuing thread {thread[:8]}: 2 messages in context" in terminal.shown
                terminal.enter("by id", "You said: by id")
            with chat(provider, "--continue") as terminal:
                terminal.enter("the last", "You said: the last")
            with open_terminal("chat --resume") as terminal:
                terminal.wait_for("remember the harbour", "Which one?")
                terminal.enter("1", "continuing thread")
        assert [
            text_of(message)
            for message in received_request(provider).messages
            if message["role"] == "user"
        ] == [
            "remember the harbour",
            "by id",
            "the last",
        ]


class TestWithoutATerminal:
    def test_calls_that_need_approval_are_refused_in_a_pipe(
        self, everthread: Command, home: Path, workspace: Path
    ) -> None:
        script = [
            "**Hello.**",
            call_reply(("terminal", {"command": "touch made"})),
            "It was refused.",
        ]
        with configured_provider(home, script) as provider:
            result = everthread(
                f"chat -w {workspace}",
                stdin=b"hello \\\nthere\n/usage\nmake it\n",
            )
        assert result.returncode == 0, result.stderr
        assert "**Hello.**\n" in result.stdout, "a pipe gets unrendered text"
        assert "1 call" in result.stdout
        assert "refused" in result.stdout
        assert "\x1b" not in result.stdout
        assert "everthread chat --resume" in result.stdout
        assert not (workspace / "made").exists()
        assert text_of(received_request(provider, 0).messages[-1]) == "hello \nthere"

    def test_the_resume_command_repeats_the_base_url(
        self, everthread: Command, workspace: Path
    ) -> None:
        with provider_in_thread(["Hello.", "Again."], [ServedModel("mine", 64_000)]) as provider:
            at = f"{provider.url}/v1"
            first = everthread(
                f"chat -w {workspace} --base-url {at} -m mine",
                stdin=b"hello\n",
            )
            command = first.stdout.split("Continue with: everthread ")[-1].split()
            assert command[-2:] == ["--base-url", at], first.stdout + first.stderr
            result = everthread(*command, f"-w {workspace}", stdin=b"and on\n")
        assert "Again." in result.stdout, "the thread knows its own model: " + result.stderr
        assert received_request(provider).model == "mine"

    def test_a_dumb_terminal_gets_no_escape_sequences_and_can_approve(
        self, home: Path, workspace: Path, open_terminal: OpenTerminal
    ) -> None:
        with (
            configured_provider(
                home, [call_reply(("terminal", {"command": "echo hi"})), "# Plain"]
            ),
            open_terminal(f"chat -w {workspace}", TERM="dumb") as terminal,
        ):
            terminal.wait_for(PROMPT)
            terminal.enter("hello", "[a]lways", end="\n")
            terminal.enter("y", "# Plain", PROMPT, end="\n")
            terminal.enter("", "Ctrl-C again", PROMPT, end=CTRL_C)
            terminal.type("", CTRL_D)
            assert terminal.wait_for_exit() == 0
            assert "\x1b[" not in terminal.raw

    def test_a_missing_model_is_an_error_with_advice(
        self, everthread: Command, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
        for text in ("{}\n", "model: {default: claude-sonnet-4-5}\n"):
            configure(home, text)
            assert "everthread init" in everthread.refuses("chat")

    def test_at_a_terminal_the_local_model_is_offered(self, open_terminal: OpenTerminal) -> None:
        with open_terminal("chat") as terminal:
            terminal.wait_for("everthread init", "Use the small model on this machine now")
            terminal.type("n")
            assert terminal.wait_for_exit() == 2

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ("--workspace /nowhere", "there is no such directory"),
            ("--resume 0123", "0123"),
            ("--continue", "no thread to continue"),
        ],
    )
    def test_explains_a_wrong_option(
        self, everthread: Command, home: Path, arguments: str, words: str
    ) -> None:
        configure(
            home,
            "model: {default: mine, base_url: 'http://127.0.0.1:9/v1', context_length: 9000}\n",
        )
        error = everthread.refuses(f"chat {arguments}")
        assert words in error
        assert error.startswith("everthread: ")
