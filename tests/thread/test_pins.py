"""Pins are carried word for word by every later compaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from everthread.core.messages import text_of
from everthread.errors import InputError, UnknownIdError
from everthread.testing import ScriptedModel
from everthread.thread.lookup.pins import MAX_PIN_CHARS, add_pin
from everthread.thread.options import RecallOptions
from tests.conversation.conversation_setup import numbered_text, open_setup

TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


async def test_a_pin_is_carried_word_for_word_until_it_is_taken_back(
    tmp_path: Path,
) -> None:
    async with open_setup(tmp_path) as setup:
        conversation = await setup.open(
            ScriptedModel(lambda _: "Noted.", window=24_000),
            background=False,
            recall=RecallOptions(enabled=False),
        )
        note = "The vault's code is 4711-B;\nnever the other way round."
        kept = await add_pin(setup.store, conversation.id, f"{note} TOKEN={TOKEN}")
        assert (await add_pin(setup.store, conversation.id, kept.text)).id == kept.id
        assert TOKEN not in kept.text

        async def until(compactions: int) -> str:
            turn = 0
            while len(await setup.store.compactions(conversation.id)) < compactions:
                turn += 1
                await conversation.send(numbered_text(turn, 1_500, "page"))
            return "\n".join(text_of(body) for body in conversation.messages)

        shown = kept.text.replace("\n", "\n  ")
        for compactions in (1, 2):
            assert (await until(compactions)).count(shown) == 1
        branch = await conversation.branch()
        assert [known.text for known in await setup.store.pins(branch.id)] == [
            kept.text
        ]
        await setup.store.delete_pin(conversation.id, kept.id)
        assert await setup.store.pins(conversation.id) == []
        assert "4711-B" not in await until(3)
        assert len(await setup.store.pins(branch.id)) == 1
        await add_pin(setup.store, conversation.id, kept.text)
        assert len(await setup.store.pins(conversation.id)) == 1
        for wrong in ("  ", "x" * (MAX_PIN_CHARS + 1)):
            with pytest.raises(InputError):
                await add_pin(setup.store, conversation.id, wrong)
        with pytest.raises(UnknownIdError):
            await setup.store.delete_pin(conversation.id, "pin:" + "0" * 16)
