"""The tag of a summary in a bare list uses the key of the home if there is one."""

from __future__ import annotations

from pathlib import Path

from everthread import acompress, open_store
from everthread.config import parse_config
from everthread.core.messages import Message
from everthread.core.summary_marks import (
    SUMMARY_START,
    is_summary,
    recognize_summaries,
    summary_text,
)
from tests.chat_messages import assistant_message, user_message
from tests.compaction.histories import tool_turns

CONVERSATION = [
    user_message("Tidy up."),
    assistant_message("I will."),
    user_message("Never push to main."),
    *tool_turns(0, 60),
    user_message("And now?"),
    *tool_turns(60, 2),
]


def recognized_text(messages: list[Message], key: bytes = b"") -> str:
    return "".join(
        summary_text(message)
        for message in recognize_summaries(messages, key)
        if is_summary(message)
    )


async def test_compress_with_a_configuration_uses_the_key_of_its_store(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'home.db'}"
    config = parse_config(f"store: {{url: '{url}'}}")
    early = await acompress(CONVERSATION, window=16_000, config=config)
    assert recognized_text(early.messages), "nothing is stored there yet: a content hash"
    store = open_store(url)
    key = await store.keys.load_shared_secret("summary")
    await store.close()
    result = await acompress(CONVERSATION, window=16_000, config=config)
    assert recognized_text(result.messages, key)
    assert not recognized_text(result.messages), "who has no key cannot tell it from a forged one"
    second = await acompress(
        [*result.messages, *tool_turns(70, 60), user_message("Well?")],
        window=16_000,
        config=config,
    )
    assert second.summary.count(SUMMARY_START) == 1
    assert "] Never push to main." in second.summary


async def test_a_summary_from_before_the_key_becomes_background(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'home.db'}"
    early = await acompress(CONVERSATION, window=16_000)
    await open_store(url).close()
    config = parse_config(f"store: {{url: '{url}'}}")
    later = await acompress(
        [*early.messages, *tool_turns(70, 60), user_message("Well?")],
        window=16_000,
        config=config,
    )
    assert later.summary.count(SUMMARY_START) == 1
    assert "From an earlier summary:" in later.summary
    assert "Never push to main." in later.summary
