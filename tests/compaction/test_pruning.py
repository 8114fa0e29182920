"""Pruning: old output, arguments and images become a few words; nothing is lengthened, split, mutated or lost."""

from __future__ import annotations

import copy
import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.compaction.cutting.pruning import (
    CLEARED,
    LONG_TEXT_CHARS,
    prune_messages,
)
from everthread.compaction.history.tool_calls import (
    MAX_CALL_ERRORS,
    MAX_ERROR_LINE_CHARS,
)
from everthread.core.messages import Message, calls_of, iterate_images, results_of
from everthread.core.turns import (
    find_call_groups,
    find_latest_user_index,
    split_into_spans,
    split_into_turns,
)
from tests.core.strategies import PIXELS, histories
from tests.shared_data import shared_path

OLD = "line\n" * 100
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + PIXELS}}
THINKING = {"type": "thinking", "thinking": "t" * 900, "signature": "s"}


def call_message(call_id: str = "a", name: str = "bash", **arguments: Any) -> Message:
    function: Any = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def result(call_id: str = "a", content: Any = OLD) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def prune_all(*messages: Any) -> list[Message]:
    return prune_messages(list(messages), protect_from=len(messages))


def test_the_error_of_a_failed_call_stays_word_for_word() -> None:
    error = "src/tax.ts(3,7): error TS2551: Property 'rateOfTheCountry' does not exist on type 'TaxTable' of 2026."
    error += " Did you mean 'rateOfTheCountryAndItsRegions'?"
    command = call_message(
        command="cd packages/a-long-folder-name && npx tsc --project tsconfig.json --noEmit --pretty false"
    )
    long = prune_all(command, result(content="ok\n" * 400 + f"{error}\n[exit code 1]"))
    assert str(long[1]["content"]).endswith(f"-> exit 1, 401 lines output\n{error}")
    assert prune_all(*long) == long, "pruning again changes nothing"
    short = [
        command,
        result(content=f"checking 14 files of the project\n{error}\nsee above\n[exit code 1]"),
    ]
    assert len(str(short[1]["content"])) < 3 * LONG_TEXT_CHARS
    assert error in str(prune_all(*short)[1]["content"])


def test_a_short_result_stays() -> None:
    messages = [call_message(command="x"), result(content="y" * 200)]
    pruned = prune_all(*messages)
    assert pruned[1] is messages[1]


def test_a_result_without_facts_gets_a_plain_placeholder() -> None:
    assert prune_all(result()) == [result(content=CLEARED)]


def test_the_head_and_the_protected_tail_are_not_touched() -> None:
    messages = [
        call_message("a"),
        result("a"),
        call_message("b"),
        result("b", OLD + "b"),
        call_message("c"),
        result("c", OLD + "c"),
    ]
    pruned = prune_messages(messages, start=2, protect_from=4)
    changed = [index for index, message in enumerate(pruned) if message is not messages[index]]
    assert changed == [3]


def test_only_the_newest_of_identical_results_stays() -> None:
    messages = [
        call_message("a", path="x.py", name="read"),
        result("a"),
        call_message("b", path="x.py", name="read"),
        result("b"),
    ]
    pruned = prune_messages(messages, protect_from=2)
    assert pruned[1]["content"] == "[read] read x.py -> same output as the later call b"
    assert pruned[3] is messages[3]
    both = prune_all(*messages)
    assert both[1]["content"] == pruned[1]["content"]
    assert both[3]["content"] == "[read] read x.py -> 100 lines"
    assert (
        prune_all(result(""), result(""))[0]["content"] == "[tool] -> same output as the later call"
    )


def test_a_line_is_at_most_half_of_what_it_replaces() -> None:
    """A line of 200 characters for an output of 201 would save nothing, in tokens it might even cost."""
    command = "运行所有的测试然后报告结果" * 20
    for size in (201, 300, 500, 5_000):
        new = prune_all(call_message(command=command), result(content="y" * size))[1]["content"]
        assert isinstance(new, str)
        assert len(new.encode()) <= size // 2
        assert new.startswith("[bash] ran `运行")
    tight = prune_all(call_message(name="工具" * 60, command=command), result(content="y" * 201))[
        1
    ]["content"]
    assert tight == CLEARED


def test_a_result_block_stays_a_block() -> None:
    use = {"type": "tool_use", "id": "a", "name": "bash", "input": {"command": "make"}}
    block = {
        "type": "tool_result",
        "tool_use_id": "a",
        "content": OLD + "it was denied",
        "is_error": True,
        "cache_control": {},
    }
    said = {"type": "text", "text": "s" * 500}
    pruned = prune_all(
        {"role": "assistant", "content": [THINKING, use]},
        {"role": "user", "content": [block, said]},
    )
    line = "[bash] ran `make` -> it was denied, 101 lines output"
    assert pruned[1]["content"] == [{**block, "content": line}, said]
    message = {**result(content=block["content"]), "is_error": True}
    assert prune_all(call_message(command="make"), message)[1]["content"] == line


