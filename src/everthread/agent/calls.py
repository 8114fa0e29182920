"""Tool calls: from the call of the model to its result."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from everthread.agent.base import Approver, Permission, Tool, ToolContext, ToolReply
from everthread.agent.events import ToolFinished, ToolStarted
from everthread.conversation.events import Listener
from everthread.core.messages import Call, Message, json_value
from everthread.errors import EverthreadError

INTERRUPTED = (
    "[Interrupted: the user stopped the turn before this tool finished. What it had done until then stays done.]"
)
NOTHING = "(no output)"
_NAMES_LISTED = 30


@dataclass(slots=True)
class _Run:
    """A call in progress. `began`: when its tool was started; the time until approval does not count."""

    call: Call
    context: ToolContext
    arguments: dict[str, Any] = field(default_factory=dict)
    began: float | None = None
    refused: bool = False

    @property
    def seconds(self) -> float:
        return 0.0 if self.began is None else time.monotonic() - self.began


@dataclass(slots=True)
class CallRunner:
    """Runs the calls of an answer: several at a time, but approvals and writes one by one.

    Every call gets a result, whatever its tool does; the results stand in the order of the calls.
    """

    tools: Mapping[str, Tool]
    approve: Approver
    on_event: Listener
    parallel: int
    seconds: float
    engine_tools: Callable[[], Sequence[str]]
    """The names of the engine's own tools."""
    _slots: asyncio.Semaphore = field(init=False)
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.parallel)

    async def run(
        self, calls: Sequence[Call], context: ToolContext, keep: Callable[[list[Message]], Awaitable[Any]]
    ) -> None:
        """Run every call and pass the results to `keep`; also when cancelled, with a note for unfinished calls."""
        runs = [_Run(call, replace(context, call_id=call.id)) for call in calls]
        tasks = [asyncio.create_task(self._run_and_report(run)) for run in runs]
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await _finish(keep(_results(calls, tasks)))
            raise
        await _finish(keep(_results(calls, tasks)))

    async def _run_and_report(self, run: _Run) -> ToolReply:
        reply = ToolReply(INTERRUPTED, failed=True)
        try:
            reply = await self._answer(run)
        finally:
            self.on_event(
                ToolFinished(
                    run.context.conversation.session.id, run.call.id, run.call.name, reply.text, reply.failed,
                    run.refused, run.seconds, run.arguments,
                )
            )  # fmt: skip
        return reply

    async def _answer(self, run: _Run) -> ToolReply:
        call = run.call
        arguments = _parse_arguments(call)
        if isinstance(arguments, ToolReply):
            return arguments
        run.arguments = arguments
        tool = self.tools.get(call.name)
        if tool is None and call.name not in self.engine_tools():
            return self._reply_unknown(call.name)
        try:
            return await self._approve_and_call(run, tool, arguments)
        except EverthreadError as error:
            return ToolReply(f"Failed: {error}", failed=True)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool is foreign code; the model gets its error
            return ToolReply(f"Failed: {call.name} raised {type(error).__name__}: {error}", failed=True)

    async def _approve_and_call(self, run: _Run, tool: Tool | None, arguments: dict[str, Any]) -> ToolReply:
        """Ask for approval before the call takes a slot: calls that need none do not wait for the user."""
        needed = None if tool is None else tool.needs(arguments, run.context)
        if needed is not None and tool is not None:
            waits = self._asking.locked() or self._writing.locked()
            async with self._asking:
                if waits:
                    async with self._writing:  # show the file as an earlier write has left it
                        needed = tool.needs(arguments, run.context) or needed
                if not await self.approve(needed):
                    run.refused = True
                    return await self._reply_refusal(run, tool, needed)
            run.context = replace(run.context, allowed=needed)
        writes = needed is not None and needed.kind == "write"
        async with self._slots, self._writing if writes else contextlib.nullcontext():
            run.began = time.monotonic()
            self.on_event(ToolStarted(run.context.conversation.session.id, run.call.id, run.call.name, arguments))
            return await self._call_in_time(run, tool, arguments)

    async def _call_in_time(self, run: _Run, tool: Tool | None, arguments: dict[str, Any]) -> ToolReply:
        limit, call, context = asyncio.timeout(self.seconds), run.call, run.context
        try:
            async with limit:
                if tool is None:
                    return ToolReply(await context.conversation.handle_tool_call(call.name, arguments))
                return _as_reply(call.name, await tool.call(arguments, context))
        except TimeoutError:
            if not limit.expired():
                raise
            return ToolReply(
                f"Failed: {call.name} did not finish within {self.seconds:,.0f} s and was ended.", failed=True
            )

    async def _reply_refusal(self, run: _Run, tool: Tool, needed: Permission) -> ToolReply:
        """The result of a call that was not approved: the tool's own `refused`, where it has one."""
        call_refused = getattr(tool, "refused", None)
        if callable(call_refused):
            return _as_reply(run.call.name, await call_refused(run.arguments, run.context))
        # The approver's own words, where it has any: it knows whether a user was asked.
        explain = getattr(self.approve, "refusal", None)
        reason = explain(needed) if callable(explain) else f"Refused: {needed.kind} {needed.what!r} was not allowed."
        return ToolReply(
            f"{reason} Go on without it, or say what you need it for; do not try to get it done in another way.",
            failed=True,
        )

    def _reply_unknown(self, name: str) -> ToolReply:
        names = ", ".join([*self.tools, *self.engine_tools()][:_NAMES_LISTED]) or "none"
        return ToolReply(f"Failed: there is no tool {name!r}. Tools: {names}.", failed=True)


def _as_reply(tool: str, value: object) -> ToolReply:
    """Check what a tool returned; a plain text is accepted. A tool is foreign code, whatever its types say."""
    if isinstance(value, ToolReply) and isinstance(value.text, str):
        return value
    if isinstance(value, str):
        return ToolReply(value)
    return ToolReply(f"Failed: {tool} ran, and answered with {type(value).__name__} instead of text.", failed=True)


def as_result(call: Call, reply: ToolReply) -> Message:
    """The tool message for the model. Lone surrogates, which no protocol can carry, are replaced."""
    text = reply.text.encode("utf-8", "replace").decode("utf-8")
    message: Message = {"role": "tool", "tool_call_id": call.id, "content": text if text.strip() else NOTHING}
    if reply.failed:
        message["is_error"] = True
    return message


def _parse_arguments(call: Call) -> dict[str, Any] | ToolReply:
    value = json_value(call.arguments) if call.arguments.strip() else {}
    if isinstance(value, dict):
        return value
    wrong = "no valid JSON" if value is None else f"a JSON {type(value).__name__}, not an object"
    message = f"Failed: the arguments of {call.name} are {wrong}, so nothing was run."
    return ToolReply(f"{message} Send them again as one JSON object.", failed=True)


def _results(calls: Sequence[Call], tasks: Sequence[asyncio.Task[ToolReply]]) -> list[Message]:
    """The results in the order of the calls, one for each id."""
    results: dict[str, Message] = {}
    for call, task in zip(calls, tasks, strict=True):
        reply = ToolReply(INTERRUPTED, failed=True) if task.cancelled() else task.result()
        results.setdefault(call.id, as_result(call, reply))
    return list(results.values())


async def _finish(work: Awaitable[Any]) -> None:
    """Wait for work that must be completed, also when cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
