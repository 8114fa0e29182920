"""`everthread sessions show`."""

from __future__ import annotations

import json

from everthread.store.records import NewSession
from everthread.store.store import Store
from tests.cli.conftest import Command, RunAtTerminal, RunOnStore
from tests.cli.sessions.conftest import StoreSession, StoreSessions
from tests.cli.sessions.stored_thread import (
    CONTROL_CHARACTERS,
    HOSTILE,
    SECRET,
    StoredThread,
    call_message,
    text_message,
)

MEGABYTES = 10_000_000


def test_show_prints_every_message_once_in_order(everthread: Command, thread: StoredThread) -> None:
    for session in (thread.id, thread.tip, thread.reverted):
        report = everthread.json(f"sessions show {session}")
        assert report["thread"] == thread.id
        assert [message["id"] for message in report["messages"]] == thread.ids
    output = everthread(f"sessions show {thread.id[:10]}").stdout
    places = [
        output.index(words)
        for words in (
            "Repair the parser",
            "→ terminal",
            "← terminal",
            "is repaired",
            "lexer?",
        )
    ]
    assert places == sorted(places)
    assert "A summary" not in output


def test_context_shows_what_the_model_sees(everthread: Command, thread: StoredThread) -> None:
    output = everthread(f"sessions show {thread.id} --context").stdout
    for words in (
        "Be brief.",
        "Repair the parser",
        "summary",
        "A summary of the beginning.",
        "And the lexer?",
    ):
        assert words in output
    assert "FAILED line" not in output
    report = everthread.json(f"sessions show {thread.id} --context")
    assert report["system"] == "Be brief."
    assert [message["kind"] for message in report["messages"]] == [
        "message",
        "summary",
        *["message"] * 3,
    ]


def test_long_results_are_cut_without_full(everthread: Command, thread: StoredThread) -> None:
    output = everthread(f"sessions show {thread.id}").stdout
    assert "FAILED line 0" in output
    assert "FAILED line 499" not in output
    assert "more characters (--full shows them)" in output
    assert "FAILED line 499" in everthread(f"sessions show {thread.id} --full").stdout
    one = everthread(f"sessions show {thread.id} --message {thread.ids[2]}").stdout
    assert "FAILED line 499" in one
    assert "← terminal" in one
    assert "Repair" not in one


def test_limit_and_offset_select_messages(everthread: Command, thread: StoredThread) -> None:
    report = everthread.json(f"sessions show {thread.id} --offset 3 --limit 2")
    assert [message["id"] for message in report["messages"]] == thread.ids[3:5]


def test_a_branch_begins_with_the_shared_messages(
    everthread: Command, thread: StoredThread
) -> None:
    output = everthread(f"sessions show {thread.branch}").stdout
    assert output.index("Repair the parser") < output.index("Use another way.")
    assert everthread(f"sessions show {thread.branch} --message {thread.ids[0]}").returncode == 0
    assert f"has no message {thread.ids[3]}" in everthread.refuses(
        f"sessions show {thread.branch} --message {thread.ids[3]}"
    )


def test_a_stored_output_is_shown_by_its_id(
    everthread: Command, run_on_store: RunOnStore, thread: StoredThread
) -> None:
    async def store_output(store: Store) -> str:
        return (
            await store.outputs.put_output(
                thread.id, f"the log\ntoken {SECRET}\nits end", tool="terminal"
            )
        ).id

    output_id = run_on_store(store_output)
    command = f"sessions show {thread.id} --output {output_id}"
    assert everthread(command).stdout == "the log\ntoken [REDACTED]\nits end\n"
    assert SECRET in everthread(f"{command} --raw").stdout
    everthread.refuses(f"sessions show {thread.branch} --output {output_id}")


