"""`everthread hook`, called as the plug-ins of opencode and pi call it: contexts, previews, and recall."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everthread.core.messages import Message
from tests.cli.conftest import Command
from tests.gateway.manager_setup import text_of_tokens

RULE = "Never push to main."
SECRET = "The vault is behind the mirror."


def ask(everthread: Command, client: str, **hook_input: Any) -> Any:
    """Return the answer to a plug-in; None if it is empty."""
    stdin = json.dumps({"session": "s1", **hook_input}).encode()
    result = everthread(f"hook {client}", stdin=stdin)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return json.loads(result.stdout) if result.stdout else None


def opencode_session(turns: int = 30) -> dict[str, Any]:
    """A session as opencode's client returns it."""
    messages: list[Any] = []
    for turn in range(turns):
        message = f"{RULE} {SECRET}" if turn == 0 else f"Wish {turn}"
        messages += [
            {
                "info": {"role": "user"},
                "parts": [{"type": "text", "text": message}],
            },
            {
                "info": {"role": "assistant", "modelID": "claude-sonnet-5"},
                "parts": [
                    {
                        "type": "tool",
                        "tool": "bash",
                        "callID": f"c{turn}",
                        "state": {
                            "status": "completed",
                            "input": {"command": f"make part{turn}"},
                            "output": text_of_tokens(900, f"part {turn}"),
                        },
                    }
                ],
            },
        ]
    return {
        "info": {"id": "s1"},
        "messages": messages,
    }


def pi_log(folder: Path) -> Path:
    file = folder / "session.jsonl"
    message = {
        "role": "user",
        "content": [{"type": "text", "text": SECRET}],
    }
    answer = {
        "role": "assistant",
        "content": [{"type": "text", "text": "Noted."}],
        "model": "m",
    }
    lines = [
        {
            "type": "session",
            "version": 3,
            "id": "s1",
            "cwd": "/work",
        },
        {
            "type": "message",
            "id": "a",
            "parentId": None,
            "message": message,
        },
        {
            "type": "message",
            "id": "b",
            "parentId": "a",
            "message": answer,
        },
    ]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    return file


def pi_messages() -> list[Message]:
    messages: list[Message] = [{"role": "user", "content": RULE}]
    for turn in range(30):
        messages += [
            {"role": "assistant", "content": text_of_tokens(900, f"answer {turn}")},
            {"role": "user", "content": f"Wish {turn}"},
        ]
    return messages


def test_opencode_gets_the_words_and_the_work_and_can_recall(everthread: Command) -> None:
    session = opencode_session()
    text = ask(everthread, "opencode", event="compact", transcript=session)["text"]
    assert text.index("Wish 29") < text.index(RULE)
    assert "make part29" in text
    short = {**session, "messages": session["messages"][:1]}
    assert ask(everthread, "opencode", event="compact", transcript=short) is None
    recalled = ask(everthread, "opencode", event="recall", arguments={"query": "vault mirror"})
    assert SECRET in recalled["text"]


def test_pi_gets_a_summary_and_the_messages_of_the_next_one(
    everthread: Command, tmp_path: Path
) -> None:
    hook_input = {
        "event": "compact",
        "transcript_path": str(pi_log(tmp_path)),
        "model": "gpt-5",
        "window": 20_000,
    }
    result = ask(everthread, "pi", **hook_input, messages=pi_messages())
    assert RULE in result["summary"]
    assert result["tokens_after"] < result["tokens_before"]
    again = [*result["messages"], *pi_messages()[1:]]
    assert RULE in ask(everthread, "pi", **hook_input, messages=again)["summary"]
    recalled = ask(everthread, "pi", event="recall", arguments={"query": "vault mirror"})
    assert SECRET in recalled["text"]


@pytest.mark.parametrize(
    ("client", "reader"), [("opencode", "expand of the MCP server"), ("pi", "recall")]
)
def test_a_large_result_becomes_a_preview_that_can_be_read(
    everthread: Command, client: str, reader: str
) -> None:
    output = text_of_tokens(20_000, "the log of a build")
    hook_input = {
        "event": "tool_result",
        "tool": "bash",
        "call": "c1",
    }
    preview = ask(everthread, client, **hook_input, text=output)["text"]
    assert len(preview) < 4_000
    assert reader in preview
    assert ask(everthread, client, **hook_input, text="short") is None
    start = preview.index("output:")
    full_result = ask(
        everthread,
        client,
        event="recall",
        arguments={"id": preview[start : start + len("output:") + 16]},
    )
    assert output[:2_000] in full_result["text"]


@pytest.mark.parametrize(
    ("hook_input", "why"),
    [
        ({"event": "compact"}, "no transcript"),
        ({"event": "sing"}, "unknown"),
        ({"event": "recall", "arguments": {}}, "query"),
    ],
)
def test_a_bad_event_is_one_line_and_exit_code_1(
    everthread: Command, hook_input: dict[str, Any], why: str
) -> None:
    result = everthread("hook pi", stdin=json.dumps(hook_input).encode())
    assert result.returncode == 1
    [line] = result.stderr.splitlines()
    assert why in line
