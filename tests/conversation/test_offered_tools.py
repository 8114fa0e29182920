"""Too many tools for the window: which are left out, when the selection changes, and how they are found again."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.compaction.engine import Services
from everthread.compaction.lossless import LosslessEngine
from everthread.conversation.conversation import Conversation
from everthread.conversation.offered_tools import FIND_TOOLS
from everthread.core.types import ModelReply, ModelRequest
from everthread.errors import InputError
from everthread.testing import ScriptedModel
from everthread.thread.events import Notice, ToolsChanged
from tests.chat_messages import call_reply
from tests.conversation.conversation_setup import Conversations, make_text, tool_result

TOPICS = (
    "invoice",
    "weather",
    "calendar",
    "translation",
    "telephone",
    "warehouse",
    "payroll",
    "flight",
)


def tool(topic: str, size: int = 60) -> dict[str, Any]:
    description = f"Works on the {topic}. " + make_text(size, f"{topic} detail")
    schema = {
        "type": "object",
        "properties": {f"{topic}_id": {"type": "string"}},
    }
    return {
        "type": "function",
        "function": {
            "name": f"{topic}_tool",
            "description": description,
            "parameters": schema,
        },
    }


TOOLS = [tool(topic) for topic in TOPICS]
SHARE: dict[str, Any] = {
    "tools_share": 0.1,
    "background": False,
}
"""Of a threshold of 4,000 tokens: about four of the eight tools."""


def offered_names(request: ModelRequest) -> list[str]:
    return [str(entry["function"]["name"]) for entry in request.tools]


def model(**more: Any) -> ScriptedModel:
    return ScriptedModel(lambda _: make_text(120, "answer"), window=8_000, **more)


async def send_until_compacted(conversation: Conversation, topic: str = "ledger") -> None:
    """Send messages until one more compaction."""
    first_session = conversation.session.id
    turn = 0
    while conversation.session.id == first_session:
        turn += 1
        await conversation.send(f"Turn {turn}. {make_text(300, f'{topic} {turn}')}")


async def test_offers_all_tools_below_their_share(
    conversations: Conversations,
) -> None:
    scripted = model()
    conversation = await conversations.open(scripted, tools=TOOLS[:2], background=False)
    await conversation.send("Hello")
    await send_until_compacted(conversation)
    assert all(request.tools == TOOLS[:2] for request in scripted.requests)
    assert conversation.toolbox.left_out == ()
    assert conversations.events(ToolsChanged) == []


async def test_offers_the_same_tools_until_a_compaction_in_every_process(
    conversations: Conversations,
) -> None:
    scripted = model()
    conversation = await conversations.open(scripted, tools=TOOLS, **SHARE)
    assert conversation.tools == TOOLS
    await conversation.send("Book me a flight, and put it into the calendar.")
    first_names = offered_names(scripted.requests[0])
    assert {"flight_tool", "calendar_tool", FIND_TOOLS} <= set(first_names)
    assert 3 <= len(first_names) < len(TOOLS)
    [change] = conversations.events(ToolsChanged)
    assert (change.removed_names, change.left_out, change.tool_count, change.reason) == (
        conversation.toolbox.left_out,
    ) * 2 + (8, "the session begins")
    assert change.tokens_saved > 200
    await conversation.send("And now the weather, please, and the payroll.")
    again = await conversations.open(
        scripted,
        resume=conversation.id,
        tools=TOOLS,
        **SHARE,
    )
    await again.send("What about the warehouse?")
    assert [offered_names(request) for request in scripted.requests] == [first_names] * 3
    await send_until_compacted(again, "warehouse payroll")
    # Tools that fit stay: they and the system prompt are still cached.
    assert offered_names(scripted.requests[-1]) == first_names
    assert len(conversations.events(ToolsChanged)) == 1
    branch = await again.branch()
    await branch.send("Elsewhere.")
    assert offered_names(scripted.requests[-1]) == first_names


async def test_a_tool_in_use_stays_and_one_that_is_asked_for_comes_back(
    conversations: Conversations,
) -> None:
    def answer_or_call(request: ModelRequest) -> Any:
        last = request.messages[-1]
        if "use it" in str(last.get("content")):
            return call_reply(("payroll_tool", "{}"))
        return make_text(120, "answer")

    scripted = ScriptedModel(answer_or_call, window=8_000)
    conversation = await conversations.open(scripted, tools=TOOLS, **SHARE)
    await conversation.send("Book me a flight.")
    left_out = conversation.toolbox.left_out
    assert {"payroll_tool", "telephone_tool", "warehouse_tool"} <= set(left_out)
    # One that is left out can be called.
    answer = await conversation.send("Somehow you know it: use it")
    await conversation.add_results([tool_result("paid", answer.calls[0].id)])
    answer_text = await conversation.handle_tool_call(
        FIND_TOOLS, {"query": "phone somebody: telephones"}
    )
    assert answer_text.startswith(
        "Tools that match 'phone somebody: telephones':\n- telephone_tool: Works on the telephone."
    )
    assert answer_text.endswith("They are shown to you again from the next compaction on.")
    answer_text = await conversation.handle_tool_call(
        FIND_TOOLS,
        {
            "query": "warehouses",
            "now": True,
        },
    )
    assert "The user did not allow to show them at once." in answer_text
    assert "next compaction" in answer_text
    assert conversation.toolbox.left_out == left_out
    resumed = await conversations.open(
        scripted,
        resume=conversation.id,
        tools=TOOLS,
        **SHARE,
    )
    assert resumed.toolbox.left_out == left_out
    await send_until_compacted(resumed)
    offered = set(offered_names(scripted.requests[-1]))
    assert {"payroll_tool", "telephone_tool", "warehouse_tool", FIND_TOOLS} <= offered
    assert not set(resumed.toolbox.left_out) & offered
    change = conversations.events(ToolsChanged)[-1]
    assert {"payroll_tool", "telephone_tool", "warehouse_tool"} <= set(change.returned_names)
    await send_until_compacted(resumed, "flight calendar")
    assert "payroll_tool" in offered_names(scripted.requests[-1])
    record = (await resumed.store.list_compactions(resumed.id))[-1].record
    assert record.figures["tools_left_out"] == list(resumed.toolbox.left_out)


async def test_another_process_sees_a_compaction_only_with_its_tools(
    conversations: Conversations,
) -> None:
    """An unsaved selection comes from the compaction's own record; an undo restores the earlier one."""
    scripted = model()
    conversation = await conversations.open(scripted, tools=TOOLS, **SHARE)
    await conversation.send("Book me a flight.")
    previous = conversation.toolbox.left_out
    await conversation.find_tools("telephone")
    await send_until_compacted(conversation)
    out = conversation.toolbox.left_out
    assert out != previous
    await conversations.store.state.put_state(conversation.session.id, "calibration", None)
    other = await conversations.open(
        scripted,
        resume=conversation.id,
        tools=TOOLS,
        **SHARE,
    )
    assert other.toolbox.left_out == out
    await other.undo()
    assert other.toolbox.left_out == previous


