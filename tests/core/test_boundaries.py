"""Where a transcript may be cut: no group is split, no latest user message is lost, no summary is kept."""

from __future__ import annotations

import copy
import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.boundaries import Boundaries, Room, choose, latest_piece, open_group, without_earlier_summary
from everthread.core.messages import Message, results_of, text_of
from everthread.core.summary import is_summary
from everthread.core.transcript import groups, latest_user_index, user_text
from tests.core.strategies import SUMMARY, histories
from tests.shared_data import shared


def count(message: Message) -> int:
    return (
        len(json.dumps(message.get("content"), ensure_ascii=False)) // 4
        + len(str(message.get("tool_calls", ""))) // 4
        + 4
    )


def ten(_: Message) -> int:
    return 10


def user(text: Any = "do it") -> Message:
    return {"role": "user", "content": text}


def said(text: Any = "done") -> Message:
    return {"role": "assistant", "content": text}


def group(*ids: str, answered: int | None = None) -> list[Message]:
    calls: Any = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids]
    results: list[Any] = [{"role": "tool", "tool_call_id": i, "content": "ok"} for i in ids[:answered]]
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *results]


def room(tail: int, last: int = 0, limit: int = 1_000, fixed: int = 0) -> Room:
    return Room(tail=tail, protect_last_n=last, limit=limit, most=limit * 4 // 3, fixed=fixed)


CHAT = [user("first"), said(), *[message for n in range(10) for message in (user(f"q{n}"), said(f"a{n}"))]]


def test_head_middle_and_tail_by_tokens() -> None:
    cut = choose(CHAT, room(tail=45), ten)
    assert (cut.head_end, cut.tail_start, cut.has_middle) == (2, 18, True)
    assert cut.tokens == 60
    assert cut.head(CHAT) + cut.middle(CHAT) + cut.tail(CHAT) == CHAT
    assert cut.kept_user(CHAT) is None
    assert cut.reasons[1] == "The tail is 4 messages, 40 tokens of 45."


def test_the_fixed_part_counts() -> None:
    assert choose(CHAT, room(tail=45, fixed=500), ten).tokens == 560


def test_at_least_n_messages_are_tail_where_there_is_room() -> None:
    cut = choose(CHAT, room(tail=45, last=10), ten)
    assert cut.tail_start == len(CHAT) - 10
    assert "widened towards the last 10 messages" in cut.reasons[1]
    fewer = choose(CHAT, room(tail=45, last=10, limit=100, fixed=7), ten)
    assert fewer.tail_start == len(CHAT) - 7
    assert fewer.tokens == 97
    assert choose(CHAT, room(tail=45, last=10, limit=10), ten).tail_start == len(CHAT) - 4


def test_a_budget_that_holds_everything_leaves_no_middle() -> None:
    cut = choose(CHAT, room(tail=10_000), ten)
    assert (cut.head_end, cut.tail_start, cut.has_middle) == (2, 2, False)


def test_the_latest_piece_is_always_tail() -> None:
    messages = [*CHAT, *group("a", "b", "c")]
    cut = choose(messages, room(tail=0), ten)
    assert cut.tail_start == len(CHAT)
    assert "always stays" in cut.reasons[1]


def test_a_cut_moves_back_to_the_calls() -> None:
    messages = [*CHAT, *group("a", "b", "c", "d"), said()]
    cut = choose(messages, room(tail=25), ten)
    assert cut.tail_start == len(CHAT)
    assert "moved back" in cut.reasons[1]
    assert choose(messages, room(tail=15), ten).tail_start == len(messages) - 1


def test_protecting_messages_protects_whole_groups() -> None:
    messages = [*CHAT, *group("a", "b", "c", "d"), said()]
    assert choose(messages, room(tail=0, last=3), ten).tail_start == len(CHAT)


@pytest.mark.parametrize("after", [[], [user("hurry")], [{"role": "tool", "tool_call_id": "nobody", "content": "?"}]])
def test_open_calls_are_tail(after: list[Message]) -> None:
    messages = [*CHAT, *group("a", "b", answered=1), *after]
    assert open_group(messages) == len(CHAT)
    assert choose(messages, room(tail=0), ten).tail_start == len(CHAT)


def test_calls_that_were_given_up_are_not_open() -> None:
    messages = [*CHAT, *group("a", answered=0), user(), said()]
    assert open_group(messages) is None
    assert choose(messages, room(tail=0), ten).tail_start == len(messages) - 1


def test_the_latest_user_message_in_the_tail_stays_there() -> None:
    cut = choose(CHAT, room(tail=45), ten)
    assert (cut.latest_user, cut.keep_after_summary) == (20, None)
    assert "stays in the tail" in cut.reasons[2]


LONG_TURN = [*CHAT, user("the task"), *[message for n in range(20) for message in group(f"c{n}")]]


def test_the_latest_user_message_older_than_the_tail_is_kept_after_the_summary() -> None:
    cut = choose(LONG_TURN, room(tail=40), ten)
    assert cut.keep_after_summary == len(CHAT) < cut.tail_start
    assert cut.kept_user(LONG_TURN) is LONG_TURN[len(CHAT)]
    assert cut.tokens == 20 + 10 + 40
    assert "after the summary" in cut.reasons[2]


def test_the_latest_user_message_in_the_head_stays_there() -> None:
    messages = [user("the task"), *LONG_TURN[len(CHAT) + 1 :]]
    cut = choose(messages, room(tail=40), ten)
    assert (cut.head_end, cut.latest_user, cut.keep_after_summary) == (1, 0, None)
    assert "stays in the head" in cut.reasons[2]


def test_a_kept_user_message_leaves_tool_results_behind() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "x"}}
    mixed = user(
        [{"type": "tool_result", "tool_use_id": "a", "content": "ok"}, {"type": "text", "text": "go on"}, image]
    )
    use = said([{"type": "tool_use", "id": "a", "name": "f", "input": {}}])
    messages = [*CHAT, use, mixed, *LONG_TURN[len(CHAT) + 1 :]]
    kept = choose(messages, room(tail=40), ten).kept_user(messages)
    assert kept == user([{"type": "text", "text": "go on"}, image])


