"""The state after the nodes (files, to-do list, failures), and turns that several leaves share."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.compressor import ContextCompressor
from everthread.compaction.journal.journal import parse_journal
from everthread.compaction.lossless import LosslessEngine
from everthread.compaction.planning_engine import PlanningEngine
from everthread.compaction.summary.sections import (
    BLOCKED,
    DONE,
    FILES,
    PROGRESS,
    REMAINING,
    STATE,
    Sections,
    parse_sections,
)
from everthread.core.messages import Message, text_of
from everthread.core.summary_marks import recognize_summaries, strip_summary_marks
from everthread.core.tokens.budget import Budget
from everthread.testing import ScriptedModel, ScriptedSummarizer
from tests.chat_messages import assistant_message, user_message
from tests.compaction.histories import COUNTER, call_with_result, run_command, tool_turns
from tests.compaction.lossless.lossless_setup import (
    WINDOW,
    compact_lossless,
    extend_history,
    make_lossless_engine,
    make_services,
    visible_nodes,
)
from tests.conversation.conversation_setup import make_text, open_conversations

FAILED = "FAIL tests/pay.test.ts\nError: expected 3 got 4\nTests: 1 failed, 3 passed\nExit code: 1"
ERROR = "Error: expected 3 got 4"


FIX = run_command("npm test", "4 passed")


def some_work() -> list[Message]:
    """Change a file, make a to-do list, and leave a branch with a failing test."""
    todo = [
        {"content": "write it down", "status": "in_progress"},
        {"content": "tell Ann", "status": "pending"},
    ]
    edit = {"path": "/r/src/pay.py", "old_string": "a", "new_string": "b"}
    return [
        user_message("Turn 1: begin."),
        assistant_message("Yes."),
        user_message("Turn 2: pay."),
        *call_with_result("edit", edit, "The file was changed"),
        *call_with_result("TodoWrite", {"todos": todo}, "ok"),
        *run_command(
            "git checkout -b feature/pay",
            "Switched to a new branch 'feature/pay'",
        ),
        *run_command("npm test", FAILED),
        *run_command("npm test", FAILED),
        assistant_message("The test fails."),
    ]


def read_sections(summary: str) -> Sections:
    """Return the sections after the nodes."""
    return parse_sections(summary.partition("\n[end of nodes]\n")[2])


def expect_work(sections: Sections) -> None:
    assert "/r/src/pay.py" in sections[FILES]
    assert (
        f"- `npm test` failed (message 2, 2 times, 4 tests): FAIL tests/pay.test.ts | {ERROR}"
        in sections[BLOCKED]
    )


async def test_the_summary_shows_files_errors_and_tasks() -> None:
    conversation = extend_history(some_work())
    sections = read_sections((await compact_lossless(conversation)).summary)
    expect_work(sections)
    assert sections[FILES].startswith("- changed: /r/src/pay.py\n- read: ")
    assert (
        sections[STATE]
        == "- branch: feature/pay\n- last test run: `npm test` → exit 1, 1 failed, 3 passed"
    )
    assert sections[PROGRESS] == "- write it down"
    assert sections[REMAINING] == "- tell Ann"


async def test_the_engine_writes_the_state_beside_a_models_nodes() -> None:
    conversation = extend_history(some_work())
    writer = ScriptedSummarizer(lambda _: {"Goal": "Go on.", "Blocked": "- nothing at all"})
    expect_work(read_sections((await compact_lossless(conversation, summarizer=writer)).summary))


async def test_an_error_fixed_in_another_leaf_is_not_open() -> None:
    mended = [
        user_message("Turn 3: mend it."),
        *tool_turns(60, 2),
        *FIX,
        assistant_message("Done."),
    ]
    conversation = extend_history([*some_work(), *tool_turns(50, 1), *mended], window=64_000)
    result = await compact_lossless(conversation, leaf_tokens=1_300, window=64_000)
    assert BLOCKED not in read_sections(result.summary)
    failed = [line for node in result.nodes for line in node.body.split("\n") if ERROR in line]
    assert failed
    assert all(line.endswith("(fixed later)") for line in failed)


@pytest.mark.parametrize("first", [LosslessEngine, ContextCompressor])
async def test_an_error_of_an_earlier_summary_stays_open_until_fixed(
    first: type[PlanningEngine],
) -> None:
    conversation = extend_history(some_work())
    earlier = (await first(make_services()).compress(conversation)).messages
    unfixed = extend_history(earlier)
    assert ERROR in read_sections((await compact_lossless(unfixed)).summary)[BLOCKED]
    fixed = extend_history([*earlier, user_message("Mend it."), *FIX])
    covered = extend_history((await compact_lossless(fixed)).messages)
    after = (await compact_lossless(covered)).summary
    assert BLOCKED not in parse_sections(after), "neither behind the nodes nor in one"


async def test_an_error_in_a_lookup_answer_is_not_open() -> None:
    looked = call_with_result(
        "lcm_expand",
        '{"id": "message:7"}',
        f"lcm_expand message:7: all of it\n\n{FAILED}",
    )
    conversation = extend_history(
        [
            user_message("Turn 1: begin."),
            assistant_message("Yes."),
            user_message("Turn 2: why?"),
            *looked,
            assistant_message("So."),
        ],
    )
    assert BLOCKED not in read_sections((await compact_lossless(conversation)).summary)


async def bare_chain(rounds: int, *, carried: bool) -> list[Compaction]:
    """Compact with a new engine each time: bare lists, or with the previous engine's state as JSON."""
    engine = make_lossless_engine()
    done = []
    conversation = extend_history(some_work())
    for _ in range(rounds):
        result = await engine.compress(conversation)
        engine.on_compacted(result)
        done.append(result)
        saved = json.dumps(engine.dump_state())
        engine = make_lossless_engine()
        if carried:
            engine.load_state(json.loads(saved))
        conversation = extend_history(recognize_summaries(strip_summary_marks(result.messages)))
    return done


