"""Run the tool calls of an answer: several at a time, each with the approval that it needs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from everthread.agent.tool_interface import Approver, Permission, Tool, ToolContext, ToolReply
from everthread.agent.turn_events import ToolFinished, ToolStarted
from everthread.conversation.cancellation import finish_despite_cancellation
from everthread.core.json_values import json_value
from everthread.core.messages import Message, ToolCall
from everthread.errors import EverthreadError, InputError
from everthread.thread.events import Listener

INTERRUPTED_CALL_TEXT = (
    "[Interrupted: the user stopped the turn before this tool finished. "
    "What it had done until then stays done.]"
)
NO_OUTPUT_TEXT = "(no output)"
_MAX_LISTED_NAMES = 30


@dataclass(slots=True)
class _RunningCall:
    """A call in progress. `start_time`: when its tool was started, after the approval."""

    call: ToolCall
    context: ToolContext
    arguments: dict[str, Any] = field(default_factory=dict)
    start_time: float | None = None
    was_refused: bool = False

    @property
    def seconds(self) -> float:
        return 0.0 if self.start_time is None else time.monotonic() - self.start_time


@dataclass(slots=True)
class ToolCallRunner:
    """A runner of an answer's calls: several at a time, but approvals and writes one by one.

    Every call gets a result, even if its tool fails; the results are in the order of the calls.
    """

    tools: Mapping[str, Tool]
    approve: Approver
    on_event: Listener
    max_parallel_tools: int
    max_seconds: float
    list_engine_tools: Callable[[], Sequence[str]]
    """The names of the engine's own tools."""
    _slots: asyncio.Semaphore = field(init=False)
    _approval_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _write_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.max_parallel_tools)

    async def run(
        self,
        calls: Sequence[ToolCall],
        context: ToolContext,
        store_results: Callable[[list[Message]], Coroutine[Any, Any, Any]],
    ) -> None:
        """Run every call and store the results; also on cancellation, with a note for unfinished calls."""
        runs = [_RunningCall(call, replace(context, call_id=call.id)) for call in calls]
        tasks = [asyncio.create_task(self._run_and_report(run)) for run in runs]
        try:
            await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await finish_despite_cancellation(store_results(_collect_results(calls, tasks)))

    async def _run_and_report(self, run: _RunningCall) -> ToolReply:
        reply = ToolReply(INTERRUPTED_CALL_TEXT, failed=True)
        try:
            reply = await self._run_call(run)
        finally:
            self.on_event(
                ToolFinished(
                    run.context.conversation.session.id,
                    run.call.id,
                    tool=run.call.name,
                    text=reply.text,
                    failed=reply.failed,
                    refused=run.was_refused,
                    seconds=run.seconds,
                    arguments=run.arguments,
                )
            )
        return reply

    async def _run_call(self, run: _RunningCall) -> ToolReply:
        name = run.call.name
        try:
            run.arguments = _parse_arguments(run.call)
            tool = self.tools.get(name)
            engine_tools = self.list_engine_tools()
            if tool is None and name not in engine_tools:
                names = ", ".join([*self.tools, *engine_tools][:_MAX_LISTED_NAMES]) or "none"
                return ToolReply(f"Failed: there is no tool {name!r}. Tools: {names}.", failed=True)
            return await self._approve_and_call(run, tool)
        except EverthreadError as error:
            return ToolReply(f"Failed: {error}", failed=True)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool is foreign code; the model gets its error
            return ToolReply(f"Failed: {name} raised {type(error).__name__}: {error}", failed=True)

    async def _approve_and_call(self, run: _RunningCall, tool: Tool | None) -> ToolReply:
        """Ask for approval before the call takes a slot, so that other calls do not wait for the user."""
        permission = None if tool is None else tool.needs(run.arguments, run.context)
        if permission is not None and tool is not None:
            must_check_again = self._approval_lock.locked() or self._write_lock.locked()
            async with self._approval_lock:
                if must_check_again:
                    # Show the file as an earlier write has left it.
                    async with self._write_lock:
                        permission = tool.needs(run.arguments, run.context) or permission
                if not await self.approve(permission):
                    run.was_refused = True
                    return await self._reply_refusal(run, tool, permission)
            run.context = replace(run.context, allowed=permission)
        is_write = permission is not None and permission.kind == "write"
        async with (
            self._slots,
            self._write_lock if is_write else contextlib.nullcontext(),
        ):
            run.start_time = time.monotonic()
            session = run.context.conversation.session.id
            self.on_event(ToolStarted(session, run.call.id, run.call.name, run.arguments))
            return await self._call_with_timeout(run, tool)

    async def _call_with_timeout(self, run: _RunningCall, tool: Tool | None) -> ToolReply:
        timeout = asyncio.timeout(self.max_seconds)
        name = run.call.name
        try:
            async with timeout:
                if tool is None:
                    return ToolReply(
                        await run.context.conversation.handle_tool_call(name, run.arguments)
                    )
                return _as_reply(name, await tool.call(run.arguments, run.context))
        except TimeoutError:
            if not timeout.expired():
                raise
            return ToolReply(
                f"Failed: {name} did not finish within {self.max_seconds:,.0f} s and was ended.",
                failed=True,
            )

    async def _reply_refusal(
        self, run: _RunningCall, tool: Tool, permission: Permission
    ) -> ToolReply:
        """Return the result of a call that was not approved: the tool's own, if it has a method `call_refused`."""
        call_refused = getattr(tool, "call_refused", None)
        if callable(call_refused):
            return _as_reply(run.call.name, await call_refused(run.arguments, run.context))
        # Prefer the approver's own words: it knows whether a user was asked.
        explain = getattr(self.approve, "explain_refusal", None)
        reason = f"Refused: {permission.kind} {permission.target!r} was not allowed."
        if callable(explain):
            reason = explain(permission)
        return ToolReply(
            f"{reason} Go on without it, or say what you need it for; do not try to get it done in another way.",
            failed=True,
        )


