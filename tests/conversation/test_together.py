"""Several at one thread, other models that step in, and messages larger than a window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everthread.compaction.compressor import ContextCompressor
from everthread.core.messages import text_of
from everthread.core.types import Request
from everthread.errors import ModelError
from everthread.providers.resilience import FallbackModel
from everthread.testing import ScriptedModel
from everthread.thread.events import (
    CompactionDone,
    Estimated,
    LimitLearnt,
    OutputStored,
)
from everthread.thread.options import Route
from tests.conversation.conversation_setup import (
    ConversationSetup,
    make_text,
    overflow_error,
    send_texts,
)
from tests.conversation.http_setup import answer_script, open_http_setup, served_model


class RecordingEngine(ContextCompressor):
    """An engine that records the calls it gets."""

    def on_session_start(self, session_id: str, **how: Any) -> None:
        super().on_session_start(session_id, **how)
        self.started = [*getattr(self, "started", []), (session_id, how["reason"])]


async def test_a_second_conversation_knows_the_state_of_a_continuation(
    setup: ConversationSetup,
) -> None:
    engines: list[RecordingEngine] = []

    def make(services: Any) -> RecordingEngine:
        engines.append(RecordingEngine(services))
        return engines[-1]

    claude: dict[str, Any] = {
        "name": "claude-sonnet-4-5",
        "api": "anthropic",
        "base_url": "https://api.anthropic.com",
    }
    said = ScriptedModel(lambda _: f"Noted. {make_text(100)}", window=64_000, **claude)
    first = await setup.open(said, engine=make, provider="anthropic", protect_last_n=2)
    await send_texts(first, 40, 60, "account")
    second = await setup.open(
        said, engine=make, provider="anthropic", protect_last_n=2, resume=first.id
    )
    await second.send("I am here too.")
    await first.compress()
    await second.send("Still here.")
    assert second.session.id == first.session.id
    assert engines[1].compaction_count == engines[0].compaction_count == 1
    assert engines[1].started[-1] == (first.session.id, "compression")
    marks = [
        index
        for index, item in enumerate(said.requests[-1].messages)
        if "cache_control" in str(item)
    ]
    assert marks == list(range(len(second.messages) - 4, len(second.messages) - 1)), (
        "the last three"
    )
    await first.send("And I.")
    await first.compress()
    await second.compress()
    again = await setup.open(said, resume=first.id)
    assert again.messages == second.messages


async def test_the_limit_of_a_model_that_stepped_in_is_not_the_first_ones(
    setup: ConversationSetup,
) -> None:
    def other(request: Request) -> Any:
        return (
            overflow_error(9_000, 12_000)
            if len(request.messages) > 9
            else "I stepped in."
        )

    out = ModelError("it is down", status=503)
    script: Any = iter([f"Noted. {make_text(200)}"] * 8)
    first = ScriptedModel(lambda _: next(script, out))
    both = FallbackModel([first, ScriptedModel(other, name="gpt-4o-mini")])
    conversation = await setup.open(both, protect_last_n=2)
    await send_texts(conversation, 8, 300, "account")
    assert (await conversation.send("And now?")).text == "I stepped in."
    assert conversation.window == first.window
    assert (await setup.store.load_limits(first.base_url, first.name)).window is None
    assert not setup.watch.of(LimitLearnt)


async def test_a_switch_forgets_what_the_other_server_reported(
    setup: ConversationSetup,
) -> None:
    conversation = await setup.open(ScriptedModel(["Noted."]))
    await conversation.send("Hello")
    await conversation.use_model(
        Route("gpt-4o", "openai_chat", 64_000, base_url="http://elsewhere.test/v1")
    )
    await conversation.prepare("Again")
    assert [event.reported for event in setup.watch.of(Estimated)] == [False, False]


@pytest.mark.parametrize("before", [0, 1, 3])
async def test_a_message_larger_than_the_window_is_cut_and_the_rest_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    monkeypatch.setenv("EVERTHREAD_LAB_KEY", "a key for the lab")
    async with open_http_setup(
        tmp_path, [served_model("gpt-4o", 16_000)], answer_script(lambda _: "Counted.")
    ) as setup:
        conversation = await setup.open("gpt-4o")
        for turn in range(before):
            await conversation.send(f"Turn {turn}: {make_text(400)}")
        large = f"Count these. {make_text(40_000)} That was all."
        assert (await conversation.send(large)).text == "Counted."
        assert setup.watch.of(CompactionDone)
        shown = next(
            said
            for said in map(text_of, conversation.messages)
            if said.startswith("Count these.")
        )
        assert shown.endswith("That was all.")
        kept = setup.watch.of(OutputStored)[-1]
        assert kept.output in shown
        assert (await setup.store.output(kept.output))[:200] in large
        history = await setup.store.history(conversation.id)
        assert text_of(history[2 * before].body) == large
        assert (await conversation.send("And now?")).text == "Counted."