def test_an_earlier_summary_is_replaced_wherever_it_stands() -> None:
    messages = [*CHAT[:2], user(SUMMARY), *CHAT[2:]]
    cut = choose(messages, room(tail=10_000), ten)
    assert (cut.head_end, cut.tail_start, cut.has_middle) == (2, 3, False)
    cut = choose([*CHAT[:1], said(SUMMARY), *CHAT[2:]], room(tail=45), ten)
    assert (cut.head_end, cut.has_middle) == (1, True)
    late = [*CHAT, user(SUMMARY), *group("a")]
    assert choose(late, room(tail=10_000, last=50), ten).tail_start == len(CHAT) + 1
    assert choose([*CHAT, user(SUMMARY)], room(tail=10_000), ten).tail(CHAT) == []


def test_a_history_compacted_before_has_nothing_new_to_replace() -> None:
    messages = [*CHAT[:2], user(SUMMARY), user("the task"), *group("a"), *group("b")]
    cut = choose(messages, room(tail=40), ten)
    assert (cut.tail_start, cut.keep_after_summary, cut.has_middle) == (4, 3, False)


def test_a_summary_merged_into_a_message_goes_and_the_words_stay() -> None:
    head = user(f"first\n\n{SUMMARY}")
    tail = user([{"type": "text", "text": SUMMARY, "cache_control": {}}, {"type": "text", "text": "and now?"}])
    messages = [head, *CHAT[1:], tail]
    cut = choose(messages, room(tail=45), ten)
    assert cut.head(messages) == [user("first"), CHAT[1]]
    assert cut.tail(messages)[-1] == user([{"type": "text", "text": "and now?"}])
    both = user([{"type": "text", "text": f"{SUMMARY}\n\nnow"}, "bare"])
    assert without_earlier_summary(both) == user([{"type": "text", "text": "now"}, "bare"])
    assert without_earlier_summary(user([SUMMARY])) is None


