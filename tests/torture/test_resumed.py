"""One session of a client stays one conversation, whatever changes when it is resumed.

The steps: a run past its window several times, another run, a renewed login, `wrap --mcp`, `serve` without it, Claude
Code's own `/compact`, a question about the first file, and another session that begins with the same words. Findings
are in `build/torture/clients/resumed-NAME.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.torture.clients.model import FACT
from tests.torture.clients.programs import Program
from tests.torture.clients.resumed import RESUMED, list_steps
from tests.torture.clients.start import run_program

pytestmark = pytest.mark.timeout(1_800)


@pytest.mark.parametrize("name", RESUMED)
def test_a_session_stays_one_conversation(name: str, tmp_path: Path) -> None:
    program = RESUMED[name]
    found = run_program(
        program,
        tmp_path / "run",
        module="tests.torture.clients.resumed",
        name=f"resumed-{name}",
    )
    steps = {step.name: found[step.name] for step in list_steps(program)}
    for step in steps.values():
        assert step["code"] == 0, step["errors"]
        assert step["refused"] == []
    assert_window_is_learnt_once(steps)
    [main] = steps["task"]["threads"]
    assert main["calls"] > program.rounds
    assert main["compactions"] >= 3
    for step_name in ("again", "renewed"):
        assert_nothing_changed(steps[step_name], main, program)
    compacted = main
    for step_name in ("mcp", "serve"):
        if step_name in steps:
            compacted = assert_thread_continues(steps[step_name], compacted, program)
    if "mcp" in steps:
        assert not any(steps["mcp"]["offers_recall"]), "our MCP server replaces it"
    assert all(steps["serve"]["offers_recall"]), "our MCP server is detached again"
    assert all(steps["question"]["offers_recall"])
    assert steps["question"]["events"]["recall"] == 1
    assert FACT in steps["question"]["said"]
    assert found["answered_by_recall"]
    if "compact" in steps:
        assert_compacted_conversation_continues(steps, main)
    else:
        assert_thread_continues(steps["question"], compacted, program)
    if "other" in steps:
        assert_other_session_is_apart(steps, main)


def assert_window_is_learnt_once(steps: dict[str, Any]) -> None:
    """Check that only the first process was refused by the provider, and once."""
    first, *others = steps.values()
    assert len(first["refused_upstream"]) == 1
    assert [step["refused_upstream"] for step in others] == [[]] * len(others)


def assert_nothing_changed(step: dict[str, Any], main: dict[str, Any], program: Program) -> None:
    """Check that a step continued the thread with the same compacted history."""
    thread = assert_thread_continues(step, main, program)
    assert thread["compactions"] == main["compactions"]
    count, shared = step["repeated"]
    assert shared > count - program.changing_messages


def assert_thread_continues(
    step: dict[str, Any], before: dict[str, Any], program: Program
) -> dict[str, Any]:
    """Check that a step continued the thread after its compactions; return the thread.

    Other tools cost the cached prompt, so a further compaction may come due.
    """
    [thread] = step["threads"]
    assert thread["id"] == before["id"]
    counts = [count for name, count in step["compacted"] if name == thread["id"]]
    assert counts in ([], [before["compactions"] + 1])
    assert thread["compactions"] == before["compactions"] + len(counts)
    assert max(step["prompts"]) < program.window
    found: dict[str, Any] = thread
    return found


def assert_compacted_conversation_continues(steps: dict[str, Any], main: dict[str, Any]) -> None:
    """Check that the client's own compaction is a continuation, not a conversation of its own."""
    assert steps["compact"]["compacted"] == []
    [continued] = [
        thread
        for thread in steps["question"]["threads"]
        if thread["id"] != main["id"] and thread["kind"] != "side"
    ]
    assert continued["parent"]
    assert main["id"] in continued["family"]


def assert_other_session_is_apart(steps: dict[str, Any], main: dict[str, Any]) -> None:
    """Check that another session id is another conversation, though its words are the same."""
    known = {thread["id"] for thread in steps["question"]["threads"]}
    [other] = [thread for thread in steps["other"]["threads"] if thread["id"] not in known]
    assert not known & set(other["family"])
    assert main["id"] not in other["family"]
