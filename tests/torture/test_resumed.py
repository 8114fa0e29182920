"""One session of Claude Code stays one conversation, whatever changes when it is resumed.

The steps: a run past its window several times, another run, a renewed login, `wrap --mcp`, `serve` without it, the
client's own `/compact`, a question about the first file, and another session that begins with the same words.
Findings are in `build/torture/clients/resumed.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.torture.clients.model import FACT
from tests.torture.clients.programs import PROGRAMS
from tests.torture.clients.resumed import ROUNDS, STEPS, WINDOW
from tests.torture.clients.start import run_program

pytestmark = pytest.mark.timeout(1_800)
RESUMED = ("again", "renewed", "mcp", "serve")


def test_a_session_stays_one_conversation(tmp_path: Path) -> None:
    found = run_program(
        PROGRAMS["claude-defaults"],
        tmp_path / "run",
        module="tests.torture.clients.resumed",
        name="resumed",
    )
    for step in STEPS:
        assert found[step.name]["code"] == 0, found[step.name]["errors"]
        assert found[step.name]["refused"] == []
    check_window_is_learnt_once(found)
    [main] = found["task"]["threads"]
    assert main["calls"] > ROUNDS
    assert main["compactions"] >= 3
    for name in RESUMED:
        check_nothing_changed(found[name], main)
    assert not any(found["mcp"]["offers_recall"]), "our MCP server replaces it"
    assert all(found["serve"]["offers_recall"]), "our MCP server is detached again"
    for name in ("again", "renewed"):
        count, shared = found[name]["repeated"]
        assert shared == count, "the compacted history goes on byte for byte"
    check_compacted_conversation_goes_on(found, main)
    check_other_session_is_apart(found, main)


def check_window_is_learnt_once(found: dict[str, Any]) -> None:
    """Check that only the first process was refused by the provider."""
    [refusal] = found["task"]["refused_upstream"]
    assert str(WINDOW) in refusal
    for step in STEPS[1:]:
        assert found[step.name]["refused_upstream"] == [], step.name


def check_nothing_changed(step: dict[str, Any], main: dict[str, Any]) -> None:
    """Check that a step went on in the thread, with the compactions that it had."""
    [thread] = step["threads"]
    assert thread["id"] == main["id"]
    assert thread["compactions"] == main["compactions"]
    assert "compaction_done" not in step["events"]
    assert max(step["prompts"]) < WINDOW


def check_compacted_conversation_goes_on(
    found: dict[str, Any], main: dict[str, Any]
) -> None:
    """Check that after the client's own compaction recall finds what came before."""
    assert "compaction_done" not in found["compact"]["events"]
    [continued] = [
        thread
        for thread in found["question"]["threads"]
        if thread["id"] != main["id"] and thread["kind"] != "side"
    ]
    assert continued["parent"]
    assert main["id"] in continued["family"]
    assert all(found["question"]["offers_recall"])
    assert found["question"]["events"]["recall"] == 1
    assert FACT in found["question"]["said"]
    assert found["answered_by_recall"]


def check_other_session_is_apart(found: dict[str, Any], main: dict[str, Any]) -> None:
    """Check that another session id is another conversation, though its words are the same."""
    known = {thread["id"] for thread in found["question"]["threads"]}
    [other] = [
        thread for thread in found["other"]["threads"] if thread["id"] not in known
    ]
    assert other["family"] == [other["id"]]
    assert main["id"] not in other["family"]
