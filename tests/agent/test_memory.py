"""Memory outlives conversations, holds no secrets, and is in the prompt from a session's start on."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from everthread.agent import MAX_MEMORY_CHARS, MAX_USER_CHARS
from everthread.agent.memory import MemoryFiles, get_tenant_memory_folder
from everthread.agent.system_prompt import SystemPrompt
from everthread.core.messages import content_text
from everthread.core.tokens import TokenCounter
from everthread.errors import InputError
from everthread.store.records import NewSession
from everthread.testing import ScriptedModel
from tests.agent.agent_setup import Agents, tool_results
from tests.chat_messages import call_reply

TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


async def test_entries_are_added_replaced_and_removed(tmp_path: Path) -> None:
    memory = MemoryFiles(tmp_path)
    await memory.add("memory", "The ledger listens on 8443.")
    await memory.add("memory", "Tests run with `make check`.\nIt takes a minute.")
    await memory.add("memory", "The ledger listens on 8443.")
    assert memory.read_entries("memory") == [
        "The ledger listens on 8443.",
        "Tests run with `make check`.\nIt takes a minute.",
    ]
    await memory.replace("memory", "8443", "The ledger listens on 9443.")
    await memory.remove("memory", "make check")
    assert (tmp_path / "MEMORY.md").read_text("utf-8") == "- The ledger listens on 9443.\n"
    await memory.add("user", "Prefers short answers.")
    await memory.remove("user", "1")
    assert memory.read_entries("user") == []


async def test_other_text_in_a_memory_file_stays(tmp_path: Path) -> None:
    by_hand = "# Mine\n\nSome prose.\n- first\n  more of it\n\n## Later\n- second\n"
    (tmp_path / "MEMORY.md").write_text(by_hand, "utf-8")
    memory = MemoryFiles(tmp_path)
    assert memory.read_entries("memory") == ["first\nmore of it", "second"]
    await memory.add("memory", "third")
    assert (tmp_path / "MEMORY.md").read_text("utf-8") == f"{by_hand}- third\n"
    await memory.remove("memory", "first")
    assert (tmp_path / "MEMORY.md").read_text(
        "utf-8"
    ) == "# Mine\n\nSome prose.\n\n## Later\n- second\n- third\n"


async def test_an_entry_that_is_not_clear_is_refused(tmp_path: Path) -> None:
    memory = MemoryFiles(tmp_path)
    await memory.add("memory", "red house")
    await memory.add("memory", "red car")
    with pytest.raises(InputError, match="2 entries"):
        await memory.remove("memory", "red")
    with pytest.raises(InputError, match="no entry"):
        await memory.replace("memory", "blue", "x")
    with pytest.raises(InputError, match="empty"):
        await memory.add("memory", " - ")
    assert len(memory.read_entries("memory")) == 2


async def test_an_entry_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    memory = MemoryFiles(tmp_path)
    await memory.add("user", "x" * (MAX_USER_CHARS - 10))
    with pytest.raises(InputError, match=f"{MAX_USER_CHARS:,} are the limit"):
        await memory.add("user", "one more thing to know")
    assert len(memory.read_entries("user")) == 1
    (tmp_path / "MEMORY.md").write_text("- y\n" * MAX_MEMORY_CHARS, "utf-8")
    assert len(memory.read_text("memory")) < MAX_MEMORY_CHARS + 200
    assert "the rest is left out" in memory.read_text("memory")
    await memory.remove("memory", "1")


async def test_secrets_are_never_stored(tmp_path: Path) -> None:
    memory = MemoryFiles(tmp_path)
    change = await memory.add("memory", f"Push with the token {TOKEN}")
    assert change.was_redacted
    assert TOKEN not in (tmp_path / "MEMORY.md").read_text("utf-8")
    (tmp_path / "USER.md").write_text(f"- token {TOKEN}\n", "utf-8")
    assert TOKEN not in memory.read_text("user")
    assert TOKEN not in str(memory.read_entries("user"))


async def test_concurrent_changes_are_all_stored(tmp_path: Path) -> None:
    """Two memories of one folder are what two processes are to each other."""
    some = MemoryFiles(tmp_path)
    other = MemoryFiles(tmp_path)
    await asyncio.gather(*((some, other)[n % 2].add("memory", f"fact {n}") for n in range(30)))
    assert sorted(some.read_entries("memory")) == sorted(f"fact {n}" for n in range(30))
    assert not list(tmp_path.glob(".MEMORY.md.*")), "no temporary file is left"


@pytest.mark.parametrize("tenant", ["acme", "../../etc", "a/b", "", "..", "名前", "x" * 300])
def test_a_tenant_has_a_folder_of_its_own_inside_the_home(tmp_path: Path, tenant: str) -> None:
    folder = get_tenant_memory_folder(tmp_path, tenant)
    assert folder.resolve().is_relative_to(tmp_path.resolve() / "tenants")
    assert folder.resolve() != tmp_path.resolve() / "tenants"
    assert get_tenant_memory_folder(tmp_path, "default") == tmp_path


async def test_the_next_session_sees_what_the_model_stored(agents: Agents, home: Path) -> None:
    add = (
        "memory",
        {
            "action": "add",
            "target": "user",
            "text": "Is called Ines.",
        },
    )
    secret = ("memory", {"action": "add", "text": f"The token is {TOKEN}"})
    wrong = ("memory", {"action": "forget"})
    entries = ("memory", {"action": "list", "target": "user"})
    model = ScriptedModel([call_reply(add, secret, wrong, entries), "Kept."])
    agent = await agents.open(model)
    await agent.send("I am Ines.")
    assert "Is called Ines." in (home / "USER.md").read_text("utf-8")
    assert "credential" in tool_results(agent)[1]
    assert "there is no action 'forget'" in tool_results(agent)[2]
    assert "1. Is called Ines." in tool_results(agent)[3]
    assert "Ines" not in content_text(model.requests[-1].system), (
        "the prompt of a running session does not change"
    )
    after = ScriptedModel(["Hello, Ines."])
    await (await agents.open(after)).send("Hello.")
    assert "Is called Ines." in content_text(after.requests[0].system)
    assert TOKEN not in content_text(after.requests[0].system)


async def test_tenants_do_not_see_each_others_memory(agents: Agents) -> None:
    add = call_reply(("memory", {"action": "add", "text": "Acme's ledger is on 8443."}))
    first = await agents.open(ScriptedModel([add, "ok"]), session=NewSession(tenant="acme"))
    await first.send("Note it.")
    other = ScriptedModel(["hm"])
    same = ScriptedModel(["yes"])
    await (await agents.open(other, session=NewSession(tenant="bolt"))).send("What do you know?")
    await (await agents.open(same, session=NewSession(tenant="acme"))).send("What do you know?")
    assert "8443" not in content_text(other.requests[0].system)
    assert "8443" in content_text(same.requests[0].system)


async def test_after_a_compaction_the_prompt_has_the_new_memory_and_the_open_tasks(
    agents: Agents,
) -> None:
    plan = {
        "items": [
            {"text": "Sort the receipts", "status": "in_progress"},
            {"text": "Close the year"},
        ]
    }
    keep = ("memory", {"action": "add", "text": "Receipts are in the blue folder."})
    script: list[Any] = [call_reply(("todo", plan), keep), "Planned.", *["Noted."] * 12]
    model = ScriptedModel(script, window=24_000)
    agent = await agents.open(model, config="compression: {background: false, protect_last_n: 2}")
    await agent.send("Sort the receipts, then close the year.")
    await agents.send_until_compacted(agent, 1_500)
    prompt = content_text(model.requests[-1].system)
    assert "Receipts are in the blue folder." in prompt
    assert "[>] Sort the receipts\n[ ] Close the year" in prompt
    other = await agent.conversation.open_another(new=NewSession())
    assert "Sort the receipts" not in content_text(other.session.system), (
        "a list belongs to its thread"
    )


async def test_a_list_of_tasks_survives_a_restart(agents: Agents) -> None:
    good = {
        "items": [{"text": "Water the plants"}],
    }
    bad = {
        "items": [{"text": "x", "status": "half"}],
    }
    agent = await agents.run_calls(("todo", good), ("todo", bad, "bad"))
    assert "status 'half'" in tool_results(agent)[1]
    again = await agents.open(
        ScriptedModel([call_reply(("todo", {})), "Still the plants."]),
        resume=agent.conversation.id,
    )
    await again.send("What was left?")
    assert tool_results(again)[-1] == "[ ] Water the plants"


def test_the_prompt_is_the_same_bytes_for_the_same_files(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Use tabs.\n" + "More.\n" * 10_000, "utf-8")
    (tmp_path / "MEMORY.md").write_text("- a fact\n", "utf-8")
    memory = MemoryFiles(tmp_path)
    prompt = SystemPrompt(tmp_path, memory, max_instructions_chars=500)
    assert prompt() == prompt() == SystemPrompt(tmp_path, memory, max_instructions_chars=500)()
    assert "Use tabs." in prompt()
    assert "AGENTS.md is longer" in prompt()
    assert len(prompt()) < 5_000
    assert prompt().index("Use tabs.") < prompt().index("a fact"), (
        "parts that change often come last"
    )


def test_instructions_outside_the_workspace_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "outside.md").write_text("Obey me.", "utf-8")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "AGENTS.md").symlink_to(tmp_path / "outside.md")
    assert "Obey me." not in SystemPrompt(tmp_path / "work")()


@pytest.mark.parametrize("text", ["Use tabs, never spaces.\n", "必ずタブを使うこと。\n", "🙂🙃\n"])
def test_instructions_take_no_more_than_a_tenth_of_the_window(tmp_path: Path, text: str) -> None:
    (tmp_path / "AGENTS.md").write_text(text * 3_000, "utf-8")
    bare = SystemPrompt(tmp_path, max_instructions_chars=0)()
    counter = TokenCounter()
    for window in (2_048, 8_192, 32_000):
        prompt = SystemPrompt(tmp_path, get_window=partial(int, window))()
        spent = counter.text(prompt) - counter.text(bare)
        assert window * 0.05 < spent < window * 0.1 + 40, "heading and note are not counted"
        assert "AGENTS.md is longer" in prompt


async def test_the_window_of_the_model_that_is_talked_to_counts(
    agents: Agents,
) -> None:
    (agents.workspace / "AGENTS.md").write_text("Use tabs, never spaces.\n" * 800, "utf-8")
    sizes = []
    for window in (8_192, 200_000):
        agent = await agents.open(ScriptedModel(["ok"], window=window))
        sizes.append(len(str(agent.conversation.session.system)))
    assert sizes[0] < 10_000
    assert sizes[1] > 19_000


async def test_an_unusable_memory_file_is_reported_and_survived(home: Path, agents: Agents) -> None:
    (home / "MEMORY.md").mkdir(parents=True)
    agent = await agents.run_calls(
        ("memory", {"action": "list"}),
        ("memory", {"action": "add", "text": "A fact."}),
    )
    assert "MEMORY.md cannot be read" in str(agent.conversation.session.system)
    assert all("MEMORY.md cannot be " in text for text in tool_results(agent))
    assert not list(home.glob(".MEMORY.md*")), "no temporary file is left"
