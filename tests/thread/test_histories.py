"""Histories of clients by their messages: digests, and results that a client moved elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.thread.matching.history import build_history, identify_message, is_cleared
from tests.chat_messages import assistant_message, result_block, text_part, user_message
from tests.digest_chains import canonical_chain


def test_digests_equal_those_of_the_canonical_messages() -> None:
    messages: list[Any] = [
        user_message("One"),
        assistant_message([text_part("Two")]),
        user_message([result_block("call_1", "three")]),
    ]
    history = build_history(identify_message("anthropic", message) for message in messages)
    assert list(history.digests) == canonical_chain(messages)


@pytest.mark.parametrize(
    ("text", "is_placeholder"),
    [
        ("[Old tool result content cleared]", True),
        (
            "<tool_output_masked>\n001/0000 Eltham\n…\nOutput too large. Full output available at: /tmp/o.txt\n</x>",
            True,
        ),
        (f"Full output saved to: /tmp/o.txt\n{'preview ' * 100}", True),
        ("The full output of the pump is 40 litres a minute.", False),
        (f"{'line ' * 2_000} Full output available at: /tmp/o.txt", False),
    ],
)
def test_a_result_that_the_client_moved_is_a_placeholder(text: str, is_placeholder: bool) -> None:
    assert is_cleared(text) is is_placeholder
