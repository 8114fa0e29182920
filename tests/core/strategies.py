"""Histories as they really are: parallel calls, results late, twice or never, two wire forms, images, summaries."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from everthread.core.messages import Message
from everthread.core.summary_marks import SUMMARY_END, SUMMARY_START, mark_summary
from tests.chat_messages import (
    assistant_message,
    call_block,
    calls_message,
    function_call,
    image_part,
    result_message,
    text_part,
    user_message,
)

SUMMARY = f"{SUMMARY_START}: 3 earlier messages]\n## Active Task\nNone.\n\n{SUMMARY_END}]"
PIXELS = "iVBORw0KGgo" + "A" * 400
WORDS = st.sampled_from(
    [
        "fix the test",
        "请修复登录错误",
        "テストを直して",
        "빌드가 실패합니다",
        "never touch main.py",
        "why?",
        "ok",
        "x" * 900,
    ]
)
OUTPUTS = st.sampled_from(
    [
        "",
        "ok",
        "Successfully replaced text in src/app.py.",
        "y" * 200,
        "z" * 201,
        "line of output\n" * 400,
        "def f():\n    return 1\n" * 30,
        "E   ValueError: bad\n"
        + "." * 300
        + "\n=== 2 failed, 3 passed in 0.1s ===\nCommand exited with code 1",
        json.dumps({"output": "made it\n" * 60, "exit_code": 0, "error": None}),
        json.dumps([{"id": n, "status": "open"} for n in range(30)]),
        "找到三个文件" * 80,
    ]
)
CALLS = st.sampled_from(
    [
        ("bash", {"command": "pytest tests/"}),
        ("bash", {"command": "echo " + "long " * 100}),
        ("read_file", {"path": "src/app.py", "offset": 10}),
        ("write", {"path": "a.py", "content": "print('hi')\n" * 60}),
        (
            "edit",
            {"path": "a.py", "edits": [{"oldText": "o" * 300, "newText": "新" * 300}]},
        ),
        ("grep", {"pattern": "def f", "path": "src"}),
        ("get_order", {"order_id": "A-1"}),
        ("plan", {}),
    ]
)
IMAGES = st.sampled_from(
    [
        image_part("data:image/png;base64," + PIXELS),
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/jpeg", "data": PIXELS},
        },
        image_part("https://example.org/a/long/path/to/picture.png"),
    ]
)


@st.composite
def histories(draw: st.DrawFn, max_pieces: int = 12) -> list[Message]:
    """Draw a whole history: mostly valid, with invalid messages of every kind mixed in."""
    messages: list[Any] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": "You are a careful assistant."})
    kinds = st.sampled_from(
        [
            _user,
            _assistant,
            _openai_group,
            _openai_group,
            _anthropic_group,
            _dirt,
            _summary,
        ]
    )
    for number in range(draw(st.integers(0, max_pieces))):
        make: Callable[[st.DrawFn, str], list[Any]] = draw(kinds)
        messages += make(draw, f"call_{number}")
    return messages


def _user(draw: st.DrawFn, _: str) -> list[Any]:
    words = draw(WORDS)
    image = draw(IMAGES)
    contents: list[Any] = [
        words,
        [text_part(words)],
        [text_part(words), image],
        [image],
        f"<system-reminder>be brief</system-reminder>\n{words}",
        "<system-reminder>be brief</system-reminder>",
        f"{words} ![shot](data:image/png;base64,{PIXELS})",
    ]
    return [user_message(draw(st.sampled_from(contents)))]


def _assistant(draw: st.DrawFn, _: str) -> list[Any]:
    thinking = {"type": "thinking", "thinking": "hm " * 100, "signature": "s"}
    contents: list[Any] = [
        "done",
        "好的",
        "",
        None,
        [thinking, text_part("done")],
    ]
    return [assistant_message(draw(st.sampled_from(contents)))]


def _openai_group(draw: st.DrawFn, prefix: str) -> list[Any]:
    """Draw calls and results: in any order, repeated, missing, or with a message in between."""
    made = draw(st.lists(CALLS, min_size=1, max_size=3))
    calls = [
        function_call(f"{prefix}_{n}", name, json.dumps(arguments))
        for n, (name, arguments) in enumerate(made)
    ]
    results: list[Any] = []
    for call in calls:
        output = draw(OUTPUTS)
        content = draw(st.sampled_from([output, output, [text_part(output), draw(IMAGES)], None]))
        result = result_message(call["id"], content)
        results += [result] * draw(st.sampled_from([1, 1, 1, 1, 0, 2]))
    results = draw(st.permutations(results))
    if draw(st.integers(0, 9)) == 0:
        results.insert(draw(st.integers(0, len(results))), user_message("hurry"))
    return [
        {
            "role": "assistant",
            "content": draw(st.sampled_from([None, "let me see"])),
            "tool_calls": calls,
        },
        *results,
    ]


def _anthropic_group(draw: st.DrawFn, prefix: str) -> list[Any]:
    made = draw(st.lists(CALLS, min_size=1, max_size=3))
    uses = [
        call_block(f"{prefix}_{n}", name, arguments) for n, (name, arguments) in enumerate(made)
    ]
    thinking = {"type": "thinking", "thinking": "well " * 80, "signature": "s"}
    results: list[Any] = [
        {
            "type": "tool_result",
            "tool_use_id": use["id"],
            "content": draw(OUTPUTS),
            "is_error": draw(st.booleans()),
        }
        for use in uses
        if draw(st.integers(0, 5))
    ]
    said = draw(st.sampled_from([[], [text_part(draw(WORDS))]]))
    answer = [user_message([*results, *said])] if results or said else []
    return [
        {
            "role": "assistant",
            "content": [thinking, *uses],
            "_native": {"api": "anthropic", "value": 1},
        },
        *answer,
    ]


def _dirt(draw: st.DrawFn, _: str) -> list[Any]:
    broken = function_call("call_0_0", "bash", '{"command": "' + "b" * 500)
    dirt: list[Any] = [
        result_message("nobody", "w" * 500),
        {"role": "tool", "content": "v" * 500},
        calls_message(broken, text=""),
        user_message(""),
        user_message(None),
    ]
    return [draw(st.sampled_from(dirt))]


def _summary(draw: st.DrawFn, _: str) -> list[Any]:
    contents: list[Any] = [
        SUMMARY,
        f"{SUMMARY}\n\n{draw(WORDS)}",
        [text_part(SUMMARY), text_part(draw(WORDS))],
    ]
    role = draw(st.sampled_from(["user", "assistant"]))
    content = draw(st.sampled_from(contents))
    return [mark_summary({"role": role, "content": content})]
