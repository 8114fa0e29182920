"""Pins are carried word for word by every later compaction."""

from __future__ import annotations

import pytest

from everthread.conversation.conversation import Conversation
from everthread.core.messages import text_of
from everthread.errors import InputError, UnknownIdError
from everthread.testing import ScriptedModel
from everthread.thread.lookup.pins import MAX_PIN_CHARS, add_pin
from everthread.thread.options import RecallOptions
from tests.conversation.conversation_setup import Conversations, numbered_text

TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
NOTE = "The vault's code is 4711-B;\nnever the other way round."


async def open_conversation(conversations: Conversations) -> Conversation:
    return await conversations.open(
        ScriptedModel(lambda _: "Noted.", window=24_000),
        background=False,
        recall=RecallOptions(enabled=False),
    )


async def compact_times(
    conversations: Conversations, conversation: Conversation, count: int
) -> str:
    """Send pages until the conversation was compacted this many times; return the text in view."""
    turn = 0
    while len(await conversations.store.list_compactions(conversation.id)) < count:
        turn += 1
        await conversation.send(numbered_text(turn, 1_500, "page"))
    return "\n".join(text_of(body) for body in conversation.messages)


async def test_every_compaction_carries_a_pin_until_it_is_deleted(
    conversations: Conversations,
) -> None:
    conversation = await open_conversation(conversations)
    pin = await add_pin(conversations.store, conversation.id, f"{NOTE} TOKEN={TOKEN}")
    pin_lines = pin.text.replace("\n", "\n  ")
    for count in (1, 2):
        text = await compact_times(conversations, conversation, count)
        assert text.count(pin_lines) == 1
    await conversations.store.state.delete_pin(conversation.id, pin.id)
    assert await conversations.store.state.list_pins(conversation.id) == []
    text = await compact_times(conversations, conversation, 3)
    assert "4711-B" not in text


async def test_a_secret_in_a_pin_is_redacted_and_a_repeated_text_is_one_pin(
    conversations: Conversations,
) -> None:
    conversation = await open_conversation(conversations)
    pin = await add_pin(conversations.store, conversation.id, f"{NOTE} TOKEN={TOKEN}")
    assert TOKEN not in pin.text
    same_pin = await add_pin(conversations.store, conversation.id, pin.text)
    assert same_pin.id == pin.id
    assert len(await conversations.store.state.list_pins(conversation.id)) == 1


async def test_a_branch_keeps_its_copies_of_pins(conversations: Conversations) -> None:
    conversation = await open_conversation(conversations)
    pin = await add_pin(conversations.store, conversation.id, NOTE)
    await conversation.send("Begin.")
    branch = await conversation.branch()
    await conversations.store.state.delete_pin(conversation.id, pin.id)
    [pin_of_branch] = await conversations.store.state.list_pins(branch.id)
    assert pin_of_branch.text == pin.text


@pytest.mark.parametrize("text", ["  ", "x" * (MAX_PIN_CHARS + 1)])
async def test_refuses_an_empty_or_too_long_pin(conversations: Conversations, text: str) -> None:
    conversation = await open_conversation(conversations)
    with pytest.raises(InputError):
        await add_pin(conversations.store, conversation.id, text)


async def test_refuses_to_delete_an_unknown_pin(conversations: Conversations) -> None:
    conversation = await open_conversation(conversations)
    with pytest.raises(UnknownIdError):
        await conversations.store.state.delete_pin(conversation.id, "pin:" + "0" * 16)
