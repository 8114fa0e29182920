"""Tool results on their way into the context: those that are too large are cited, and stored by the caller."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from everthread.core.messages import (
    Call,
    Message,
    Result,
    edit_results,
    results_of,
    with_text,
)
from everthread.core.outputs import (
    OutputLimits,
    OutputToStore,
    ToolOutput,
    plan_storage,
    reads_stored_output,
)
from everthread.core.transcript import is_lookup_tool


@dataclass(frozen=True, slots=True)
class LargeOutput:
    """An output that must be stored before it is cited, and the tool it comes from."""

    output: OutputToStore
    tool: str


def cite_large_results(
    messages: Sequence[Message],
    calls: Mapping[str, Call],
    limits: OutputLimits,
    *,
    lookups: Container[str] = (),
) -> tuple[list[Message], list[LargeOutput]]:
    """Return the results of one assistant turn, the largest replaced if they are too large, and what to store.

    `calls`: the turn's calls by their ids. Results of `lookups` are exempt: they limit themselves, and if stored they
    would have to be looked up again.
    """
    results = [result for message in messages for result in results_of(message)]
    turn = [_as_output(result, calls, lookups) for result in results]
    planned = {item.index: item for item in plan_storage(turn, limits)}
    if not planned:
        return list(messages), []
    places = iter(range(len(results)))

    def replaced(result: Result, _holder: object) -> object:
        item = planned.get(next(places))
        return (
            result.content
            if item is None
            else with_text(result.content, item.replacement)
        )

    edited = [edit_results(message, replaced) for message in messages]
    stored = [
        LargeOutput(item, turn[index].tool) for index, item in sorted(planned.items())
    ]
    return edited, stored


def _as_output(
    result: Result, calls: Mapping[str, Call], lookups: Container[str]
) -> ToolOutput:
    call = calls.get(result.call_id) or Call(result.call_id, result.name, "")
    exempt = reads_stored_output(call) or (
        is_lookup_tool(call.name) and call.name in lookups
    )
    return ToolOutput(
        result.call_id, result.name or call.name, result.text, is_exempt=exempt
    )