async def test_offering_a_tool_now_states_its_cost(conversations: Conversations) -> None:
    scripted = model(name="claude-sonnet-4-5", api="anthropic")
    conversation = await conversations.open(
        scripted,
        tools=TOOLS,
        provider="anthropic",
        **SHARE,
    )
    await conversation.send("Book me a flight.")
    price = conversation.describe_cache_loss()
    assert price.startswith("about $0.00")
    assert f"{conversation.tokens:,} tokens" in price
    found = await conversation.find_tools("telephone", now=True)
    assert found.is_offered_now
    assert [card.name for card in found.tools] == ["telephone_tool"]
    assert found.text.endswith("They are shown to you again from now on.")
    change = conversations.events(ToolsChanged)[-1]
    assert change.returned_names == ("telephone_tool",)
    assert change.is_immediate
    assert "other tools are offered" in conversation.describe_cache_loss()
    await conversation.send("Ring him.")
    assert "telephone_tool" in offered_names(scripted.requests[-1])
    assert "telephone_tool" not in offered_names(scripted.requests[-2])
    again = await conversations.open(
        scripted, resume=conversation.id, tools=TOOLS, provider="anthropic", **SHARE
    )
    await again.send("And again.")
    assert offered_names(scripted.requests[-1]) == offered_names(scripted.requests[-2])
    unpriced = await conversations.open(model(name="nobody-knows"), tools=TOOLS, **SHARE)
    await unpriced.send("Hello")
    assert "is not known" in unpriced.describe_cache_loss()


