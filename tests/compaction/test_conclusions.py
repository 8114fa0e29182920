"""Conclusions of the agent survive compaction after compaction."""

from __future__ import annotations

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.history.thread_state import ThreadState
from everthread.compaction.history.tool_calls import CallEffect
from everthread.compaction.journal.conclusions import (
    join_statements,
    score_statements,
    split_statements,
)
from everthread.compaction.summary.earlier_summary import read_state_from_sections
from everthread.compaction.summary.sections import FILES
from everthread.compaction.summary.sentences import WordRarity
from everthread.compaction.summary.state_sections import render_state_sections
from everthread.core.messages import Message, text_of
from everthread.core.tokens.budget import Budget
from tests.chat_messages import assistant_message, user_message
from tests.compaction.histories import (
    COUNTER,
    JOURNAL,
    build_journal,
    call_with_result,
    make_engine,
    tool_turns,
)

WINDOW = 32_000
BUDGET = Budget.for_window(WINDOW)


def finding(number: int) -> str:
    """Return a conclusion that no other repeats."""
    place = f"module_{number}.py:{number * 7}"
    return (
        f"The cause is in `{place}`: worker {number} closes socket {number + 400} before queue {number + 900} "
        f"is empty, so request {number + 2_000} waits {number + 30} seconds for lock {number + 70}."
    )


def investigation(numbers: range) -> list[Message]:
    """Return turns that each end with a conclusion."""
    messages: list[Message] = []
    for number in numbers:
        messages.append(user_message(f"Why does part {number} hang?"))
        messages += tool_turns(number * 10, 2, size=3_000)
        messages.append(assistant_message(finding(number)))
    return messages


def long_result(number: int, tokens: int) -> list[Message]:
    """Return a call that waits for an answer to its long result."""
    text = " ".join(f"value_{number}_{at}" for at in range(tokens // 4))
    return call_with_result("read_file", '{"path": "data.txt"}', text)


async def compact(messages: list[Message]) -> Compaction:
    """Return the compaction of a list that no engine has seen before."""
    engine = make_engine(WINDOW, JOURNAL)
    return await engine.compress(messages)


def findings_in(messages: list[Message], numbers: range) -> set[int]:
    text = "\n".join(map(text_of, messages))
    return {number for number in numbers if finding(number) in text}


async def test_a_long_result_at_the_end_does_not_displace_conclusions() -> None:
    numbers = range(1, 31)
    first = await compact(investigation(numbers))
    kept = findings_in(first.messages, numbers)
    assert len(kept) > 20
    second = await compact(
        [
            *first.messages,
            *investigation(range(31, 34)),
            user_message("Read the data."),
            *long_result(5_000, 9_000),
        ]
    )
    assert second.tokens_after <= BUDGET.max_compacted_tokens
    assert findings_in(second.messages, numbers) == kept


async def test_a_few_new_messages_do_not_shorten_the_summary() -> None:
    numbers = range(1, 31)
    first = await compact(investigation(numbers))
    longer = [*first.messages, user_message("Read the rest.")]
    for number in range(6_000, 6_012):
        longer += long_result(number, 3_000)
    second = await compact(longer)
    assert second.changed
    assert second.tokens_after <= BUDGET.max_compacted_tokens
    assert findings_in(second.messages, numbers) == findings_in(first.messages, numbers)


def test_listed_files_are_read_back_under_another_root() -> None:
    state = ThreadState()
    for name in ("orders/cart.py", "orders/bill.py", "users/login.py"):
        path = f"/home/me/shop/src/{name}"
        state.apply_effect(CallEffect("changed", "write_file", path, paths=(path,)), 1)
    state.root = "/home/me/shop/src/orders"
    sections = render_state_sections(state, 1_000, COUNTER.text)
    assert "- changed: /home/me/shop/src/users/login.py, bill.py" in sections[FILES]
    again = read_state_from_sections(sections, is_from_journal=True)
    assert again.files.keys() == state.files.keys()


def test_a_repeated_conclusion_leaves_room_for_others() -> None:
    numbers = range(1, 31)
    messages: list[Message] = []
    for number in numbers:
        messages += investigation(range(number, number + 1))
        messages.append(user_message("And the release?"))
        messages.append(
            assistant_message(
                f"Round {number}: release 4.2 stays blocked by ticket 8812 until the certificate of host "
                f"gate-7.example.org is renewed by the platform team in step {number} of the runbook."
            )
        )
    whole = build_journal(messages)
    short = whole.shorten_to(COUNTER.text(whole.render()) * 6 // 10, COUNTER.text).render()
    kept = sum(finding(number) in short for number in numbers)
    assert kept > 25
    assert 1 <= short.count("ticket 8812") < kept // 2


def score_all(text: str, *, is_note: bool = False) -> dict[str, float]:
    """Return the score of each statement of an answer."""
    statements = score_statements(text, COUNTER.text, WordRarity([text]), is_note=is_note)
    return {scored.statement.text: scored.score for scored in statements}


def test_an_announcing_line_counts_if_it_names_something() -> None:
    scores = score_all(
        "It is settled now and written down. / The path stays the same after `git worktree move`: / "
        "Here is the list of them all:"
    )
    assert scores["The path stays the same after `git worktree move`:"] > 0
    assert scores["Here is the list of them all:"] == 0


def test_emphasised_and_first_statements_count_more() -> None:
    text = "Worker 7 holds lock 12 for two minutes."
    scores = score_all(
        "Worker 3 holds lock 15 for two minutes. / Queue 4 frees slot 19 after two hours. / "
        "Queue 8 frees slot 16 after **two** hours."
    )
    first, plain, bold = scores.values()
    assert first > plain
    assert bold > plain
    assert score_all(f"{text} I look at `queue.py` next.", is_note=True)[text] > 0


def test_the_last_sentence_before_calls_is_dropped_only_once() -> None:
    text = "The lock is held by worker 7 for two minutes."
    note = f"{text} Next I look at `queue.py`, which frees it."
    assert list(score_all(note, is_note=True).values())[-1] == 0
    shortened = join_statements(split_statements(note), [0])
    assert shortened == f"{text} […]"
    assert score_all(shortened, is_note=True)[text] > 0
