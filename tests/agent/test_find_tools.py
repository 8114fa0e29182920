"""Tools that are left out: called anyway, found again, shown at once if the user accepts the price."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.agent import commands
from everthread.agent.approval import Approvals
from everthread.agent.tool_interface import Permission
from everthread.agent.turn_events import ToolFinished
from everthread.conversation.offered_tools import FIND_TOOLS
from everthread.core.types import ModelRequest
from everthread.testing import ScriptedModel
from everthread.thread.events import ToolsChanged
from tests.agent.agent_setup import Agents, FakeTool, text_tool, tool_results
from tests.chat_messages import call_reply

CONFIG = "compression: {tools_share: 0.05}"
TOPICS = (
    "invoice",
    "weather",
    "calendar",
    "telephone",
    "warehouse",
    "payroll",
    "flight",
    "hotel",
)


class DescribedTool(FakeTool):
    """A tool that says much about itself."""

    @property
    def schema(self) -> dict[str, Any]:
        schema = super().schema
        schema["function"]["description"] = f"{self.name}: " + " ".join(
            f"{self.name} word {n}" for n in range(40)
        )
        return schema


def tools() -> list[FakeTool]:
    return [DescribedTool(topic, text_tool(topic, f"{topic} done").work) for topic in TOPICS]


def offered_names(request: ModelRequest) -> list[str]:
    return [str(entry["function"]["name"]) for entry in request.tools]


async def open_and_ask(agents: Agents, script: list[Any], **more: Any) -> Any:
    model = ScriptedModel(
        script,
        name="claude-sonnet-4-5",
        api="anthropic",
        window=16_000,
    )
    agent = await agents.open(
        model,
        config=CONFIG,
        tools=tools(),
        **more,
    )
    await agent.send("Book a flight.")
    return agent, model


async def test_a_tool_left_out_still_works_and_is_counted(agents: Agents) -> None:
    agent, model = await open_and_ask(agents, [call_reply(("payroll", {})), "paid"])
    assert FIND_TOOLS in offered_names(model.requests[0])
    assert "payroll" not in offered_names(model.requests[0])
    assert tool_results(agent) == ["payroll done"]
    usage = await commands.run(agent, agents.store, "/usage")
    out = agent.conversation.toolbox.left_out
    assert f"{len(out)} of 8 tools are left out: {', '.join(out)}." in usage.text
    assert usage.data["tools_left_out"] == list(out)


@pytest.mark.parametrize("is_allowed", [False, True])
async def test_showing_tools_at_once_needs_approval_of_the_price(
    agents: Agents, is_allowed: bool
) -> None:
    permissions: list[Permission] = []

    async def ask(permission: Permission) -> bool:
        permissions.append(permission)
        return is_allowed

    script = [
        "ok",
        call_reply((FIND_TOOLS, {"query": "telephone", "now": True})),
        "ringing",
    ]
    approvals = Approvals((), ask)
    agent, model = await open_and_ask(agents, script, yes=False, approve=approvals)
    await agent.send("Ring him.")
    [result] = tool_results(agent)
    assert result.startswith("Tools that match 'telephone':\n- telephone:")
    assert ("telephone" in offered_names(model.requests[-1])) == is_allowed
    assert ("did not allow to show them at once" in result) != is_allowed
    assert ("next compaction" in result) != is_allowed
    assert agents.events_of(ToolFinished)[-1].refused != is_allowed
    changes = [event.is_immediate for event in agents.events_of(ToolsChanged)]
    assert changes == ([False, True] if is_allowed else [False])
    [permission] = permissions
    assert permission.kind == "cache"
    assert permission.target == "show these tools at once: telephone"
    assert permission.detail.startswith("about $0.0")
    assert "tokens" in permission.detail


async def test_a_query_without_matches_asks_nothing_and_bad_arguments_are_refused(
    agents: Agents,
) -> None:
    script = [
        "ok",
        call_reply(
            (FIND_TOOLS, {"query": "quantum", "now": True}),
            (FIND_TOOLS, {"now": 3, "query": "x"}),
        ),
        "hm",
    ]
    agent, _ = await open_and_ask(agents, script, yes=False)
    await agent.send("Find something.")
    first, second = tool_results(agent)
    assert "No tool that is left out matches 'quantum'" in first
    assert "must be true or false" in second
