"""A growing history is encoded as if it were encoded anew each time."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from everthread.core.types import ModelRequest
from everthread.wire.anthropic import decode_messages, encode_request
from everthread.wire.anthropic.anthropic_history import EncodedHistory
from tests.chat_messages import (
    assistant_message,
    calls_message,
    result_message,
    text_part,
    user_message,
)


def make_turn(rng: random.Random, index: int) -> list[Any]:
    """Return a turn whose messages are joined, dropped or given other ids when encoded."""
    call_id = rng.choice(["call_1", f"call {index}", "x"])
    function = {"name": "ledger", "arguments": f'{{"account": {index}}}'}
    call_message = calls_message({"id": call_id, "function": function})
    result = result_message(call_id, f"The books of {index}.")
    native = decode_messages([assistant_message([text_part(f"Native {index}.")])])
    kinds: list[list[Any]] = [
        [
            user_message(f"Question {index}"),
            assistant_message("Settled."),
        ],
        [user_message(f"Look at {index}"), call_message, result],
        [call_message, result, user_message("Hurry.")],
        [assistant_message(""), user_message("Hello?")],
        [user_message([text_part("In parts.")]), *native],
    ]
    return rng.choice(kinds)


@pytest.mark.parametrize("seed", range(4))
def test_encodes_a_growing_history_like_a_new_one(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - a test's own chance
    encoding = EncodedHistory()
    history = list[Any]()
    for index in range(100):
        history += make_turn(rng, index)
        sent = list(history)
        for index_to_mark in range(len(sent) - 3, len(sent)):
            if (
                index_to_mark >= 0
                and isinstance(sent[index_to_mark]["content"], str)
                and sent[index_to_mark]["content"]
            ):
                sent[index_to_mark] = sent[index_to_mark] | {"cache_control": {"type": "ephemeral"}}
        request = ModelRequest(
            rng.choice(["claude-sonnet-4-5"] * 30 + ["claude-opus-4-1"]),
            sent,
            "Be brief.",
        )
        if rng.random() < 0.02:
            history[rng.randrange(len(history))] = user_message(f"Another {index}")
        assert encode_request(request, encoded_history=encoding) == encode_request(request)
    assert encoding.messages, "nothing was reused"


def test_returned_lists_may_be_modified() -> None:
    history: list[Any] = [
        {"role": ("user", "assistant")[index % 2], "content": f"Say {index}."}
        for index in range(200)
    ]
    encoding = EncodedHistory()
    request = ModelRequest("claude-sonnet-4-5", history)
    first = encode_request(request, encoded_history=encoding)
    original = copy.deepcopy(first)
    assert encoding.messages, "nothing was reused"
    for change in (list.pop, list.clear, list.reverse):
        change(encode_request(request, encoded_history=encoding)["messages"])
        assert encode_request(request, encoded_history=encoding) == original, change.__name__


@pytest.mark.parametrize("calls", [None, [], [None], [{}]])
def test_encodes_everything_if_no_role_is_certain(calls: Any) -> None:
    """One voice all along, and calls that are none: no place to cut."""
    mute = {"role": "assistant", "content": None, "tool_calls": calls}
    history: list[Any] = [user_message(f"Say {index}.") for index in range(200)]
    history[100] = mute
    encoding = EncodedHistory()
    request = ModelRequest("claude-sonnet-4-5", history)
    assert encode_request(request, encoded_history=encoding) == encode_request(request)
    assert not encoding.messages
