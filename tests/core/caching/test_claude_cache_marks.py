"""Place at most four cache marks, on the messages and blocks that may carry them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.caching.claude_cache_marks import (
    apply_cache_control,
    find_first_markable_index,
    find_last_marked_index,
    make_caching_notice,
    mark_system,
    place_marks,
    without_cache_control,
)
from everthread.core.messages import Message
from everthread.errors import InputError
from tests.chat_messages import (
    assistant_message,
    calls_message,
    image_part,
    result_block,
    result_message,
    text_part,
    user_message,
)
from tests.core.caching.marked_messages import MARK, THINKING, USE, histories, text
from tests.digest_chains import byte_chain


def marked_indices(messages: list[Any]) -> list[int]:
    indices = []
    for index, message in enumerate(messages):
        if '"cache_control"' in json.dumps(message):
            indices.append(index)
    return indices


def markers(value: Any) -> int:
    return json.dumps(value).count('"cache_control"')


def test_marks_system_prompt_and_last_three_messages() -> None:
    history: list[Any] = [{"role": "system", "content": "Be careful."}]
    history += [user_message(f"question {index}") for index in range(6)]
    marked = apply_cache_control(history)
    assert marked_indices(marked) == [0, 4, 5, 6]
    assert marked[0] == {
        "role": "system",
        "content": [text("Be careful.", cache_control=MARK)],
    }
    assert marked[6] == user_message([text("question 5", cache_control=MARK)])


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ("", []),
        ("s", [0]),
        ("u", [0]),
        ("su", [0, 1]),
        ("ssdu", [2, 3]),  # the last of the leading ones covers those before it
        ("uaua", [1, 2, 3]),  # without a system message its mark is not used elsewhere
        (
            "suasuasu",
            [0, 4, 5, 7],
        ),  # later system messages are not marked and take no slot
        ("usss", [0]),
    ],
)
def test_chooses_messages_to_mark(roles: str, expected: list[int]) -> None:
    names = {
        "s": "system",
        "d": "developer",
        "u": "user",
        "a": "assistant",
    }
    history: list[Any] = [{"role": names[letter], "content": "words"} for letter in roles]
    assert marked_indices(apply_cache_control(history)) == expected


REDACTED = {"type": "redacted_thinking", "data": "x"}
CONTENTS: dict[str, tuple[Any, int | None]] = {
    "one text": ([text("a")], 0),
    "the last block": ([text("a"), text("b")], 1),
    "a call": ([text("a"), USE], 1),
    "an image": ([text("a"), image_part("data:")], 1),
    "not on thinking": ([text("a"), THINKING], 0),
    "not on redacted thinking": ([USE, REDACTED, THINKING], 0),
    "not on empty text": ([text("a"), text("")], 0),
    "not on blank text": ([text("a"), text(" \n")], 0),
    "not on what is no block": (
        [text("a"), "b", None, {"text": "c"}, text_part(1)],
        0,
    ),
    "nothing can carry it": ([THINKING, text("")], None),
    "no blocks": ([], None),
    "null": (None, None),
    "empty text": ("", None),
    "blank text": ("  ", None),
    "garbage": (17, None),
}


@pytest.mark.parametrize(("content", "block"), CONTENTS.values(), ids=CONTENTS.keys())
@pytest.mark.parametrize("native", [True, False])
def test_chooses_the_block_to_mark(content: Any, block: int | None, native: bool) -> None:
    (marked,) = apply_cache_control([assistant_message(content)], native_anthropic=native)
    if block is None:
        assert marked == {
            "role": "assistant",
            "content": content,
            "cache_control": MARK,
        }
    else:
        expected = copy.deepcopy(content)
        expected[block]["cache_control"] = MARK
        assert marked == assistant_message(expected)


def test_marks_a_message_without_content_itself() -> None:
    message: Any = {
        "role": "assistant",
        "tool_calls": [{"id": "c"}],
    }
    assert apply_cache_control([message]) == [{**message, "cache_control": MARK}]


def test_marks_tool_messages_only_for_anthropic() -> None:
    results: list[Any] = [result_message(str(n), [text("ok")]) for n in range(2)]
    history = [user_message("a"), user_message("b"), *results]
    native = apply_cache_control(history, native_anthropic=True)
    assert native[2] == {**results[0], "cache_control": MARK}
    assert native[3] == {**results[1], "cache_control": MARK}
    elsewhere = apply_cache_control(history)
    assert marked_indices(elsewhere) == [0, 1], (
        "the marks move to the nearest messages before that can carry one"
    )
    assert elsewhere[2] is results[0]


def test_marks_the_text_of_the_last_result() -> None:
    """As OpenRouter accepts it; if the calls came with text, the text carries the mark."""
    calls: Any = calls_message({"id": "0"}, {"id": "1"})
    results: list[Any] = [result_message(str(n), f"result {n}") for n in range(2)]
    history = [user_message("a"), calls, *results]
    marked: list[Any] = apply_cache_control(history, mark_tool_results=True)
    assert marked_indices(marked) == [0, 1, 3]
    assert marked[3] == {
        **results[1],
        "content": [text("result 1", cache_control=MARK)],
    }
    assert marked[2] is results[0]
    spoken: Any = {**calls, "content": "I look."}
    history = [user_message("a"), spoken, *results]
    marked = apply_cache_control(history, mark_tool_results=True)
    assert marked_indices(marked) == [0, 1]


def tool_loop(rounds: int, *, spoken: bool) -> list[Any]:
    history: list[Any] = [
        {"role": "system", "content": "s"},
        user_message("a"),
        assistant_message("b"),
        user_message("c"),
    ]
    for n in range(rounds):
        words = f"step {n}" if spoken else None
        history.append(calls_message({"id": str(n)}, text=words))
        history.append(result_message(str(n), "result"))
    return history


def test_other_routes_mark_messages_with_text() -> None:
    spoken = apply_cache_control(tool_loop(4, spoken=True))
    assert marked_indices(spoken) == [0, 6, 8, 10]
    silent = apply_cache_control(tool_loop(4, spoken=False))
    assert marked_indices(silent) == [0, 1, 2, 3]
    short = apply_cache_control(tool_loop(4, spoken=False)[3:])
    assert marked_indices(short) == [0, 5, 7], "calls get the marks that are left"


def test_other_routes_find_the_previous_mark_in_a_tool_loop() -> None:
    previous: int | None = None
    for rounds in range(1, 30):
        marked = apply_cache_control(tool_loop(rounds, spoken=True), previous_index=previous)
        assert previous is None or previous in marked_indices(marked)
        previous = find_last_marked_index(marked)
        assert previous == 2 * rounds + 2, (
            "all but the last round's result is read by the next request"
        )


def test_accepts_only_five_minutes_and_one_hour() -> None:
    (marked,) = apply_cache_control([user_message("a")], ttl="1h")
    assert marked == user_message([text("a", cache_control={"type": "ephemeral", "ttl": "1h"})])
    for wrong in ("", "10m", "1H", None):
        for mark in (
            lambda ttl: apply_cache_control([], ttl=ttl),
            lambda ttl: mark_system(None, ttl=ttl),
        ):
            with pytest.raises(InputError, match="must be 5m or 1h"):
                mark(wrong)


def test_marks_are_separate_objects() -> None:
    marked: list[Any] = apply_cache_control([user_message("a"), user_message("b")])
    a, b = (message["content"][0]["cache_control"] for message in marked)
    assert a is not b


def test_replaces_existing_marks() -> None:
    old = {"type": "ephemeral", "ttl": "1h"}
    result = result_block("t", [text("r", cache_control=old)])
    history = [user_message([text(str(n), cache_control=old)]) for n in range(6)]
    history += [
        {
            "role": "assistant",
            "content": None,
            "cache_control": old,
            "_native": {"value": [text("n", cache_control=old)]},
        },
        user_message([result]),
    ]
    marked: list[Any] = apply_cache_control(history, native_anthropic=True)
    assert marked_indices(marked) == [5, 6, 7]
    assert markers(marked) == 3
    assert "1h" not in json.dumps(marked)
    assert marked[6]["_native"] == {"value": [text("n")]}


def test_never_changes_tool_arguments() -> None:
    given_ = {
        "cache_control": 1,
        "nested": [{"cache_control": 2}],
    }
    message: Any = assistant_message([{**USE, "input": given_}])
    history = [message, user_message("a"), user_message("b"), user_message("c")]
    assert apply_cache_control(history)[0] is message
    assert without_cache_control(message) is message


def test_marked_message_keeps_its_native_value() -> None:
    message: Any = {
        **user_message("a"),
        "_native": {"api": "anthropic", "value": user_message("a")},
    }
    assert apply_cache_control([message])[0]["_native"] == message["_native"]


@given(histories, st.booleans(), st.none() | st.integers(-3, 15))
def test_places_marks_from_the_end(history: Any, native: bool, previous: int | None) -> None:
    """Without existing marks, only the last messages need to be examined."""
    plain = [without_cache_control(message) for message in history]
    marked = apply_cache_control(
        plain,
        native_anthropic=native,
        previous_index=-1 if previous is None else previous,
    )
    placed = place_marks(plain, native_anthropic=native, previous_index=previous)
    assert placed == {index: new for index, new in enumerate(marked) if new is not plain[index]}
    roles = [message.get("role") if isinstance(message, dict) else None for message in plain]
    leading = next((index for index, role in enumerate(roles) if role != "system"), len(roles))
    assert (
        place_marks(
            plain,
            native_anthropic=native,
            previous_index=previous,
            leading_count=leading,
        )
        == placed
    )


@given(histories, st.booleans(), st.none() | st.integers(-3, 15))
def test_changes_only_marks(history: Any, native: bool, previous: int | None) -> None:
    before = copy.deepcopy(history)
    marked = apply_cache_control(history, native_anthropic=native, previous_index=previous)
    assert history == before
    assert len(marked) == len(history)
    assert markers(marked) <= 4
    assert byte_chain(marked) == byte_chain(history)
    for old, new in zip(history, marked, strict=True):
        if not markers(old) and not markers(new):
            assert old is new
    again = apply_cache_control(marked, native_anthropic=native, previous_index=previous)
    assert again == marked


def long_turn(blocks_since: int) -> list[Any]:
    """Return a conversation marked up to message 3, followed by a turn of this many blocks."""
    calls = [{"id": str(n)} for n in range(blocks_since - 4)]
    head = [
        {"role": "system", "content": "s"},
        user_message("a"),
        assistant_message("b"),
        user_message("c"),
    ]
    turn = [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": calls,
        },
        {
            "role": "tool",
            "content": [text("r"), text("one result is one block")],
        },
        assistant_message([text("d"), text("e")]),
        user_message("f"),
    ]
    return [*head, *turn]


@pytest.mark.parametrize(
    ("blocks_since", "expected"),
    [
        (20, [0, 5, 6, 7]),
        (21, [0, 3, 6, 7]),
        (60, [0, 3, 6, 7]),
    ],
)
def test_keeps_a_mark_beyond_the_lookback(blocks_since: int, expected: list[int]) -> None:
    history = long_turn(blocks_since)
    previous = find_last_marked_index(apply_cache_control(history[:4]))
    assert previous == 3
    marked = apply_cache_control(history, native_anthropic=True, previous_index=previous)
    assert marked_indices(marked) == expected
    carried = apply_cache_control(
        [*apply_cache_control(history[:4]), *history[4:]], native_anthropic=True
    )
    assert marked_indices(carried) == expected, "marks of the previous call tell where it was"


@pytest.mark.parametrize("previous", [None, -1, 0, 5, 7, 8, 99])
def test_drops_a_useless_previous_mark(previous: int | None) -> None:
    """Unknown, on the system prompt, among the last three, or beyond the end of a shortened history."""
    marked = apply_cache_control(long_turn(60), native_anthropic=True, previous_index=previous)
    assert marked_indices(marked) == [0, 5, 6, 7]


def test_previous_mark_among_the_last_three_is_not_added_twice() -> None:
    history = [
        user_message("a"),
        user_message("b"),
        user_message("c"),
        user_message([text("d")] * 30),
    ]
    assert marked_indices(apply_cache_control(history, previous_index=2)) == [1, 2, 3]


def test_passes_through_values_that_are_not_messages() -> None:
    history: list[Any] = [
        user_message("a"),
        *([None, "stray", {}] * 20),
        user_message("b"),
        user_message("c"),
        user_message("d"),
    ]
    marked: list[Any] = apply_cache_control(history, previous_index=0)
    assert marked_indices(marked) == [61, 62, 63]
    assert marked[1:4] == [None, "stray", {}]


def test_finds_the_last_marked_message() -> None:
    assert find_last_marked_index([]) is None
    assert find_last_marked_index([user_message("a")]) is None
    on_message: Any = {
        "role": "assistant",
        "content": None,
        "cache_control": MARK,
    }
    assert (
        find_last_marked_index(
            [
                on_message,
                user_message([text("b", cache_control=MARK)]),
                user_message("c"),
            ]
        )
        == 1
    )
    assert find_last_marked_index([on_message, user_message("c")]) == 0


def test_marks_a_separate_system_prompt() -> None:
    old = {"type": "ephemeral", "ttl": "1h"}
    assert mark_system("Be careful.") == [text("Be careful.", cache_control=MARK)]
    blocks_ = [text("a", cache_control=old), text("b"), text("")]
    assert mark_system(blocks_) == [text("a"), text("b", cache_control=MARK), text("")]
    assert blocks_[0] == text("a", cache_control=old)
    assert mark_system(None) is None
    assert mark_system("") == ""
    assert mark_system([]) == []


@pytest.mark.parametrize(
    ("model", "provider", "base_url", "route"),
    [
        ("claude-sonnet-4", "anthropic", None, "Anthropic"),
        ("Claude-Sonnet-4", "anthropic", "http://proxy.local", "Anthropic"),
        ("anthropic/claude-opus-4.1", "openrouter", None, "OpenRouter"),
        (
            "anthropic/claude-opus-4.1",
            "custom",
            "https://openrouter.ai/api/v1",
            "OpenRouter",
        ),
        ("claude-opus-4", "auto", "https://api.anthropic.com", "Anthropic"),
        ("claude-opus-4", "auto", "API.anthropic.com:443/v1", "Anthropic"),
        ("claude-opus-4", "auto", None, "Anthropic"),
        ("anthropic/claude-opus-4", "auto", None, "OpenRouter"),
        ("gpt-5", "openrouter", None, None),
        ("claude-opus-4", "openai", None, None),
        ("us.anthropic.claude-opus-4", "auto", None, None),
        ("claude-opus-4", "custom", "https://notopenrouter.ai/v1", None),
        ("claude-opus-4", "custom", "https://openrouter.ai.example.org/v1", None),
        ("claude-opus-4", "custom", "http://[", None),
        ("claude-opus-4", "custom", "/v1", None),
    ],
)
def test_recognizes_routes_that_accept_marks(
    model: str, provider: str, base_url: str | None, route: str | None
) -> None:
    line = make_caching_notice(model, provider, base_url, ttl="1h")
    assert line == (f"💾 Prompt caching: ENABLED (Claude via {route}, 1h TTL)" if route else None)


def test_deep_nesting_does_not_exhaust_the_stack() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    message = user_message(deep)
    history = [user_message("a"), message, message, *map(user_message, "bcd")]
    assert markers(apply_cache_control(history)[3:]) == 3


def test_no_mark_comes_before_the_first_markable_index() -> None:
    history: list[Message] = [user_message(str(number)) for number in range(30)]
    for previous in (None, 3, 29):
        begin = find_first_markable_index(len(history), previous)
        marked = apply_cache_control(history, previous_index=previous)
        first = next(at for at, message in enumerate(marked) if message != history[at])
        assert 0 <= begin <= first
    assert find_first_markable_index(2, None) == 0