async def test_a_search_that_finds_nothing_changes_nothing(
    conversations: Conversations,
) -> None:
    conversation = await conversations.open(model(), tools=TOOLS, **SHARE)
    await conversation.send("Book me a flight.")
    found = await conversation.find_tools("quantum chemistry", now=True)
    assert found.tools == ()
    assert not found.is_offered_now
    assert "These are left out: " in found.text
    assert all(name in found.text for name in conversation.toolbox.left_out)
    assert "telephone_tool" not in (await conversation.find_tools("telephone_tool")).others
    for wrong in ("", "  ", "x" * 1_001):
        with pytest.raises(InputError, match="what the tool shall do"):
            await conversation.find_tools(wrong)
    small = await conversations.open(model(), tools=TOOLS[:1])
    await small.send("Hello")
    assert "all are shown to you" in (await small.find_tools("weather")).text
    with pytest.raises(KeyError):
        await small.handle_tool_call(FIND_TOOLS, {"query": "weather"})


async def test_leaves_out_tools_if_they_fill_the_threshold(
    conversations: Conversations,
) -> None:
    """Tools are left out if that helps; otherwise the notice says that it cannot."""
    scripted = model()
    long_system = "You help. " + make_text(2_400, "rule")
    conversation = await conversations.open(
        scripted,
        tools=[tool(topic, 200) for topic in TOPICS],
        system=long_system,
        tools_share=1.0,
    )
    await conversation.send("Book me a flight.")
    assert FIND_TOOLS in offered_names(scripted.requests[0])
    await conversation.send("And a hotel.")
    [notice] = conversations.events(Notice)
    assert "alone take" in notice.text
    assert notice.text.endswith(
        f"{len(conversation.toolbox.left_out)} tools that it does not use are left out."
    )
    full = await conversations.open(
        model(),
        tools=TOOLS,
        system="You help. " + make_text(5_000, "rule"),
        **SHARE,
    )
    await full.send("Book me a flight.")
    assert set(full.toolbox.left_out) == {entry["function"]["name"] for entry in TOOLS}
    assert conversations.events(Notice)[-1].text.endswith("larger window.")


async def test_keeps_the_engines_tools_and_chooses_again_after_use_tools(
    conversations: Conversations,
) -> None:
    def engine(services: Services) -> LosslessEngine:
        return LosslessEngine(services)

    scripted = model()
    conversation = await conversations.open(
        scripted,
        tools=TOOLS,
        engine=engine,
        **SHARE,
    )
    await conversation.send("Book me a flight.")
    names = offered_names(scripted.requests[-1])
    assert {"lcm_grep", "lcm_describe", "lcm_expand", FIND_TOOLS} <= set(names)
    assert [entry["function"]["name"] for entry in conversation.toolbox.own_schemas] == names[-4:]
    conversation.use_tools(TOOLS[:1])
    conversations.watch.broken.clear()
    await conversation.send("Hello")
    assert FIND_TOOLS not in offered_names(scripted.requests[-1])
    # `use_tools` says that the cache is lost by it.
    assert len(conversations.watch.broken) == 1
    conversations.watch.broken.clear()
    mine = {
        "type": "function",
        "function": {
            "name": FIND_TOOLS,
            "description": "mine",
            "parameters": {},
        },
    }
    own = await conversations.open(scripted, tools=[*TOOLS, mine], **SHARE)
    await own.send("Hello")
    off = await conversations.open(
        scripted,
        tools=TOOLS,
        enabled=False,
        **SHARE,
    )
    await off.send("Hello")
    assert own.toolbox.left_out == off.toolbox.left_out == ()


async def test_calls_of_unknown_tools_do_not_change_the_selection(
    conversations: Conversations,
) -> None:
    """Calls of tools that were not given do not change the selection."""
    script: list[ModelReply | str] = [call_reply(("nobody", "{}")), "done"]
    conversation = await conversations.open(
        ScriptedModel(script, window=8_000), tools=TOOLS, **SHARE
    )
    answer = await conversation.send("Book me a flight.")
    await conversation.add_results([tool_result("no such tool", answer.calls[0].id)])
    await conversation.send()
    assert not conversations.compactions
    assert not conversation.toolbox.used_tools