def test_calls_of_a_message_survive_the_summary_in_it() -> None:
    message = cast("Message", {**group("a")[0], "content": SUMMARY})
    assert without_earlier_summary(message) == group("a")[0]


def test_the_kept_user_message_loses_a_summary_merged_into_it() -> None:
    messages = [*CHAT, user(f"{SUMMARY}\nthe task"), *LONG_TURN[len(CHAT) + 1 :]]
    assert choose(messages, room(tail=40), ten).kept_user(messages) == user("the task")


def test_the_head_never_ends_inside_a_group() -> None:
    call, result = group("a")
    messages = [call, user("hi"), result, *CHAT]
    cut = choose(messages, room(tail=45), ten)
    assert cut.head_end == 0


def test_the_tail_begins_no_earlier_than_told() -> None:
    assert choose(CHAT, room(tail=10_000), ten, earliest=15).tail_start == 15
    assert choose(CHAT, room(tail=10_000), ten, earliest=99).tail_start == len(CHAT) - 1


def test_without_messages_there_is_nothing_to_cut() -> None:
    cut = choose([], room(tail=10), ten)
    assert (cut.head_end, cut.tail_start, cut.has_middle, cut.tokens) == (0, 0, False, 0)
    assert cut.reasons[2] == "There is no user message to keep."
    assert latest_piece([]) == 0


def check(messages: list[Message], cut: Boundaries, count: Any) -> None:
    """What holds for every cut of every history."""
    assert 0 <= cut.head_end <= cut.tail_start <= len(messages)
    for found in groups(messages):
        sides = {(i >= cut.head_end) + (i >= cut.tail_start) for i in (found.assistant, *found.results)}
        assert len(sides) == 1, "a group was split"
    kept = [*cut.head(messages), *filter(None, [cut.kept_user(messages)]), *cut.tail(messages)]
    assert not any(is_summary(message) for message in kept)
    latest = latest_user_index(messages)
    if latest is not None:
        last = [user_text(message) for message in kept if message.get("role") == "user"]
        assert user_text(messages[latest]) in last, "the latest user message was lost"
    assert cut.tokens == sum(map(count, kept))
    unanswered = open_group(messages)
    assert unanswered is None or not cut.head_end <= unanswered < cut.tail_start, "open calls were touched"


@given(histories(), st.integers(0, 3_000), st.integers(0, 30), st.integers(0, 4_000))
def test_every_history_is_cut_soundly(messages: list[Message], tail: int, last: int, limit: int) -> None:
    before = copy.deepcopy(messages)
    cut = choose(messages, room(tail, last, limit), count)
    assert messages == before
    assert cut == choose(messages, room(tail, last, limit), count)
    check(messages, cut, count)
    assert cut.tail_start <= choose(messages, room(tail // 2, 0, limit), count).tail_start
    plain = choose(messages, room(tail, 0, limit), count)
    assert cut.tail_start == plain.tail_start or cut.tokens <= limit, "messages are protected only within the limit"


REAL = ["coding-long-claude", *[f"support-{model}-{n}" for model in ("claude45", "gpt41") for n in range(6)]]


@pytest.mark.parametrize("name", REAL)
def test_real_transcripts_are_cut_soundly(name: str) -> None:
    messages = json.loads(shared("transcripts", f"{name}.json").read_text())["messages"]
    for end in (len(messages), len(messages) // 2, len(messages) // 3):
        for tail in (100, 1_000, 10_000):
            cut = choose(messages[:end], room(tail, 20, tail * 4), count)
            check(messages[:end], cut, count)
            assert not cut.has_middle or text_of(messages[0]) == text_of(cut.head(messages)[0])
            assert not results_of(cut.tail(messages[:end])[0])
