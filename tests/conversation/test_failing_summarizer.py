"""A summariser that fails, as a user meets it: a conversation and a provider over HTTP."""

from __future__ import annotations

import pytest

from everthread import Conversation
from tests.conversation.conversation_setup import (
    make_text,
    numbered_text,
)
from tests.conversation.http_setup import (
    KEY,
    HttpConversations,
    OpenHttp,
    answer_script,
    make_summary_text,
    served_model,
)

NO_BACKGROUND = "compression: {background: false}"


async def _compact(
    conversations: HttpConversations, conversation: Conversation, times: int
) -> None:
    """Talk until the conversation was compacted this many times."""
    turn = 0
    while len(conversations.compactions) < times:
        await conversation.send(numbered_text(turn, 300, "page"))
        turn += 1
        assert turn < 200


@pytest.mark.parametrize(
    "text",
    ["I am fine, thanks. How are you?", "", "## Goal\n"],
    ids=["prose", "empty", "bare"],
)
async def test_retries_an_unusable_summary_once_then_uses_the_journal(
    open_http: OpenHttp, text: str
) -> None:
    script = answer_script(lambda _: make_text(150), lambda _: text)
    models = [served_model("gpt-4o", 16_000)]
    conversations = await open_http(models, script)
    conversation = await conversations.open("gpt-4o", extra=NO_BACKGROUND)
    await _compact(conversations, conversation, 3)
    assert len(conversations.summary_calls()) == 2, "then the route rests"
    compactions = conversations.compactions
    assert {compaction.author for compaction in compactions} == {"journal"}
    warnings = [
        line for compaction in compactions for line in compaction.warnings if "gpt-4o" in line
    ]
    assert warnings, "it is said why the journal wrote"
    assert not any(
        "gpt-4o" in line for compaction in compactions[1:] for line in compaction.warnings
    ), "once"


async def test_remembers_the_window_that_an_auxiliary_model_states(
    open_http: OpenHttp,
) -> None:
    """A model that hides its window refuses one call; every later one fits, in the next compaction too."""
    models = [
        served_model("gpt-4o", 64_000),
        served_model("tiny", 4_000, dialect="vllm", shows=None),
    ]
    script = answer_script(lambda _: make_text(200), lambda _: make_summary_text())
    conversations = await open_http(models, script)
    extra = (
        f"auxiliary: {{compression: {{model: tiny, provider: custom, base_url: '{conversations.provider.url}/v1', "
        f"api_key_env: {KEY}}}}}\n{NO_BACKGROUND}"
    )
    conversation = await conversations.open("gpt-4o", extra=extra)
    await _compact(conversations, conversation, 1)
    first_statuses = [item.status for item in conversations.provider.log if item.model == "tiny"]
    assert first_statuses.count(400) <= 3, "calls of one round that were sent together"
    assert first_statuses.count(200) > 1
    await _compact(conversations, conversation, 2)
    statuses = [item.status for item in conversations.provider.log if item.model == "tiny"]
    assert set(statuses[len(first_statuses) :]) == {200}
    assert {compaction.author for compaction in conversations.compactions} == {"tiny"}