async def test_state_survives_bare_lists_and_restarts() -> None:
    for result in await bare_chain(3, carried=False):
        expect_work(read_sections(result.summary))
    for result in await bare_chain(3, carried=True):
        sections = read_sections(result.summary)
        expect_work(sections)
        assert "branch: feature/pay" in sections[STATE]
        assert sections[PROGRESS] == "- write it down"
        assert sections[REMAINING] == "- tell Ann"


async def test_a_restart_does_not_change_the_result() -> None:
    engine = make_lossless_engine()
    done = []
    conversation = extend_history(some_work())
    for _ in range(3):
        done.append(await engine.compress(conversation))
        engine.on_compacted(done[-1])
        conversation = extend_history(done[-1].messages)
    assert [result.summary for result in await bare_chain(3, carried=True)] == [
        result.summary for result in done
    ]


async def test_the_store_keeps_the_state_for_the_next_process(tmp_path: Path) -> None:
    async with open_conversations(tmp_path) as conversations:
        model = ScriptedModel(lambda _: make_text(120, "answer"), window=8_000)
        settings: dict[str, Any] = {
            "engine": LosslessEngine,
            "background": False,
            "protect_last_n": 2,
        }
        conversation = await conversations.open(model, **settings)
        for message in some_work():
            await conversation.add(message)
        for turn in range(3, 15):
            if turn == 9:
                await conversation.close()
                conversation = await conversations.open(model, resume=conversation.id, **settings)
            await conversation.send(f"Turn {turn}: {make_text(300, f'topic {turn}')}")
        shown = read_sections("\n".join(map(text_of, conversation.messages)))
        expect_work(shown)
        assert "branch: feature/pay" in shown[STATE]


@pytest.mark.parametrize("window", [4_096, WINDOW])
async def test_a_large_state_stays_within_the_budget(window: int) -> None:
    messages = some_work()
    for number in range(120):
        path = json.dumps({"path": f"/r/src/a/long/way/down/part_{number}.py", "content": "x"})
        messages += call_with_result("write_file", path, "ok")
        for _ in range(2):
            output = f"Error: part {number} has no rule\nExit code: 2"
            messages += run_command(f"make part_{number}", output)
    conversation = extend_history(messages, window=window)
    engine = make_lossless_engine(window=window)
    budget = Budget.for_window(window)
    for _ in range(3):
        result = await engine.compress(conversation)
        engine.on_compacted(result)
        assert result.tokens_after <= budget.max_compacted_tokens
        assert COUNTER.text(result.summary) <= budget.summary_max * 1.1
        assert visible_nodes(result)
        assert STATE in read_sections(result.summary)
        assert BLOCKED in read_sections(result.summary) or window < WINDOW
        conversation = extend_history(result.messages, window=window)


@pytest.mark.parametrize("leaf_tokens", [200, 1_000, 4_000])
async def test_leaves_of_one_turn_share_an_entry(leaf_tokens: int) -> None:
    engine = make_lossless_engine(leaf_tokens=leaf_tokens, window=32_000)
    conversation = extend_history(
        [user_message("Turn 1: begin."), assistant_message("I have begun.")],
        window=32_000,
    )
    for _ in range(3):
        result = await engine.compress(conversation)
        engine.on_compacted(result)
        begun: Counter[int] = Counter()
        for part in visible_nodes(result):
            entries = parse_journal(parse_sections(part.node.body)[DONE]).entries
            assert max(Counter(entry.first_turn for entry in entries).values()) == 1, (
                "leaves below it shared a turn"
            )
            begun.update(entry.first_turn for entry in entries if not entry.is_continued)
        assert max(begun.values()) == 1, "the next node says that it continues the turn"
        conversation = extend_history(result.messages, window=32_000)


async def test_a_long_turn_becomes_several_entries() -> None:
    result = await compact_lossless(
        [
            user_message("Hello"),
            assistant_message("Hello."),
            user_message("Go."),
            *tool_turns(0, 160),
        ],
        leaf_tokens=600,
    )
    entries = [
        entry
        for part in visible_nodes(result)
        for entry in parse_journal(parse_sections(part.node.body)[DONE]).entries
    ]
    assert [entry.is_continued for entry in entries] == [False] + [True] * (len(entries) - 1)
    assert all(len(entry.lines) <= 12 for entry in entries)


async def test_equal_lines_of_two_turns_both_stay() -> None:
    conversation: list[Message] = [
        user_message("Turn 1: begin."),
        assistant_message("Yes."),
    ]
    for number in range(40):
        edit = {"path": "/r/a.py", "old_string": "a" * 300, "new_string": "b" * 300}
        asked = user_message(f"Turn {number + 2}: once more.")
        conversation += [
            asked,
            *call_with_result("edit", edit, "ok" * 150),
            assistant_message("Done."),
        ]
    result = await compact_lossless(conversation, leaf_tokens=300, window=64_000)
    joined = next(node for node in result.nodes if node.level)
    entries = parse_journal(parse_sections(joined.body)[DONE]).entries
    assert len(entries) > 1
    assert {(entry.lines, entry.closing_words) for entry in entries} == {
        (("changed /r/a.py",), "Done.")
    }