def test_secrets_are_redacted_without_raw(everthread: Command, store_session: StoreSession) -> None:
    blocks = [
        {
            "type": "tool_use",
            "id": "t",
            "name": "login",
            "input": {"password": "hunter2-9XkQ"},
        }
    ]
    secrets = (
        text_message("user", f"My token is {SECRET}"),
        text_message("assistant", blocks),
    )
    store_session(NewSession(id="s", title=f"token {SECRET}"), *secrets)
    for arguments in (
        "show s",
        "show s --json",
        "list",
        "list --json",
        "tree s --json",
    ):
        output = everthread(f"sessions {arguments}").stdout
        assert "[REDACTED]" in output
        assert SECRET not in output
        assert "hunter2" not in output
    for arguments in ("show s --raw", "show s --raw --json"):
        output = everthread(f"sessions {arguments}").stdout
        assert SECRET in output
        assert "hunter2-9XkQ" in output


def test_thoughts_and_images_are_shown(everthread: Command, store_session: StoreSession) -> None:
    image = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + "A" * 5_000},
    }
    thinking = {
        "type": "thinking",
        "thinking": "Let me see.",
        "signature": "x",
    }
    question = text_message("user", [{"type": "text", "text": "What is this?"}, image])
    answer = text_message("assistant", [thinking, {"type": "text", "text": "A cat."}])
    store_session(
        NewSession(id="s"),
        question,
        answer,
        text_message("assistant", "Sure.", reasoning_content="Hm."),
    )
    output = everthread("sessions show s --full").stdout
    for words in (
        "What is this?",
        "[1 image]",
        "(thinking) Let me see.",
        "A cat.",
        "(thinking) Hm.",
        "Sure.",
    ):
        assert words in output
    assert "AAAA" not in output


def test_hostile_text_is_shown_not_obeyed(everthread: Command, store_session: StoreSession) -> None:
    messages = (
        text_message("user", HOSTILE),
        call_message("c", HOSTILE, HOSTILE),
        text_message("tool", HOSTILE, tool_call_id="c"),
    )
    odd = NewSession(
        id="odd",
        title=HOSTILE,
        model=HOSTILE.replace("\ud800", ""),
        platform="x\x1by",
    )
    store_session(odd, *messages, text_message("odd\x1b[1mrole", "x"))
    for arguments in (
        "list",
        "show odd",
        "show odd --full",
        "tree odd",
        "search evil",
    ):
        output = everthread.succeeds(f"sessions {arguments}")
        assert "[bold]this[/bold] :fire:" in output
        assert "你好世界" in output
        assert not CONTROL_CHARACTERS.search(output)
    for arguments in (
        "list",
        "show odd",
        "tree odd",
        "search evil",
    ):
        result = everthread(f"sessions {arguments} --json")
        json.loads(result.stdout)
        assert not CONTROL_CHARACTERS.search(result.stdout)
    assert everthread.json("sessions show odd")["messages"][0]["body"]["content"] == HOSTILE


def test_a_huge_message_is_cut_unless_full(
    everthread: Command, store_session: StoreSession
) -> None:
    store_session(
        NewSession(id="s"),
        text_message("user", "start " + "x" * MEGABYTES + " end"),
        text_message("assistant", "Read."),
    )
    output = everthread("sessions show s").stdout
    assert len(output) < 10_000
    assert "start x" in output
    assert "Read." in output
    assert len(everthread("sessions show s --full").stdout) > MEGABYTES
    assert len(everthread("sessions list").stdout) < 10_000


def test_options_that_exclude_each_other_are_refused(
    everthread: Command, thread: StoredThread
) -> None:
    assert "exclude each other" in everthread.refuses(
        f"sessions show {thread.id} --context --message 1"
    )


def test_a_terminal_gets_colours_through_the_pager(
    at_terminal: RunAtTerminal, thread: StoredThread
) -> None:
    code, screen = at_terminal(f"sessions show {thread.id}")
    assert code == 0
    assert "Repair the parser" in screen
    assert "\x1b[" in screen


def test_a_session_without_messages_says_so(
    everthread: Command, store_sessions: StoreSessions
) -> None:
    store_sessions(NewSession(id="s"))
    assert "no messages" in everthread("sessions show s").stdout
