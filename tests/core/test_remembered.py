"""What was worked out once is found again."""

from __future__ import annotations

from typing import Any

from everthread.core.calibration import Calibration
from everthread.core.pruning import Memo, prune


def test_pruning_again_takes_what_is_known() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "ls"}'}}
    history: list[Any] = [
        {"role": "user", "content": "List."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "a.py\n" * 200},
    ]
    memo: Memo = {}
    first = prune(history, protect_from=3, memo=memo)
    again = prune(history, protect_from=3, memo=memo)
    assert again == first == prune(history, protect_from=3)
    assert again.messages[2] is first.messages[2]


def test_who_reported_last() -> None:
    calibration = Calibration()
    assert not calibration.reported("a")
    calibration.observe("a", 100, 90)
    assert calibration.reported("a")
    assert not calibration.reported("b")
