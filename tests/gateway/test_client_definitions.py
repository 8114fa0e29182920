"""Instructions and tools that a client loads in mid-conversation go through the gateway's rewrites."""

from __future__ import annotations

from typing import Any

from everthread.core.messages import kind_of
from everthread.core.types import Api
from everthread.gateway.request.json_slices import slice_body
from everthread.thread.events import CompactionDone
from everthread.wire.codecs import CODECS
from tests.gateway.manager_setup import HistoryClient, Managers, prepare_request
from tests.wire.client_shapes import assert_anthropic, load_shape, references, rounds


async def send_all(
    managers: Managers, api: Api, body: dict[str, Any], *, count: int
) -> list[list[Any]]:
    """Send a growing history, one round more each time; return what went upstream, past several compactions."""
    manager = managers.open(background=False)
    client = HistoryClient(
        api,
        system=None,
        extra={key: body[key] for key in ("tools",)},
    )
    listed = "input" if api == "openai_responses" else "messages"
    client.messages = list(body[listed])
    sent: list[list[Any]] = []
    for number in range(count):
        client.messages += rounds(api, 1, start=number)
        turn = await prepare_request(manager, client.incoming())
        sent.append([element.value for element in slice_body(turn.outgoing.body, api).messages])
    assert len(managers.events_of(CompactionDone)) >= 3
    return sent


async def test_claude_code_keeps_its_instructions_and_its_loaded_tools(
    managers: Managers,
) -> None:
    body = load_shape("claude_code")
    for wire in await send_all(managers, "anthropic", body, count=40):
        assert_anthropic(wire)
        assert [message for message in wire if message["role"] == "system"] == [body["messages"][1]]
        assert references(wire) == ["TideTable", "BerthPlan", "CraneLog"]


async def test_codex_keeps_its_search_for_tools(managers: Managers) -> None:
    body = load_shape("codex")
    for wire in await send_all(managers, "openai_responses", body, count=40):
        assert [item for item in wire if kind_of(item).startswith("tool_search")] == body["input"][
            4:6
        ]
        assert wire[1] == body["input"][1]
        CODECS["openai_responses"].decode_messages(wire)
