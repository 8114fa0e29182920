"""What must be kept is made to fit step by step, each told; nothing more is given up than that takes."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.boundaries import Room, choose, without_tail
from everthread.core.ladder import Descent, Strength, descend
from everthread.core.messages import Message, results_of
from everthread.core.outputs import cited_outputs, is_persisted, output_id
from everthread.core.transcript import groups, latest_user_index, user_text
from tests.core.strategies import SUMMARY, histories
from tests.shared_data import shared


def count(message: Message) -> int:
    return len(json.dumps([message.get("content"), message.get("tool_calls")], ensure_ascii=False)) // 4


def room(tail: int, limit: int, last: int = 0, fixed: int = 0) -> Room:
    return Room(tail=tail, protect_last_n=last, limit=limit, most=limit * 4 // 3, fixed=fixed)


def down(messages: list[Any], space: Room, strength: Strength = Strength.NORMAL, preview: int = 100) -> Descent:
    return descend(messages, space, count, preview_chars=preview, strength=strength)


def user(content: Any) -> Message:
    return {"role": "user", "content": content}


def group(call_id: str, *outputs: str) -> list[Message]:
    ids = [f"{call_id}{n}" for n in range(len(outputs))]
    calls: Any = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids]
    results: list[Any] = [
        {"role": "tool", "tool_call_id": i, "content": text} for i, text in zip(ids, outputs, strict=True)
    ]
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *results]


CUT = "cut long arguments and images of the tail"
GONE = "kept no tail: even the latest group is too large"
HEAD: list[Message] = [user("the task"), {"role": "assistant", "content": "on it"}]
STEPS = [message for n in range(30) for message in group(f"s{n}_", "w" * 400)]


def test_what_fits_takes_no_step() -> None:
    messages = [*HEAD, *STEPS]
    found = down(messages, room(tail=500, limit=2_000, last=6))
    assert (found.steps, found.to_store, found.fits) == ((), (), True)
    assert found.boundaries == choose(messages, room(tail=500, limit=2_000, last=6), count)
    assert all(new is old for new, old in zip(found.messages, messages, strict=True))


def test_first_oversized_results_are_stored_largest_first_and_no_more_than_needed() -> None:
    large, larger, small = "l" * 8_000, "L" * 9_000, "s" * 500
    messages = [*HEAD, *STEPS, *group("x", large, larger, small)]
    found = down(messages, room(tail=10, limit=2_600))
    assert found.steps == ("stored 1 oversized tool results of the tail",)
    (stored,) = found.to_store
    assert (stored.index, stored.call_id, stored.id, stored.text) == (64, "x1", output_id(larger), larger)
    assert found.messages[64]["content"] == stored.replacement
    assert is_persisted(stored.replacement)
    assert found.boundaries.tokens <= 2_600
    assert found.fits
    both = down(messages, room(tail=10, limit=600))
    assert [item.call_id for item in both.to_store] == ["x1", "x0"]
    assert found.messages[65]["content"] == both.messages[65]["content"] == small


def test_a_looked_up_answer_is_not_stored_to_be_looked_up_again() -> None:
    looked: list[Any] = group("late", "x" * 8_000, "y" * 8_000)
    looked[0]["tool_calls"][0]["function"]["name"] = "recall"
    found = down([*HEAD, *STEPS, *looked], room(tail=500, limit=3_000))
    assert [item.text[0] for item in found.to_store] == ["y"]


def test_results_in_blocks_are_stored_too() -> None:
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": i, "name": "f", "input": {}} for i in "ab"]}
    blocks = [{"type": "tool_result", "tool_use_id": i, "content": [{"type": "text", "text": i * 9_000}]} for i in "ab"]
    found = down([*HEAD, *STEPS, use, user(blocks)], room(tail=10, limit=400))
    assert [item.call_id for item in found.to_store] == ["a", "b"]
    assert [is_persisted(result.text) for result in results_of(found.messages[-1])] == [True, True]


def test_then_the_tail_is_halved() -> None:
    messages = [*HEAD, *group("a", *["b" * 700] * 5, "b" * 140), *group("c", "d" * 100), user("next")]
    space = room(tail=160, limit=300, last=4)
    assert choose(messages, space, count).tail_start == 2
    found = down(messages, space)
    assert found.steps == ("no longer protected the last 4 messages and halved the tail to 80 tokens",)
    assert found.boundaries.tail_start == 9
    assert found.fits


def test_then_only_the_latest_group_is_kept() -> None:
    messages = [*HEAD, *group("a", *["b" * 700] * 6), user("next")]
    found = down(messages, room(tail=500, limit=100))
    assert found.steps == ("kept only the latest group",)
    assert found.boundaries.tail_start == len(messages) - 1
    assert found.fits


def test_a_latest_group_beyond_the_threshold_has_its_arguments_cut() -> None:
    calls: Any = [
        {"id": "w", "type": "function", "function": {"name": "write", "arguments": '{"x": "' + "y" * 9_000 + '"}'}}
    ]
    latest: list[Any] = [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "w", "content": "r" * 300},
    ]
    found = down([*HEAD, *STEPS, *latest], room(tail=100, limit=300))
    assert found.steps == (CUT,)
    assert found.boundaries.tail(found.messages)[1] is latest[1]
    assert json.loads(found.boundaries.tail(found.messages)[0]["tool_calls"][0]["function"]["arguments"])
    assert found.fits
    waiting = down([*HEAD, *STEPS, latest[0]], room(tail=100, limit=300))
    assert waiting.messages[-1] is latest[0], "open calls are never touched"


def test_a_latest_group_that_cannot_be_made_to_fit_is_replaced_too() -> None:
    task = user("the next task")
    answer: Message = {"role": "assistant", "content": "a" * 9_000}
    messages = [*HEAD, *STEPS, task, *STEPS, answer]
    found = down(messages, room(tail=100, limit=300))
    assert found.steps == (GONE,)
    assert found.boundaries.tail(found.messages) == []
    assert found.boundaries.kept_user(found.messages) is task
    assert found.boundaries.reasons[1] == "There is no tail."
    assert found.fits
    assert down([*HEAD, *STEPS, answer], room(tail=100, limit=300)).boundaries.keep_after_summary is None
    assert down([*messages, task], room(tail=100, limit=300)).boundaries.tail_start == len(messages)


def test_what_falls_out_of_the_tail_is_not_stored() -> None:
    messages = [*HEAD, *group("a", *["b" * 3_000] * 6), *group("c", "e" * 4_000)]
    found = down(messages, room(tail=5_000, limit=420))
    assert [item.call_id for item in found.to_store] == ["c0"]
    assert found.steps == ("stored 1 oversized tool results of the tail", "kept only the latest group")
    assert found.messages[2:9] == messages[2:9]


def test_last_the_middle_of_an_oversized_user_message_is_stored() -> None:
    text = "please " + "u" * 20_000 + " now"
    messages = [*HEAD, *STEPS, user(text)]
    found = down(messages, room(tail=100, limit=400))
    assert found.steps == ("stored the middle of oversized user messages",)
    (stored,) = found.to_store
    said = found.messages[-1]["content"]
    assert isinstance(said, str)
    assert said.startswith("please uuu")
    assert said.endswith("uuu now")
    assert cited_outputs(said) == [stored.id]
    assert said[:100] + stored.text + said[-100:] == text
    assert found.fits


def test_a_user_message_is_cut_only_to_stay_below_the_threshold() -> None:
    messages = [*HEAD, *STEPS, user("u" * 2_000)]
    found = down(messages, room(tail=100, limit=400))
    assert 400 < found.boundaries.tokens < 400 * 4 // 3
    assert (found.to_store, found.fits) == ((), False)


def test_the_largest_user_messages_wherever_they_are_kept() -> None:
    parts = [{"type": "text", "text": "h" * 9_000}, {"type": "text", "text": "short"}, {"type": "image", "source": {}}]
    messages = [user(parts), *STEPS[:4], user("k" * 9_500), *STEPS]
    found = down(messages, room(tail=100, limit=900))
    assert [item.index for item in found.to_store] == [5, 0]
    kept = found.boundaries.kept_user(found.messages)
    assert kept is not None
    assert len(str(kept["content"])) < 1_000
    head: Any = found.boundaries.head(found.messages)[0]["content"]
    assert head[1:] == parts[1:]
    assert found.fits
    assert [item.index for item in down(messages, room(tail=100, limit=2_300)).to_store] == [5]


def test_a_user_message_of_many_small_parts_cannot_be_cut() -> None:
    messages = [*HEAD, user([{"type": "text", "text": "p" * 300}] * 40)]
    found = down(messages, room(tail=100, limit=400))
    assert (found.messages[-1] is messages[-1], found.to_store, found.fits) == (True, (), False)


def test_a_summary_merged_into_a_cut_message_does_not_take_its_words_along() -> None:
    messages = [user(f"{SUMMARY}\n\nstart {'m' * 9_000} end"), *STEPS]
    found = down(messages, room(tail=100, limit=300))
    head = found.boundaries.head(found.messages)[0]
    assert user_text(head).startswith("start mmm")
    assert user_text(head).endswith("mmm end")


@pytest.mark.parametrize(
    ("strength", "steps", "kept"),
    [
        (Strength.NORMAL, (), 20),
        (Strength.HALF_TAIL, ("no longer protected the last 20 messages and halved the tail to 250 tokens",), 4),
        (Strength.LATEST_GROUP, ("kept only the latest group",), 2),
    ],
)
def test_a_stronger_attempt_starts_further_down(strength: Strength, steps: tuple[str, ...], kept: int) -> None:
    messages = [*HEAD, *STEPS]
    found = down(messages, room(tail=500, limit=9_000, last=20), strength)
    assert found.steps == steps
    assert len(messages) - found.boundaries.tail_start == kept


def check(messages: list[Message], space: Room, found: Descent) -> None:
    """What holds however far one had to go."""
    cut = found.boundaries
    plain = choose(messages, space, count)
    assert cut.tail_start >= plain.tail_start
    assert cut.tokens <= plain.tokens
    assert found.fits == (cut.tokens <= space.limit)
    assert bool(found.steps) or not found.to_store
    assert groups(found.messages) == groups(messages)
    for part in groups(messages):
        assert len({index >= cut.tail_start for index in (part.assistant, *part.results)}) == 1
    kept = [*range(cut.head_end), *range(cut.tail_start, len(messages)), cut.keep_after_summary]
    changed = [index for index, (new, old) in enumerate(zip(found.messages, messages, strict=True)) if new is not old]
    stored = {item.index for item in found.to_store}
    assert stored <= set(changed) <= set(kept)
    assert stored == set(changed) or CUT in found.steps
    bare = without_tail(messages, choose(messages, space, count, earliest=len(messages)), space, count)
    assert bare is None or bare.tokens >= space.most or cut.tokens < space.most, "a group was kept beyond the threshold"
    for item in found.to_store:
        assert item.id == output_id(item.text)
        assert item.id in cited_outputs(item.replacement)
        assert len(item.replacement) < len(item.text)
    latest = latest_user_index(messages)
    if latest is not None and latest not in changed:
        texts = [user_text(message) for message in (*cut.head(found.messages), *cut.tail(found.messages))]
        apart = cut.kept_user(found.messages)
        assert user_text(messages[latest]) in [*texts, user_text(apart) if apart else ""]


@given(histories(), st.integers(0, 2_000), st.integers(0, 3_000), st.integers(0, 20), st.sampled_from(Strength))
def test_every_history_is_made_to_fit_soundly(
    messages: list[Message], tail: int, limit: int, last: int, strength: Strength
) -> None:
    before = copy.deepcopy(messages)
    space = room(tail, limit, last)
    found = down(messages, space, strength)
    assert messages == before
    assert found == down(messages, space, strength)
    check(messages, space, found)
    assert found.steps or strength is Strength.NORMAL


REAL = ["coding-long-claude", *[f"support-{model}-{n}" for model in ("claude45", "gpt41") for n in range(6)]]


@pytest.mark.parametrize("name", REAL)
def test_real_transcripts_are_made_to_fit(name: str) -> None:
    messages = json.loads(shared("transcripts", f"{name}.json").read_text())["messages"]
    for threshold in (2_000, 8_000, 100_000):
        space = Room(threshold // 5, 20, threshold * 3 // 4, threshold, threshold // 10)
        check(messages, space, down(messages, space))
        assert down(messages, space).boundaries.tokens < threshold
