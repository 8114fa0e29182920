"""A lossless thread of the native API: the model calls the engine's tools, with any arguments."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from everthread.core.messages import results_of, text_of
from everthread.core.types import Request
from tests.agent.agent_setup import call_reply
from tests.compaction.lossless.lossless_setup import NODE
from tests.conversation.conversation_setup import make_text
from tests.gateway.api.api_setup import ApiSetup, WaitingModel, open_api

SETTINGS = (
    "{context: {engine: lossless}, compression: {background: false, protect_last_n: 2}}"
)
TRIES: list[tuple[str, Any]] = [
    ("lcm_grep", {}),
    ("lcm_grep", "not json"),
    ("lcm_grep", {"pattern": "(a+)+$" * 20, "mode": "regex", "limit": -1}),
    ("lcm_grep", {"pattern": "tulip_9_omega", "scope": "all"}),
    ("lcm_grep", {"pattern": "x", "tenant": "other"}),
    ("lcm_describe", {"id": ["n"]}),
    ("lcm_describe", {"id": "n0123456789ab"}),
    ("lcm_expand", {"id": "../../etc/passwd"}),
    ("lcm_expand", {"id": "message:999999"}),
    ("lcm_expand", {"id": "message:1", "offset": -4}),
]


def script(request: Request) -> Any:
    """Searches as the message asks, reads the first node it sees, and tries nonsense."""
    spoken = (
        message
        for message in reversed(request.messages)
        if "<system-reminder>" not in text_of(message)
    )
    last = next(spoken)
    if last["role"] == "tool":
        return "Looked."
    said = text_of(last)
    if said.startswith("find "):
        return call_reply(
            ("lcm_grep", {"pattern": said.removeprefix("find "), "role": "user"})
        )
    if said == "read":
        shown = "\n".join(map(text_of, request.messages))
        nodes = NODE.findall(shown)
        return call_reply(
            ("lcm_describe", {"id": nodes[0]}), ("lcm_expand", {"id": nodes[0]})
        )
    if said.startswith("read message:"):
        return call_reply(("lcm_expand", {"id": said.removeprefix("read ")}))
    return call_reply(*TRIES) if said == "try" else make_text(120, "answer")


async def answers(setup: ApiSetup, thread: str, said: str) -> list[str]:
    before = len(setup.model.requests)
    answer = (await setup.say(thread, said)).json()
    assert answer["answer"]["text"] == "Looked.", answer
    last = setup.model.requests[before + 1 :][-1].messages
    made = next(
        index
        for index in range(len(last) - 1, -1, -1)
        if last[index]["role"] == "assistant"
    )
    return [result.text for message in last[made:] for result in results_of(message)]


async def test_the_tools_through_a_turn(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    async with open_api(
        url, WaitingModel(script, window=16_000), settings=SETTINGS
    ) as setup:
        other = await setup.thread("bob")
        await setup.say(other, "The vault opens with tulip_9_omega.", "bob")
        theirs = (await setup.store.history(other))[0].id
        thread = await setup.thread()
        for number in range(24):
            await setup.say(
                thread,
                f"Box_{number:03d} stands on shelf-{number * 7919:06x}. {make_text(400, 'hall')}",
            )
        assert await setup.store.nodes(thread)
        for number in (2, 9):
            (found,) = await answers(setup, thread, f"find box_{number:03d}")
            assert f"stands on shelf-{number * 7919:06x}" in found
            assert f", turn {number + 1}, " in found
        about, originals = await answers(setup, thread, "read")
        assert re.match(r"lcm_describe n[0-9a-f]{12}: turns \d+-\d+", about)
        assert "Box_001 stands on shelf-001eef" in originals
        said = await answers(setup, thread, "try")
        assert len(said) == len(TRIES)
        assert all(0 < len(answer) < 500 for answer in said)
        assert "nothing was found" in said[3]
        assert "do not try it again" in said[6]
        assert "do not try it again" in said[8]
        (refused,) = await answers(setup, thread, f"read message:{theirs}")
        assert "do not try it again" in refused
        assert not any("vault" in answer for answer in (*said, refused))
