"""Faulty engines, hooks and prompt writers: the error is reported and the conversation continues."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.compressor import ContextCompressor
from everthread.conversation.conversation import Conversation
from everthread.errors import ContextOverflowError, EngineError
from everthread.testing import ScriptedModel
from everthread.thread.events import (
    CompactionFailed,
    CompactionVoid,
    Notice,
)
from tests.conversation.conversation_setup import (
    SYSTEM,
    Conversations,
    make_text,
    numbered_text,
    overflow_error,
    send_texts,
)

TURNS = 9


class CorruptingEngine(ContextCompressor):
    """An engine whose compactions the test corrupts."""

    spoil: Callable[[Compaction], Any] = staticmethod(lambda made: made)

    async def compress(self, *arguments: Any, **options: Any) -> Compaction:
        compaction: Compaction = type(self).spoil(await super().compress(*arguments, **options))
        return compaction


def engine_with(**overridden: Any) -> Any:
    return type("Another", (CorruptingEngine,), overridden)


def raise_error(*_given: Any, **_how: Any) -> Any:
    raise ValueError("no idea")


async def send_past_threshold(conversations: Conversations, **settings: Any) -> Conversation:
    """Send enough turns to pass the threshold."""
    model = ScriptedModel(lambda _: f"Noted. {make_text(200)}", window=16_000)
    conversation = await conversations.open(model, protect_last_n=2, **settings)
    await send_texts(conversation, TURNS, 800, "account")
    assert len(await conversations.store.load_history(conversation.id)) == 2 * TURNS
    return conversation


SPOILT: dict[str, Callable[[Compaction], Any]] = {
    "nothing": lambda _: None,
    "no messages": lambda made: replace(
        made,
        messages=[],
        kept=(),
    ),
    "texts for messages": lambda made: replace(
        made, messages=[cast("Any", "x")] * len(made.messages)
    ),
    "too few kept": lambda made: replace(made, kept=made.kept[:-1]),
    "kept out of range": lambda made: replace(made, kept=(999,) * len(made.kept)),
    "covered out of range": lambda made: replace(made, covered=(999,)),
    "usage that is none": lambda made: replace(made, usage=(cast("Any", 5),)),
    "outputs that are none": lambda made: replace(made, to_store=(5,)),
    "nodes that are none": lambda made: replace(made, nodes=(cast("Any", {"id": "n1"}),)),
    "an error": raise_error,
}


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("how", list(SPOILT))
async def test_a_compaction_that_cannot_be_used_changes_nothing(
    conversations: Conversations, how: str, *, background: bool
) -> None:
    spoilt = engine_with(spoil=staticmethod(SPOILT[how]))
    conversation = await send_past_threshold(conversations, engine=spoilt, background=background)
    assert conversations.events(CompactionFailed)
    assert not conversations.compactions
    with pytest.raises(EngineError):
        await conversation.compress()
    await conversation.close()


async def test_retries_a_failing_engine_only_after_the_context_grew(
    conversations: Conversations,
) -> None:
    model = ScriptedModel(lambda _: make_text(200, "answer"), window=16_000)
    conversation = await conversations.open(model, engine=engine_with(compress=raise_error))
    while conversation.tokens < 9_000:
        await conversation.send(make_text(250))
    failures = conversations.events(CompactionFailed)
    assert "no idea" in failures[0].error
    assert len(failures) < 4


@pytest.mark.parametrize(
    "method",
    [
        "update_from_response",
        "should_compress",
        "has_content_to_compress",
        "on_compacted",
        "dump_state",
        "load_state",
    ],
)
async def test_reports_a_failing_engine_method_once(
    conversations: Conversations, method: str
) -> None:
    conversation = await send_past_threshold(
        conversations, engine=engine_with(**{method: raise_error}), background=False
    )
    await conversations.open(
        ScriptedModel(),
        resume=conversation.id,
        engine=engine_with(**{method: raise_error}),
    )
    notices = [
        event.text for event in conversations.events(Notice) if f"failed in {method}" in event.text
    ]
    assert 1 <= len(notices) <= 2, "once for each conversation"
    assert "ValueError: no idea" in notices[0]


async def test_an_engine_plans_in_a_thread_and_not_on_the_event_loop(
    conversations: Conversations,
) -> None:
    threads: set[int] = set()

    def has_content_to_compress(_engine: Any, _messages: Any) -> bool:
        threads.add(threading.get_ident())
        return True

    await send_past_threshold(
        conversations, engine=engine_with(has_content_to_compress=has_content_to_compress)
    )
    assert threads
    assert threading.get_ident() not in threads


async def test_a_state_that_is_not_json_does_not_fail_the_turn(
    conversations: Conversations,
) -> None:
    await send_past_threshold(
        conversations,
        engine=engine_with(dump_state=lambda _self: {"x": object()}),
        background=False,
    )
    assert sum("failed in dump_state" in event.text for event in conversations.events(Notice)) == 1


async def test_a_failing_engine_after_an_overflow_raises_an_overflow_error(
    conversations: Conversations,
) -> None:
    model = ScriptedModel(["Noted.", overflow_error(4_000, 9_000)])
    conversation = await conversations.open(model, engine=engine_with(compress=raise_error))
    await conversation.send("The first.")
    with pytest.raises(Exception, match="Your message and the history are stored"):
        await conversation.send("The second.")
    assert len(conversations.events(CompactionFailed)) == 3
    assert len(conversation.messages) == 3


async def test_a_failed_compaction_before_an_incoming_message_does_not_delay_the_next_one(
    conversations: Conversations,
) -> None:
    engine = engine_with(spoil=staticmethod(raise_error))
    model = ScriptedModel(["Noted."], window=16_000)
    conversation = await conversations.open(
        model,
        engine=engine,
        background=False,
        protect_last_n=2,
    )
    for turn in range(12):
        await conversation.add(numbered_text(turn, 1_180, "account"))
    await conversation.compact_before_incoming()
    assert len(conversations.events(CompactionFailed)) == 1
    engine.spoil = staticmethod(lambda given: given)
    await conversation.send("And now?")
    assert conversations.compactions


async def test_keeps_the_system_prompt_if_rebuilding_it_fails(
    conversations: Conversations,
) -> None:
    written = iter([SYSTEM])
    conversation = await send_past_threshold(
        conversations, system=lambda: next(written), background=False
    )
    assert conversations.compactions
    assert any("could not be rebuilt" in event.text for event in conversations.events(Notice))
    assert str(conversation.session.system).count(SYSTEM) == 1


async def fail_to_save(session: str) -> None:
    raise OSError(session)


async def test_a_failing_hook_stops_the_compaction_but_not_the_turn(
    conversations: Conversations,
) -> None:
    model = ScriptedModel(lambda _: f"Noted. {make_text(200)}", window=16_000)
    conversation = await conversations.open(
        model,
        protect_last_n=2,
        background=False,
        changes={"before_compaction": fail_to_save},
    )
    await send_texts(conversation, TURNS, 800, "account")
    assert not conversations.compactions
    assert conversations.events(CompactionFailed)
    compaction = await conversation.compress()
    assert not compaction.changed
    assert not conversations.events(CompactionVoid), (
        "only a compaction that finds nothing left is void"
    )


async def test_a_compaction_that_is_not_committed_does_not_send_the_refused_request_again(
    conversations: Conversations,
) -> None:
    model = ScriptedModel(lambda _: overflow_error(8_000, 9_000), window=16_000)
    conversation = await conversations.open(
        model,
        protect_last_n=2,
        background=False,
        changes={"before_compaction": fail_to_save},
    )
    for number in range(6):
        await conversation.add(
            [
                {
                    "role": "user",
                    "content": f"Entry {number}. " + make_text(600),
                }
            ]
        )
        await conversation.add(
            [
                {
                    "role": "assistant",
                    "content": "Noted.",
                }
            ]
        )
    with pytest.raises(ContextOverflowError):
        await conversation.send("Go on.")
    assert len(model.requests) == 1
    assert conversations.events(CompactionFailed)
    assert not conversations.compactions
