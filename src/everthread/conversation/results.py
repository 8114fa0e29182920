"""Tool output before it reaches the context: what is too large is stored first and cited then."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.conversation.events import OutputStored
from everthread.conversation.live import Live
from everthread.core.lookup import is_lookup
from everthread.core.messages import Call, Message, Result, results_of
from everthread.core.outputs import ToolOutput, ToStore, edit_results, plan_storage, reads_stored, with_text

READ_LIMIT = 50_000
"""Characters one reading of a stored output gives at most: less than what would be stored again."""


async def limited(live: Live, messages: Sequence[Message]) -> list[Message]:
    """The results of one assistant turn, the largest of them stored and cited where they are too large."""
    results = [result for message in messages for result in results_of(message)]
    turn = [_as_output(live, result) for result in results]
    planned = {item.index: item for item in plan_storage(turn, live.setup.options.output_limits(live.budget))}
    for index, item in planned.items():
        await keep(live, item, tool=turn[index].tool)
    places = iter(range(len(results)))

    def replaced(result: Result, _holder: object) -> object:
        item = planned.get(next(places))
        return result.content if item is None else with_text(result.content, item.replacement)

    return [edit_results(message, replaced) for message in messages]


async def keep(live: Live, item: ToStore, *, tool: str = "") -> None:
    """Store an output before anything cites it; the store reads it back before it says yes."""
    await live.setup.store.put_output(live.session.thread, item.text, call_id=item.call_id, tool=tool)
    live.emit(OutputStored(live.session.id, item.id, tool, len(item.text)))


async def read_output(live: Live, cited: str, *, offset: int = 0, limit: int = READ_LIMIT) -> str:
    """A part of a stored output, and where it goes on."""
    text = await live.setup.store.output(cited, tenant=live.session.tenant)
    start = max(offset, 0)
    part = text[start : start + max(1, min(limit, READ_LIMIT))]
    end = start + len(part)
    rest = "" if end >= len(text) else f"\n[{len(text) - end:,} more characters; go on with offset {end}]"
    return f"{part}{rest}" if part else f"[{cited} has {len(text):,} characters; there is nothing at offset {start}]"


def _as_output(live: Live, result: Result) -> ToolOutput:
    call = live.open_calls.get(result.call_id) or Call(result.call_id, result.name, "")
    return ToolOutput(
        result.call_id, result.name or call.name, result.text, exempt=reads_stored(call) or _looks(live, call)
    )


def _looks(live: Live, call: Call) -> bool:
    """Whether it is a lookup of the engine's own: it limits itself, and stored it would have to be looked up again."""
    return is_lookup(call.name) and any(
        tool["function"]["name"] == call.name for tool in live.engine.get_tool_schemas()
    )
