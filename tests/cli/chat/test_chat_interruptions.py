"""Ctrl-C, pastes and keys typed ahead in a chat."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from everthread.core.messages import text_of
from everthread.core.validation import validate_messages
from everthread.lab.provider import Fault
from tests.agent.process_checks import are_gone, is_running
from tests.chat_messages import call_reply
from tests.cli.chat.chat_checks import LONG, PROMPT, last_thread, wait_for_pid_file
from tests.cli.chat.conftest import OpenChat, OpenTerminal
from tests.cli.conftest import RunOnStore
from tests.cli.provider_thread import configured_provider, provider_in_thread
from tests.cli.terminal import CTRL_C, CTRL_D


def test_ctrl_c_stops_a_streaming_answer(chat: OpenChat, run_on_store: RunOnStore) -> None:
    with (
        provider_in_thread([Fault("slow", LONG, seconds=0.05), "Go on."]) as provider,
        chat(provider) as terminal,
    ):
        terminal.enter("tell", "word word word")
        terminal.enter("", "■ Stopped", PROMPT, end=CTRL_C)
        terminal.enter("and now", "Go on.", PROMPT)
        terminal.type("", CTRL_D)
        assert terminal.wait_for_exit() == 0
    _, messages = last_thread(run_on_store)
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert "interrupted" in text_of(messages[1])
    assert text_of(messages[1]).startswith("word word word")


def test_a_paste_during_an_answer_waits_for_the_next_message(
    chat: OpenChat, run_on_store: RunOnStore
) -> None:
    script = [Fault("slow", LONG, seconds=0.05), "Read it."]
    pasted = "".join(f"line {number} of a long log\r" for number in range(300))
    with provider_in_thread(script) as provider, chat(provider) as terminal:
        terminal.enter("tell", "word word word")
        terminal.type(f"\x1b[200~{pasted}\x1b[201~", "")
        terminal.enter("", "■ Stopped", "[paste 1: 300 lines]", end=CTRL_C)
        terminal.enter("", "Read it.", PROMPT)
        terminal.type("", CTRL_D)
        assert terminal.wait_for_exit() == 0
    _, messages = last_thread(run_on_store)
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert text_of(messages[2]).splitlines()[-1] == "line 299 of a long log"


@pytest.mark.parametrize("marks", [("", ""), ("\x1b[200~", "\x1b[201~")])
def test_a_paste_before_the_first_prompt_is_one_message(
    home: Path,
    workspace: Path,
    open_terminal: OpenTerminal,
    run_on_store: RunOnStore,
    marks: tuple[str, str],
) -> None:
    lines = [f"line {number} of a long log" for number in range(60)]
    with (
        configured_provider(home, ["Read it."]),
        open_terminal(f"chat -w {workspace}") as terminal,
    ):
        pasted = "".join(f"{line}\r" for line in lines)
        terminal.enter(f"{marks[0]}{pasted}{marks[1]}", "[paste 1: 60 lines]", end="")
        terminal.enter("", "Read it.", PROMPT)
        terminal.type("", CTRL_D)
        assert terminal.wait_for_exit() == 0
    _, messages = last_thread(run_on_store)
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert text_of(messages[0]).splitlines() == lines


def test_one_line_before_the_first_prompt_is_sent(
    home: Path, workspace: Path, open_terminal: OpenTerminal
) -> None:
    with (
        configured_provider(home, ["Read it."]),
        open_terminal(f"chat -w {workspace}") as terminal,
    ):
        terminal.enter("hello", "Read it.", PROMPT)
        terminal.type("", CTRL_D)
        assert terminal.wait_for_exit() == 0


def test_keys_typed_ahead_do_not_answer_a_question(chat: OpenChat, workspace: Path) -> None:
    first = Fault(
        "slow",
        call_reply(("terminal", {"command": "touch made"}), text=LONG),
        seconds=0.05,
    )
    with provider_in_thread([first, "Not made."]) as provider:
        with chat(provider) as terminal:
            terminal.enter("make it", "word word word")
            terminal.enter("y", "[a]lways")
            terminal.enter("n", "Not made.")
            terminal.type("", CTRL_C)
        assert not (workspace / "made").exists()


def test_ctrl_c_ends_a_running_tool_and_the_history_is_valid(
    chat: OpenChat, run_on_store: RunOnStore, workspace: Path
) -> None:
    command = "touch began; sleep 60; touch ended"
    script = [call_reply(("terminal", {"command": command})), "Go on."]
    with provider_in_thread(script) as provider, chat(provider, "--yes") as terminal:
        terminal.enter("wait", "⚙ terminal")
        terminal.enter("", "■ Stopped", PROMPT, end=CTRL_C)
        terminal.enter("and now", "Go on.", PROMPT)
        terminal.type("", CTRL_D)
        assert terminal.wait_for_exit() == 0
    assert not (workspace / "ended").exists()
    _, messages = last_thread(run_on_store)
    assert not validate_messages(messages)
    (result,) = [message for message in messages if message["role"] == "tool"]
    assert "nterrupted" in text_of(result)


def test_closing_the_terminal_ends_running_tools_and_is_recorded(
    chat: OpenChat, run_on_store: RunOnStore, workspace: Path
) -> None:
    command = "echo $$ > pid; sleep 60"
    with (
        provider_in_thread([call_reply(("terminal", {"command": command}))]) as provider,
        chat(provider, "--yes") as terminal,
    ):
        terminal.enter("wait", "⚙ terminal")
        (pid,) = wait_for_pid_file(workspace / "pid")
        assert is_running(pid)
    assert asyncio.run(are_gone(pid))
    _, messages = last_thread(run_on_store)
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "tool",
    ]
    assert "nterrupted" in text_of(messages[-1])


def test_ctrl_c_at_the_approval_question_stops_the_turn(
    chat: OpenChat, run_on_store: RunOnStore, workspace: Path
) -> None:
    call = call_reply(("terminal", {"command": "touch made"}))
    with provider_in_thread([call, "Go on."]) as provider, chat(provider) as terminal:
        terminal.enter("make", "[a]lways")
        terminal.enter("", "■ Stopped", PROMPT, end=CTRL_C)
        assert not (workspace / "made").exists()
    _, messages = last_thread(run_on_store)
    assert messages[-1]["role"] == "tool"
    assert "nterrupted" in text_of(messages[-1])


def test_ctrl_c_at_the_prompt_warns_once_then_ends(
    chat: OpenChat, run_on_store: RunOnStore
) -> None:
    with provider_in_thread() as provider, chat(provider) as terminal:
        terminal.type("half a thou", CTRL_C)
        terminal.enter("", "Ctrl-C again", PROMPT, end=CTRL_C)
        terminal.type("", CTRL_C)
        assert terminal.wait_for_exit() == 0
        assert not provider.log
    assert run_on_store(lambda store: store.list_threads()) == [], "an empty thread is deleted"