def test_parts_of_a_result_become_one() -> None:
    parts = [
        {"type": "text", "text": OLD},
        IMAGE,
        {"type": "text", "text": OLD},
        {"type": "document", "source": "d" * 300},
    ]
    pruned = prune_all(call_message(command="x"), result(content=parts))
    assert pruned[1]["content"] == [
        {"type": "text", "text": "[bash] ran `x` -> 204 lines output [2 removed]"}
    ]


def test_old_images_become_placeholders() -> None:
    small = {"type": "text", "text": "short"}
    anthropic = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/jpeg", "data": PIXELS},
    }
    linked = {
        "type": "image_url",
        "image_url": {"url": "https://example.org/some/path/to/a.png"},
    }
    pasted = {"type": "input_image", "image_url": "data:image/webp;base64," + PIXELS}
    filed = {"type": "image", "source": {"type": "file", "file_id": "file_0123456789"}}
    odd = {
        "type": "image_url",
        "image_url": {"url": "data:image/svg+xml,<svg><rect width='9'/></svg>"},
    }
    bare = {"type": "image"}
    parts = [small, IMAGE, anthropic, linked, pasted, filed, odd, bare]
    texts = [
        "[image removed: png, 0 KB]",
        "[image removed: jpeg, 0 KB]",
        "[image removed: https://example.org/some/path/to/a.png]",
        "[image removed: webp, 0 KB]",
        "[image removed]",
        "[image removed]",
    ]
    new = [small, *[{"type": "text", "text": text} for text in texts], bare]
    pruned = prune_all({"role": "user", "content": parts}, {"role": "user", "content": "later"})
    assert pruned[0]["content"] == new
    empty = {"type": "text", "text": ""}
    in_result = prune_all(call_message(command="x"), result(content=[small, IMAGE, empty]))
    assert in_result[1]["content"] == [*new[:2], empty]


def test_images_in_old_text_are_removed() -> None:
    text = f"see ![a](data:image/png;base64,{'A' * 8192}) there"
    pruned = prune_all(
        {"role": "user", "content": text},
        {"role": "assistant", "content": [THINKING, {"type": "text", "text": text}]},
        {"role": "system", "content": text},
        {"role": "user", "content": "later"},
    )
    short = "see ![a]([image removed: png, 6 KB]) there"
    assert pruned[0]["content"] == short
    assert pruned[1]["content"] == [THINKING, {"type": "text", "text": short}]
    assert pruned[2]["content"] == text


def test_the_latest_user_message_is_kept_word_for_word_with_its_images() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "look"}, IMAGE]}
    assert prune_all(message, {"role": "assistant", "content": "ok"})[0] is message


def test_long_strings_in_arguments_are_cut_and_the_rest_stays_byte_for_byte() -> None:
    text = (
        '{"path":"a.py", "big": 1.00, "n": 1e999,"content":"'
        + 'q\\"\\n\\u00e9' * 100
        + '", "'
        + "k" * 300
        + '" : "short"}'
    )
    message = call_message()
    cast("Any", message)["tool_calls"][0]["function"]["arguments"] = text
    message["_native"] = {"api": "openai_chat", "value": {}}
    pruned = prune_all(message, result(content="ok"))[0]
    assert "value" not in pruned["_native"]
    arguments = calls_of(pruned)[0].arguments
    before, after = text.split('"content":')
    assert arguments.startswith(before)
    assert arguments.endswith(after[after.index('", "k') :])
    value = json.loads(arguments)["content"]
    assert value.startswith('q"\né')
    assert value.endswith("… [cut: 400 characters in all]")
    assert len(value) <= LONG_TEXT_CHARS


def test_arguments_that_are_not_json_become_json() -> None:
    message = call_message()
    cast("Any", message)["tool_calls"][0]["function"]["arguments"] = '{"command": "' + "c" * 900
    arguments = calls_of(prune_all(message, result(content="ok"))[0])[0].parsed
    assert arguments["unreadable_arguments"].startswith('{"command": "ccc')


@pytest.mark.parametrize(
    "value",
    ["/" * 150 + "\\ud800" * 60, "/" * 201, "é" * 120 + "\\ud800" + "é" * 90],
)
def test_odd_strings_are_never_lengthened_and_stay_encodable(value: str) -> None:
    message = call_message()
    arguments = f'{{"a": "{value}"}}'
    cast("Any", message)["tool_calls"][0]["function"]["arguments"] = arguments
    pruned = calls_of(prune_all(message, result(content="ok"))[0])[0].arguments
    assert len(pruned) <= len(arguments)
    assert json.loads(pruned.encode())


