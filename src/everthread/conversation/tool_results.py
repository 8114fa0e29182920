"""Tool results on their way into the context: those that are too large are stored and cited."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.conversation.state import ConversationState
from everthread.core.messages import (
    Call,
    Message,
    Result,
    edit_results,
    results_of,
    with_text,
)
from everthread.core.outputs import ToolOutput, ToStore, plan_storage, reads_stored
from everthread.core.transcript import is_lookup
from everthread.thread.events import OutputStored

READ_LIMIT = 50_000
"""Maximum characters per read of a stored output: too few to be stored again."""


async def limit_results(
    live: ConversationState, messages: Sequence[Message]
) -> list[Message]:
    """Return the results of one assistant turn; if they are too large, the largest are stored and cited."""
    results = [result for message in messages for result in results_of(message)]
    turn = [_as_output(live, result) for result in results]
    planned = {
        item.index: item
        for item in plan_storage(turn, live.setup.options.output_limits(live.budget))
    }
    for index, item in planned.items():
        await store_output(live, item, tool=turn[index].tool)
    places = iter(range(len(results)))

    def replaced(result: Result, _holder: object) -> object:
        item = planned.get(next(places))
        return (
            result.content
            if item is None
            else with_text(result.content, item.replacement)
        )

    return [edit_results(message, replaced) for message in messages]


async def store_output(
    live: ConversationState, item: ToStore, *, tool: str = ""
) -> None:
    """Store an output before anything cites it; the store reads it back before it says yes."""
    await live.setup.store.put_output(
        live.session.thread, item.text, call_id=item.call_id, tool=tool
    )
    live.emit(OutputStored(live.session.id, item.id, tool, len(item.text)))


def _as_output(live: ConversationState, result: Result) -> ToolOutput:
    """Return a result as tool output.

    Lookups of the engine are exempt: they limit themselves, and if stored they would have to be looked up again.
    """
    call = live.open_calls.get(result.call_id) or Call(result.call_id, result.name, "")
    own = (tool["function"]["name"] for tool in live.engine.get_tool_schemas())
    exempt = reads_stored(call) or (is_lookup(call.name) and call.name in own)
    return ToolOutput(
        result.call_id, result.name or call.name, result.text, exempt=exempt
    )
