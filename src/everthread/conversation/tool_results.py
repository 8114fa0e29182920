"""Tool results of a conversation: those that are too large are stored and cited."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.conversation.state import ConversationState
from everthread.core.messages import Message
from everthread.core.outputs import OutputToStore
from everthread.thread.events import OutputStored
from everthread.thread.large_results import cite_large_results

READ_LIMIT = 50_000
"""Maximum characters per read of a stored output: too few to be stored again."""


async def limit_results(
    live: ConversationState, messages: Sequence[Message]
) -> list[Message]:
    """Return the results of one assistant turn; if they are too large, the largest are stored and cited."""
    own = {tool["function"]["name"] for tool in live.engine.get_tool_schemas()}
    limits = live.setup.options.output_limits(live.budget)
    fitting, large = cite_large_results(messages, live.open_calls, limits, lookups=own)
    for one in large:
        await store_output(live, one.output, tool=one.tool)
    return fitting


async def store_output(
    live: ConversationState, item: OutputToStore, *, tool: str = ""
) -> None:
    """Store an output before anything cites it; the store reads it back before it says yes."""
    await live.setup.store.put_output(
        live.session.thread, item.text, call_id=item.call_id, tool=tool
    )
    live.emit(OutputStored(live.session.id, item.id, tool, len(item.text)))
