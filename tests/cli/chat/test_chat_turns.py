"""Turns of a chat in a real terminal: streaming, editing, commands, errors, compactions."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

from everthread.core.messages import text_of
from everthread.lab.provider import Fault, ServedModel
from everthread.providers.local import SMOLLM2
from tests.cli.chat.chat_checks import PROMPT, received_request
from tests.cli.chat.conftest import OpenChat, OpenTerminal
from tests.cli.conftest import configure
from tests.cli.provider_thread import provider_in_thread
from tests.cli.terminal import ALT_ENTER, CTRL_D, TAB, UP


def test_answers_stream_as_markdown_with_figures_below(chat: OpenChat) -> None:
    markdown = "# Plan\n\nThis is **bold**.\n\n- one\n- two\n\n```python\nprint(1)\n```\nDone."
    with provider_in_thread([markdown, "Second."]) as provider, chat(provider) as terminal:
        assert "window 64,000 tokens" in terminal.shown
        terminal.wait_for("of 64K")
        screen = terminal.enter("hello", "Done.")
        assert "This is bold." in screen
        assert "• one" in screen
        assert "```" not in screen
        terminal.wait_for("cache 0%")
        terminal.enter("and", "Second.", PROMPT)
        farewell = terminal.enter("", "everthread chat --resume ", end=CTRL_D)
        assert "2 calls" in farewell
        assert "from the cache" in farewell
        assert terminal.wait_for_exit() == 0


def test_several_lines_history_and_completion(chat: OpenChat, home: Path, workspace: Path) -> None:
    (workspace / "ledger.py").touch()
    with provider_in_thread() as provider:
        with chat(provider) as terminal:
            terminal.type("first", ALT_ENTER)
            terminal.type("second\\")
            terminal.enter("third", "You said: first", PROMPT)
            assert text_of(received_request(provider).messages[-1]) == "first\nsecond\nthird"
            terminal.enter("look at led", "ger.py", end=TAB)
            terminal.enter("", "You said: look at ledger.py", PROMPT)
            terminal.type("/exit")
            assert terminal.wait_for_exit() == 0
        with chat(provider) as terminal:
            terminal.enter("", "/exit", end=UP)
            terminal.enter("", "look at ledger.py", end=UP)
    kept = home / "chat_history"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600, "only the user can read the history"


def test_slash_commands_never_reach_the_model(chat: OpenChat) -> None:
    with provider_in_thread() as provider, chat(provider) as terminal:
        terminal.enter("hello", "You said: hello")
        for typed, words in [
            ("/help", "/compress [--preview]"),
            ("/usage", "1 call"),
            ("/context", "64,000"),
            ("/search hello", "after #2 assistant (also a match)"),
            ("/compres", "Did you mean /compress"),
            ("/new", "A new conversation"),
        ]:
            terminal.wait_for(PROMPT)
            terminal.enter(typed, words)
        terminal.wait_for(PROMPT)
        terminal.enter("again", "You said: again")
        assert len(provider.log) == 2
        assert len(received_request(provider).messages) == 1, "the new conversation starts empty"


def test_after_an_error_the_chat_continues(chat: OpenChat) -> None:
    refusal = Fault("payload_too_large", message="no images today")

    def answer(request: Any) -> Any:
        return "Better." if text_of(request.messages[-1]) == "again" else refusal

    with provider_in_thread(answer) as provider, chat(provider) as terminal:
        terminal.enter("hello", "✗ ", PROMPT)
        terminal.enter("again", "Better.")
        user_texts = [
            text_of(message)
            for message in received_request(provider).messages
            if message["role"] == "user"
        ]
        assert user_texts[0].startswith("hello"), "the failed message stays in the history"


def test_a_command_is_answered_once(chat: OpenChat) -> None:
    long = "The books of month seven are settled. " * 60
    models = [ServedModel("gpt-4o", 12_000, shows="max_model_len")]
    extra = "compression: {background: false, protect_last_n: 2}\n"
    with (
        provider_in_thread(lambda _: f"Noted. {long}", models) as provider,
        chat(provider, config=extra) as terminal,
    ):
        for number in range(6):
            terminal.enter(f"Month {number} please", "Noted.", PROMPT)
        output = terminal.enter("/compress", "1 compaction")
        assert output.count("Compacted: ") == 1
        assert "◆ Compacted" not in output, "the answer replaces the event's line"
        output = terminal.enter("/undo", "in the prompt again.")
        assert output.count("The last compaction was undone") == 1
        terminal.wait_for(PROMPT)
        assert "compaction" not in terminal.wait_for("of 12K").rpartition(PROMPT)[2], (
            "the status line is updated"
        )


def test_a_compaction_is_shown(chat: OpenChat) -> None:
    long = "The books of month seven are settled. " * 150

    def answer(request: Any) -> str:
        return f"Noted {len(request.messages)}. {long}"

    models = [ServedModel("gpt-4o", 12_000, shows="max_model_len")]
    extra = "compression: {background: false}\n"
    with (
        provider_in_thread(answer, models) as provider,
        chat(provider, config=extra) as terminal,
    ):
        for number in range(12):
            terminal.enter(f"Month {number} please", "Noted ", "of 12K")
            if "◆ Compacted" in terminal.shown:
                break
        assert "◆ Compacted " in terminal.shown
        assert "summary by " in terminal.shown
        terminal.wait_for("1 compaction")


def test_cached_tokens_of_claude_are_shown(home: Path, open_terminal: OpenTerminal) -> None:
    models = [ServedModel("claude-sonnet-5", 200_000)]
    with provider_in_thread(["Hello there."], models) as provider:
        reached = f"provider: anthropic, base_url: '{provider.url}', api_key_env: LAB"
        configure(
            home,
            f"model: {{default: claude-sonnet-5, {reached}}}\nprompt_caching: {{cache_ttl: 1h}}\n",
        )
        with open_terminal("chat", LAB="any") as terminal:
            terminal.wait_for("💾 Prompt caching: ENABLED (Claude via Anthropic, 1h TTL)", PROMPT)
            terminal.enter("hello", "Hello there.")
        marks = [
            part for message in provider.log[0].body["messages"] for part in message["content"]
        ]
        assert any(
            part["cache_control"]["ttl"] == "1h" for part in marks if "cache_control" in part
        )


def test_a_real_model_with_real_tools_in_its_window(
    home: Path, workspace: Path, local_file: Path, open_terminal: OpenTerminal
) -> None:
    place = SMOLLM2.path(home)
    place.parent.mkdir(parents=True)
    place.symlink_to(local_file)
    # It would talk for long.
    (home / "config.yaml").write_text("model: {max_tokens: 24}\n", "utf-8")
    with open_terminal(f"chat -m local/{SMOLLM2.name} -w {workspace}") as terminal:
        terminal.wait_for("8,192 tokens", PROMPT)
        terminal.enter("Say hello in one short sentence.", "cache 0%")
        terminal.type("", CTRL_D)
        assert "1 call" in terminal.wait_for("--resume")
        assert terminal.wait_for_exit() == 0