def _as_reply(tool: str, value: object) -> ToolReply:
    """Return a tool's result as a `ToolReply`. Check its type, because a tool is foreign code."""
    if isinstance(value, ToolReply) and isinstance(value.text, str):
        return value
    if isinstance(value, str):
        return ToolReply(value)
    return ToolReply(
        f"Failed: {tool} ran, and answered with {type(value).__name__} instead of text.",
        failed=True,
    )


def make_result_message(call: ToolCall, reply: ToolReply) -> Message:
    """Return the tool message for the model. Lone surrogates, which no protocol can carry, are replaced."""
    text = reply.text.encode("utf-8", "replace").decode("utf-8")
    message: Message = {
        "role": "tool",
        "tool_call_id": call.id,
        "content": text if text.strip() else NO_OUTPUT_TEXT,
    }
    if reply.failed:
        message["is_error"] = True
    return message


def _parse_arguments(call: ToolCall) -> dict[str, Any]:
    value = json_value(call.arguments) if call.arguments.strip() else {}
    if isinstance(value, dict):
        return value
    problem = "no valid JSON" if value is None else f"a JSON {type(value).__name__}, not an object"
    raise InputError(
        f"the arguments of {call.name} are {problem}, so nothing was run. Send them again as one JSON object."
    )


def _collect_results(
    calls: Sequence[ToolCall], tasks: Sequence[asyncio.Task[ToolReply]]
) -> list[Message]:
    """Return the results in the order of the calls, one for each id."""
    results: dict[str, Message] = {}
    for call, task in zip(calls, tasks, strict=True):
        reply = ToolReply(INTERRUPTED_CALL_TEXT, failed=True) if task.cancelled() else task.result()
        results.setdefault(call.id, make_result_message(call, reply))
    return list(results.values())
