"""`everthread hook`, called as Claude Code and Codex call it: its answer, the answer's length, the stored messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everthread.lab.context_text import count_utf16_units
from everthread.lab.importers.log import Log
from everthread.lab.importers.thread_import import make_thread_id
from everthread.store.search_records import SearchQuery
from everthread.store.store import Store
from tests.cli.conftest import Command, RunOnStore
from tests.gateway.manager_setup import numbered_text, text_of_tokens

RULE = "Never push to main."
LIMIT = 10_000


def claude_code_log(folder: Path, turns: int = 40) -> Path:
    """A log as Claude Code writes it: an answer is several lines with one id. Emoji count twice in JavaScript."""
    lines: list[Any] = [
        {
            "type": "user",
            "sessionId": "s1",
            "message": {"role": "user", "content": RULE},
        }
    ]
    for turn in range(turns):
        call = {
            "type": "tool_use",
            "id": f"t{turn}",
            "name": "Bash",
            "input": {"command": f"make part{turn}"},
        }
        result = {
            "type": "tool_result",
            "tool_use_id": f"t{turn}",
            "content": text_of_tokens(900, f"part {turn}"),
        }
        for part in ({"type": "text", "text": f"I make part {turn}."}, call):
            message = {
                "role": "assistant",
                "id": f"m{turn}",
                "model": "claude-sonnet-5",
                "content": [part],
            }
            lines.append({"type": "assistant", "message": message})
        lines.append(
            {
                "type": "user",
                "message": {
                    "role": "user",
                    "content": [result],
                },
            }
        )
        lines.append(
            {
                "type": "user",
                "message": {
                    "role": "user",
                    "content": f"🚀 Wish {turn}: " + "🚀 faster " * 60,
                },
            }
        )
    file = folder / "log.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    return file


def codex_log(folder: Path, turns: int = 40) -> Path:
    items: list[Any] = []
    for turn in range(turns):
        text = f"{RULE} Wish {turn}." if not turn else numbered_text(turn, 40, "wish")
        items += [
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": text}],
            },
            {
                "type": "function_call",
                "name": "shell",
                "arguments": f'{{"command": "make part{turn}"}}',
                "call_id": f"c{turn}",
            },
            {
                "type": "function_call_output",
                "call_id": f"c{turn}",
                "output": text_of_tokens(900, f"part {turn}"),
            },
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": f"Part {turn}."}],
            },
        ]
    lines = [
        {
            "type": "session_meta",
            "payload": {"id": "s1"},
        },
        *({"type": "response_item", "payload": item} for item in items),
    ]
    file = folder / "rollout.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    return file


def call(everthread: Command, client: str, **hook_input: Any) -> Any:
    result = everthread(
        f"hook {client}", stdin=json.dumps({"session_id": "s1", **hook_input}).encode()
    )
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return json.loads(result.stdout)["hookSpecificOutput"] if result.stdout else None


@pytest.mark.parametrize(
    ("client", "write_log"), [("claude-code", claude_code_log), ("codex", codex_log)]
)
def test_the_context_comes_back_after_a_compaction(
    client: str, write_log: Any, everthread: Command, run_on_store: RunOnStore, tmp_path: Path
) -> None:
    hook_input = {"transcript_path": str(write_log(tmp_path))}
    assert (
        call(
            everthread,
            client,
            **hook_input,
            hook_event_name="PreCompact",
            trigger="auto",
        )
        is None
    )
    start = {**hook_input, "hook_event_name": "SessionStart"}
    assert call(everthread, client, **start, source="startup") is None
    output = call(everthread, client, **start, source="compact")
    text = output["additionalContext"]
    assert LIMIT / 3 < count_utf16_units(text) < LIMIT
    assert text.index("Wish 39") < text.index(RULE) < 3_000, "the most useful part comes first"
    assert "make part39" in text

    async def find(store: Store) -> int:
        return len(await store.search(SearchQuery("make part3")))

    assert run_on_store(find) > 0, "everything can be recalled"


def test_the_context_comes_back_without_a_hook_before(everthread: Command, tmp_path: Path) -> None:
    hook_input = {
        "transcript_path": str(claude_code_log(tmp_path)),
        "hook_event_name": "SessionStart",
        "source": "compact",
    }
    assert RULE in call(everthread, "claude-code", **hook_input)["additionalContext"]


def test_a_large_result_becomes_a_preview_that_can_be_read(
    everthread: Command, run_on_store: RunOnStore
) -> None:
    output = text_of_tokens(20_000, "the log of a build")
    response = {
        "stdout": output,
        "stderr": "",
        "interrupted": False,
        "isImage": False,
    }
    hook_input = {
        "hook_event_name": "PostToolUse",
        "tool_name": "Bash",
        "tool_use_id": "t1",
        "tool_input": {},
    }
    shortened = call(everthread, "claude-code", **hook_input, tool_response=response)[
        "updatedToolOutput"
    ]
    assert {**shortened, "stdout": output} == response, "only the output differs"
    assert len(shortened["stdout"]) < 4_000
    assert shortened["stdout"].count(output[:500]) == shortened["stdout"].count(output[-500:]) == 1

    async def read(store: Store) -> str:
        thread = make_thread_id(Log("", "claude-code", [], session_id="s1"))
        stored = (await store.outputs.list_outputs(thread))[0]
        assert stored.id in shortened["stdout"]
        return await store.outputs.load_output(stored.id)

    assert run_on_store(read) == output
    for tool, tool_response in (
        ("Bash", {**response, "stdout": "short"}),
        ("Read", response),
        ("mcp__everthread__expand", output),
    ):
        other_input = {
            **hook_input,
            "tool_name": tool,
            "tool_response": tool_response,
        }
        assert call(everthread, "claude-code", **other_input) is None


def test_a_failing_hook_does_not_block_the_client(everthread: Command) -> None:
    missing = json.dumps(
        {
            "session_id": "s1",
            "hook_event_name": "PreCompact",
            "transcript_path": "/nowhere",
        }
    ).encode()
    for arguments, hook_input in (
        ("hook claude-code", missing),
        ("hook claude-code", b"{"),
        ("hook vim", b"{}"),
    ):
        result = everthread(arguments, stdin=hook_input)
        assert result.returncode == 1
        assert result.stderr.startswith("everthread: ")
