"""An answer's cap leaves room for its prompt."""

from __future__ import annotations

import pytest

from everthread.core.types import Api, ModelRequest
from everthread.providers.resilience import FittingModel
from everthread.testing import ScriptedModel


@pytest.mark.parametrize(
    ("api", "words", "cap", "sent"),
    [
        ("openai_chat", 1_000, None, None),
        ("openai_chat", 1_000, 500, 500),
        ("openai_chat", 1_000, 9_000, 6_940),
        ("openai_responses", 1_000, 9_000, 6_940),
        ("anthropic", 1_000, None, None),
        ("anthropic", 5_000, None, 2_740),
        ("openai_chat", 7_900, 500, 500),
    ],
    ids=[
        "none",
        "fits",
        "lowered",
        "responses",
        "its own fits",
        "its own lowered",
        "no room: the provider may say so",
    ],
)
async def test_the_cap_leaves_room_for_the_prompt(
    api: Api, words: int, cap: int | None, sent: int | None
) -> None:
    model = ScriptedModel(["ok", "ok"], name="gpt-4o", window=8_000, api=api)
    params = {} if cap is None else {"max_tokens": cap}
    request = ModelRequest(
        model.name, [{"role": "user", "content": "word " * words}], params=params
    )
    await FittingModel(model).complete(request)
    (found,) = list(model.requests[0].params.values()) or [None]
    assert (found is None) == (sent is None)
    assert abs((found or 0) - (sent or 0)) <= 30
    assert model.requests[0].messages is request.messages


async def test_fits_the_cap_of_a_stream() -> None:
    model = ScriptedModel(["ok"], name="gpt-4o", window=8_000)
    request = ModelRequest(
        model.name,
        [{"role": "user", "content": "word " * 5_000}],
        params={"max_tokens": 8_000},
    )
    pieces = [piece async for piece in FittingModel(model).stream(request)]
    assert pieces
    assert model.requests[0].params["max_tokens"] < 3_000
