"""One tool call, from what the model wrote to what it is answered."""

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
_KNOWN_SHOWN = 30


@dataclass(slots=True)
class _Run:
    """A call on its way. `began`: when its tool was started; a person who thinks about leave takes no time of it."""

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
    """Runs the calls of an answer: several at a time, asking for approval one by one, writing one by one.

    Whatever a tool does, its call gets an answer, and the answers stand in the order of the calls.
    """

    tools: Mapping[str, Tool]
    approve: Approver
    tell: Listener
    parallel: int
    seconds: float
    own: Callable[[], Sequence[str]]
    """The names of the engine's own tools."""
    _slots: asyncio.Semaphore = field(init=False)
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.parallel)

    async def run(
        self, calls: Sequence[Call], context: ToolContext, keep: Callable[[list[Message]], Awaitable[Any]]
    ) -> None:
        """Answer every call and hand the results to `keep`; also when cancelled, saying which did not finish."""
        tasks = [asyncio.create_task(self._told(_Run(call, replace(context, call_id=call.id)))) for call in calls]
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await _to_its_end(keep(_results(calls, tasks)))
            raise
        await _to_its_end(keep(_results(calls, tasks)))

    async def _told(self, run: _Run) -> ToolReply:
        reply = ToolReply(INTERRUPTED, failed=True)
        try:
            reply = await self._answered(run)
        finally:
            self.tell(
                ToolFinished(
                    run.context.conversation.session.id, run.call.id, run.call.name, reply.text, reply.failed,
                    run.refused, run.seconds, run.arguments,
                )
            )  # fmt: skip
        return reply

    async def _answered(self, run: _Run) -> ToolReply:
        call = run.call
        arguments = _arguments(call)
        if isinstance(arguments, ToolReply):
            return arguments
        run.arguments = arguments
        tool = self.tools.get(call.name)
        if tool is None and call.name not in self.own():
            return self._unknown(call.name)
        try:
            return await self._done(run, tool, arguments)
        except EverthreadError as error:
            return ToolReply(f"Failed: {error}", failed=True)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool is anybody's code; the model and the listener are told
            return ToolReply(f"Failed: {call.name} raised {type(error).__name__}: {error}", failed=True)

    async def _done(self, run: _Run, tool: Tool | None, arguments: dict[str, Any]) -> ToolReply:
        """Leave is asked for before the call takes a slot: what needs none does not wait for a person."""
        needed = None if tool is None else tool.needs(arguments, run.context)
        if needed is not None and tool is not None:
            waits = self._asking.locked() or self._writing.locked()
            async with self._asking:
                if waits:
                    async with self._writing:  # what is shown is what a write before it left
                        needed = tool.needs(arguments, run.context) or needed
                if not await self.approve(needed):
                    run.refused = True
                    return await self._refused(run, tool, needed)
            run.context = replace(run.context, allowed=needed)
        writes = needed is not None and needed.kind == "write"
        async with self._slots, self._writing if writes else contextlib.nullcontext():
            run.began = time.monotonic()
            self.tell(ToolStarted(run.context.conversation.session.id, run.call.id, run.call.name, arguments))
            return await self._timed(run, tool, arguments)

    async def _timed(self, run: _Run, tool: Tool | None, arguments: dict[str, Any]) -> ToolReply:
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

    async def _refused(self, run: _Run, tool: Tool, needed: Permission) -> ToolReply:
        """The answer where leave was not given: the tool's own, if it has a way without."""
        without = getattr(tool, "refused", None)
        if callable(without):
            return _as_reply(run.call.name, await without(run.arguments, run.context))
        # The approver's own words, where it has any: it knows whether somebody was asked.
        words = getattr(self.approve, "refusal", None)
        said = words(needed) if callable(words) else f"Refused: {needed.kind} {needed.what!r} was not allowed."
        return ToolReply(
            f"{said} Go on without it, or say what you need it for; do not try to get it done in another way.",
            failed=True,
        )

    def _unknown(self, name: str) -> ToolReply:
        known = ", ".join([*self.tools, *self.own()][:_KNOWN_SHOWN]) or "none"
        return ToolReply(f"Failed: there is no tool {name!r}. Tools: {known}.", failed=True)


def _as_reply(tool: str, given: object) -> ToolReply:
    """What a tool answered; a plain text is one. A tool is anybody's code, whatever its types say."""
    if isinstance(given, ToolReply) and isinstance(given.text, str):
        return given
    if isinstance(given, str):
        return ToolReply(given)
    return ToolReply(f"Failed: {tool} ran, and answered with {type(given).__name__} instead of text.", failed=True)


def as_result(call: Call, reply: ToolReply) -> Message:
    """What the model reads. Text no protocol can carry (lone surrogates) is made readable."""
    text = reply.text.encode("utf-8", "replace").decode("utf-8")
    message: Message = {"role": "tool", "tool_call_id": call.id, "content": text if text.strip() else NOTHING}
    if reply.failed:
        message["is_error"] = True
    return message


def _arguments(call: Call) -> dict[str, Any] | ToolReply:
    value = json_value(call.arguments) if call.arguments.strip() else {}
    if isinstance(value, dict):
        return value
    wrong = "no valid JSON" if value is None else f"a JSON {type(value).__name__}, not an object"
    said = f"Failed: the arguments of {call.name} are {wrong}, so nothing was run. Send them again as one JSON object."
    return ToolReply(said, failed=True)


def _results(calls: Sequence[Call], tasks: Sequence[asyncio.Task[ToolReply]]) -> list[Message]:
    """The results in the order of the calls, one for each id."""
    kept: dict[str, Message] = {}
    for call, task in zip(calls, tasks, strict=True):
        reply = ToolReply(INTERRUPTED, failed=True) if task.cancelled() else task.result()
        kept.setdefault(call.id, as_result(call, reply))
    return list(kept.values())


async def _to_its_end(work: Awaitable[Any]) -> None:
    """Wait for what must not be left half done, also when cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
