"""Approving tool calls in a chat."""

from __future__ import annotations

from pathlib import Path

from tests.chat_messages import call_reply
from tests.cli.chat.chat_checks import PROMPT
from tests.cli.chat.conftest import OpenChat
from tests.cli.provider_thread import provider_in_thread


def test_an_answer_allows_refuses_or_always_allows(chat: OpenChat, workspace: Path) -> None:
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
    with provider_in_thread(script) as provider, chat(provider) as terminal:
        terminal.enter("make it", "touch made; echo done", "[a]lways")
        terminal.enter("n", "Refused.")
        assert not (workspace / "made").exists()
        terminal.wait_for(PROMPT)
        terminal.enter("make it", "[a]lways")
        terminal.type("y")
        assert "exit 0" in terminal.wait_for("Made.")
        assert (workspace / "made").exists()
        terminal.wait_for(PROMPT)
        terminal.enter("make it", "[a]lways")
        terminal.enter("a", "Again.", PROMPT)
        terminal.type("make it")
        assert "[a]lways" not in terminal.wait_for("Once more."), "`always` is not asked again"


def test_a_change_is_shown_for_approval(chat: OpenChat, workspace: Path) -> None:
    (workspace / "a.txt").write_text("old line\n", "utf-8")
    script = [
        call_reply(("write_file", {"path": "a.txt", "content": "new line\n"})),
        "Written.",
    ]
    with provider_in_thread(script) as provider, chat(provider) as terminal:
        screen = terminal.enter("write", "[a]lways")
        assert "-old line" in screen
        assert "+new line" in screen
        assert (workspace / "a.txt").read_text("utf-8") == "old line\n"
        terminal.enter("y", "Written.")
        assert (workspace / "a.txt").read_text("utf-8") == "new line\n"


def test_events_during_a_question_are_shown_above_it(chat: OpenChat) -> None:
    both = call_reply(
        ("terminal", {"command": "echo one; sleep 0.1"}),
        ("terminal", {"command": "echo two"}),
    )
    with provider_in_thread([both, "Both."]) as provider, chat(provider) as terminal:
        terminal.enter("do both", "echo one", "[a]lways")
        terminal.enter("y", "echo two", "✓ terminal echo one", "[a]lways")
        terminal.enter("y", "✓ terminal echo two", "Both.")
        results = [
            message["content"]
            for message in provider.log[-1].body["messages"]
            if message["role"] == "tool"
        ]
        assert ["one" in results[0], "two" in results[1]] == [True, True]


def test_with_yes_no_approval_is_asked(chat: OpenChat) -> None:
    script = [call_reply(("terminal", {"command": "echo $((40 + 2))"})), "Done."]
    with provider_in_thread(script) as provider, chat(provider, "--yes") as terminal:
        terminal.type("count")
        assert "[a]lways" not in terminal.wait_for("Done.")