def test_arguments_of_every_form_are_cut() -> None:
    long = "l" * 500
    deep: Any = long
    for _ in range(150):
        deep = [deep]
    calls: Any = [
        {
            "id": "a",
            "function": {"name": "f", "arguments": {"x": [1, {"y": long}], "z": deep}},
        },
        {"id": "b", "type": "custom", "custom": {"name": "g", "input": long}},
        {
            "id": "c",
            "type": "function",
            "function": {
                "name": "h",
                "arguments": '{"a": "short", "b": "' + "w" * 190 + '"}',
            },
        },
        {"id": "d"},
        "garbage",
    ]
    blocks: list[Any] = [
        THINKING,
        {
            "type": "tool_use",
            "id": "e",
            "name": "f",
            "input": {"x": [long, 1], "y": "s"},
        },
        {"type": "tool_use", "id": "f", "name": "f", "input": {"x": ["s", 1]}},
        {"type": "text", "text": long},
    ]
    pruned = prune_all(
        {"role": "assistant", "content": blocks, "tool_calls": calls},
        {"role": "assistant", "content": "x"},
    )
    cut = long[:150] + "… [cut: 500 characters in all]"
    new: Any = pruned[0]
    assert new["tool_calls"][0]["function"]["arguments"] == {
        "x": [1, {"y": cut}],
        "z": deep,
    }
    assert new["tool_calls"][1]["custom"]["input"] == cut
    assert new["tool_calls"][2:] == calls[2:]
    assert new["content"] == [
        blocks[0],
        {**blocks[1], "input": {"x": [cut, 1], "y": "s"}},
        *blocks[2:],
    ]


def test_open_calls_are_not_touched() -> None:
    message = call_message(command="c" * 900)
    assert prune_all(message)[0] is message
    assert prune_all(message, result(content="ok"))[0] is not message


def test_odd_contents_do_no_harm() -> None:
    pruned = prune_all(
        call_message(command="x"),
        result(content={"a": "b" * 300}),
        result("q", None),
        {"role": "user", "content": 5},
    )
    assert pruned[1]["content"] == "[bash] ran `x` -> 1 line output"
    assert pruned[2:] == [result("q", None), {"role": "user", "content": 5}]


def check(messages: list[Message], pruned: list[Message], start: int, end: int) -> None:
    """Check the properties of every pruning of every history."""
    assert len(pruned) == len(messages)
    assert find_call_groups(pruned) == find_call_groups(messages)
    assert split_into_spans(pruned) == split_into_spans(messages)
    assert split_into_turns(pruned) == split_into_turns(messages)
    changed = set()
    for index, (old, new) in enumerate(zip(messages, pruned, strict=True)):
        if new is old:
            continue
        changed.add(index)
        assert start <= index < end
        assert "value" not in new.get("_native", {})
        bare_old, bare_new = (
            {k: v for k, v in message.items() if k != "_native"} for message in (old, new)
        )
        assert len(json.dumps(bare_new)) < len(json.dumps(bare_old))
        assert bare_new.keys() == bare_old.keys()
    latest = find_latest_user_index(messages)
    for index in range(start, min(end, len(messages))):
        message = pruned[index]
        for found in results_of(message):
            line, *errors = found.text.split("\n")
            is_short = (
                len(line) <= LONG_TEXT_CHARS
                and len(errors) <= MAX_CALL_ERRORS
                and all(len(e) <= MAX_ERROR_LINE_CHARS for e in errors)
            )
            assert is_short or (
                message is messages[index] and len(found.text) <= 3 * LONG_TEXT_CHARS
            ), "a short failed output"
        if index != latest:
            assert not any(
                PIXELS in json.dumps(image) for image in iterate_images(message.get("content"))
            )
        for old_call, new_call in zip(calls_of(messages[index]), calls_of(message), strict=True):
            assert not old_call.parsed or new_call.parsed.keys() == old_call.parsed.keys()
    if latest is not None:
        said = [part for part in _parts(messages[latest]) if part.get("type") != "tool_result"]
        assert [
            part for part in _parts(pruned[latest]) if part.get("type") != "tool_result"
        ] == said


def _parts(message: Message) -> list[dict[str, Any]]:
    content = message.get("content")
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


@given(histories(), st.data())
def test_every_history_is_pruned_soundly(messages: list[Message], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(messages)))
    end = data.draw(st.integers(start, len(messages) + 2))
    before = copy.deepcopy(messages)
    pruned = prune_messages(messages, start=start, protect_from=end)
    assert messages == before
    check(messages, pruned, start, end)
    again = prune_messages(pruned, start=start, protect_from=end)
    assert all(new is old for new, old in zip(again, pruned, strict=True))


REAL = [
    "coding-long-claude",
    *[f"support-{model}-{n}" for model in ("claude45", "gpt41") for n in range(6)],
]


@pytest.mark.parametrize("name", REAL)
def test_real_transcripts_are_pruned_soundly(name: str) -> None:
    messages = json.loads(shared_path("transcripts", f"{name}.json").read_text())["messages"]
    for end in (len(messages), len(messages) // 2):
        pruned = prune_messages(messages, start=2, protect_from=end)
        check(messages, pruned, 2, end)
        assert prune_messages(pruned, start=2, protect_from=end) == pruned
        assert not any(found.text == CLEARED for message in pruned for found in results_of(message))
