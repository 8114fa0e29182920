"""Replace tool results that are too large for the context by citations of a stored output."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from everthread.core.lookup_tools import is_lookup_tool
from everthread.core.messages import (
    Message,
    ToolCall,
    ToolResult,
    calls_of,
    edit_results,
    results_of,
    with_text,
)
from everthread.core.tool_outputs import (
    OutputLimits,
    OutputToStore,
    ToolOutput,
    plan_storage,
    reads_stored_output,
)
from everthread.store.store import Store
from everthread.thread.events import Listener, OutputStored, ignore_event


@dataclass(frozen=True, slots=True)
class LargeOutput:
    """An output that must be stored before it is cited, and the tool it comes from."""

    output: OutputToStore
    tool: str


def cite_large_results(
    messages: Sequence[Message],
    calls: Mapping[str, ToolCall],
    limits: OutputLimits,
    *,
    lookups: Container[str] = (),
) -> tuple[list[Message], list[LargeOutput]]:
    """Return one assistant turn's results, with those that are too large replaced, and the outputs to store.

    `calls`: the turn's calls by id. `lookups`: tools whose results are never replaced, because they are short and would
    have to be looked up again.
    """
    results = [result for message in messages for result in results_of(message)]
    outputs = [_as_output(result, calls, lookups) for result in results]
    planned_outputs = {item.index: item for item in plan_storage(outputs, limits)}
    if not planned_outputs:
        return list(messages), []
    result_indexes = iter(range(len(results)))

    def replace_content(result: ToolResult, _holder: object) -> object:
        item = planned_outputs.get(next(result_indexes))
        return result.content if item is None else with_text(result.content, item.replacement)

    edited_messages = [edit_results(message, replace_content) for message in messages]
    large_outputs = [
        LargeOutput(item, outputs[index].tool) for index, item in sorted(planned_outputs.items())
    ]
    return edited_messages, large_outputs


async def store_outputs(
    store: Store,
    thread: str,
    large_outputs: Iterable[LargeOutput],
    listener: Listener = ignore_event,
    *,
    session: str = "",
) -> None:
    """Store outputs before they are cited, and emit an event for each; the store verifies them by reading them back.

    `session`: the session that the events are about; the thread's first one if empty.
    """
    for large_output in large_outputs:
        output = large_output.output
        tool = large_output.tool
        await store.outputs.put_output(thread, output.text, call_id=output.call_id, tool=tool)
        listener(OutputStored(session or thread, output.id, tool, len(output.text)))


def add_tool_names(
    outputs: Iterable[OutputToStore], messages: Iterable[Message]
) -> list[LargeOutput]:
    """Return outputs with the tools they come from. `messages`: have the calls."""
    tools = {call.id: call.name for message in messages for call in calls_of(message)}
    return [LargeOutput(output, tools.get(output.call_id, "")) for output in outputs]


def _as_output(
    result: ToolResult, calls: Mapping[str, ToolCall], lookups: Container[str]
) -> ToolOutput:
    call = calls.get(result.call_id) or ToolCall(result.call_id, result.tool_name, "")
    is_exempt = reads_stored_output(call) or (is_lookup_tool(call.name) and call.name in lookups)
    return ToolOutput(
        result.call_id, result.tool_name or call.name, result.text, is_exempt=is_exempt
    )
