"""Pins are carried word for word by every later compaction."""

from __future__ import annotations

import pytest

from everthread.core.messages import text_of
from everthread.errors import InputError, UnknownIdError
from everthread.testing import ScriptedModel
from everthread.thread.lookup.pins import MAX_PIN_CHARS, add_pin
from everthread.thread.options import RecallOptions
from tests.conversation.conversation_setup import ConversationSetup, numbered_text

TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


async def test_every_compaction_carries_a_pin_until_it_is_deleted(
    setup: ConversationSetup,
) -> None:
    conversation = await setup.open(
        ScriptedModel(lambda _: "Noted.", window=24_000),
        background=False,
        recall=RecallOptions(enabled=False),
    )
    note = "The vault's code is 4711-B;\nnever the other way round."
    pin = await add_pin(setup.store, conversation.id, f"{note} TOKEN={TOKEN}")
    assert (await add_pin(setup.store, conversation.id, pin.text)).id == pin.id
    assert TOKEN not in pin.text

    async def compact_times(compactions: int) -> str:
        turn = 0
        while len(await setup.store.compactions(conversation.id)) < compactions:
            turn += 1
            await conversation.send(numbered_text(turn, 1_500, "page"))
        return "\n".join(text_of(body) for body in conversation.messages)

    pin_lines = pin.text.replace("\n", "\n  ")
    for compactions in (1, 2):
        assert (await compact_times(compactions)).count(pin_lines) == 1
    branch = await conversation.branch()
    assert [pin_of_branch.text for pin_of_branch in await setup.store.pins(branch.id)] == [pin.text]
    await setup.store.delete_pin(conversation.id, pin.id)
    assert await setup.store.pins(conversation.id) == []
    assert "4711-B" not in await compact_times(3)
    assert len(await setup.store.pins(branch.id)) == 1
    await add_pin(setup.store, conversation.id, pin.text)
    assert len(await setup.store.pins(conversation.id)) == 1
    for text in ("  ", "x" * (MAX_PIN_CHARS + 1)):
        with pytest.raises(InputError):
            await add_pin(setup.store, conversation.id, text)
    with pytest.raises(UnknownIdError):
        await setup.store.delete_pin(conversation.id, "pin:" + "0" * 16)
