"""Tool results of a conversation: those that are too large are stored and cited."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.conversation.conversation_state import ConversationState
from everthread.core.messages import Message
from everthread.core.tool_outputs import OutputToStore
from everthread.thread.events import OutputStored
from everthread.thread.large_results import cite_large_results

MAX_READ_CHARS = 50_000
"""Maximum characters per read of a stored output, so that the result is not stored again."""


async def limit_results(state: ConversationState, messages: Sequence[Message]) -> list[Message]:
    """Return the results of one assistant turn; if they are too large, the largest are stored and cited."""
    own_tools = {tool["function"]["name"] for tool in state.engine.get_tool_schemas()}
    limits = state.setup.options.output_limits(state.budget)
    limited_results, large_outputs = cite_large_results(
        messages, state.open_calls, limits, lookups=own_tools
    )
    for result in large_outputs:
        await store_output(state, result.output, tool=result.tool)
    return limited_results


async def store_output(state: ConversationState, item: OutputToStore, *, tool: str = "") -> None:
    """Store an output before it is cited; the store verifies it by reading it back."""
    await state.setup.store.put_output(
        state.session.thread, item.text, call_id=item.call_id, tool=tool
    )
    state.emit(OutputStored(state.session.id, item.id, tool, len(item.text)))
