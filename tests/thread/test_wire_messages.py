"""Messages on their way to another process."""

from __future__ import annotations

import pickle

from everthread.thread.wire_messages import JsonMessages


def test_messages_are_pickled_as_texts() -> None:
    texts = [
        '{"role": "user", "content": "größer 设置"}',
        '{"role": "user", "content": "half a character: \\ud83d"}',
        '{"role": "assistant", "n": 123456789012345678901234567890, "x": 1.50}',
    ]
    sent = JsonMessages(texts)
    data = pickle.dumps(sent)
    assert all(text.encode() in data for text in texts)
    arrived = pickle.loads(data)  # noqa: S301 - our own
    assert len(arrived) == 3
    assert list(arrived) == list(sent) == sent[:]
    assert arrived[1]["content"].endswith("\ud83d")
    assert arrived[2]["n"] == 123456789012345678901234567890
    assert arrived[:1] == [
        {
            "role": "user",
            "content": "größer 设置",
        }
    ]
