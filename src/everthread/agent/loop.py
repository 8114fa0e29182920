"""The tool loop: ask the model, run the tools it calls and return the results, until it answers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from typing import Any, Self

from everthread.agent import MAX_PARALLEL_TOOLS, MAX_ROUNDS, MAX_TOOL_SECONDS
from everthread.agent.memory import MemoryFiles
from everthread.agent.tool_interface import (
    Approver,
    Permission,
    Tool,
    ToolContext,
    ToolReply,
    load_prompt_text,
)
from everthread.agent.tools.conversation_tools import FindTools
from everthread.agent.turn_events import (
    CauseLog,
    EndReason,
    ToolFinished,
    ToolStarted,
    TurnEnded,
)
from everthread.conversation.answer_recorder import ModelAnswer
from everthread.conversation.cancellation import finish_despite_cancellation
from everthread.conversation.conversation import Conversation
from everthread.conversation.given_messages import MessageInput
from everthread.core.messages import Call, Message, json_value
from everthread.core.types import StreamDelta
from everthread.errors import EverthreadError, InputError
from everthread.thread.events import Event, Listener
from everthread.thread.options import Route

TurnItem = StreamDelta | Event | ModelAnswer
FindRoute = Callable[[str], Awaitable[Route]]
"""Finds the route to a model by its name."""
CloseCallback = Callable[[], Awaitable[Any]]
"""Closes a resource together with the agent."""


@dataclass(slots=True)
class _Progress:
    """The start of a turn and its counts so far."""

    start_time: float
    rounds: int = 0
    calls: int = 0


class Agent:
    """A conversation whose model can use tools.

    `approve` decides on permissions. `listener` gets every event: the agent's own, and the conversation's if
    `on_event` is its listener. `routes` finds a model by its name.
    """

    def __init__(  # noqa: PLR0913 - what an agent depends on, each by its name
        self,
        conversation: Conversation,
        tools: Sequence[Tool],
        *,
        context: ToolContext,
        approve: Approver,
        max_rounds: int = MAX_ROUNDS,
        max_parallel_tools: int = MAX_PARALLEL_TOOLS,
        tool_seconds: float = MAX_TOOL_SECONDS,
        listener: Listener | None = None,
        journal: CauseLog | None = None,
        memory: MemoryFiles | None = None,
        routes: FindRoute | None = None,
        closing: Sequence[CloseCallback] = (),
    ) -> None:
        self.conversation = conversation
        self.context = context
        self.max_rounds = max_rounds
        self.journal = journal or CauseLog()
        self.memory = memory
        self.routes = routes
        self._closing = closing
        self._tools = _index_by_name(tools)
        self._listener = listener
        self._open_conversations = [conversation]
        self._item_queue: asyncio.Queue[TurnItem | None] | None = None
        self._turn_task: asyncio.Task[ModelAnswer] | None = None
        self._turn_lock = asyncio.Lock()
        finder = FindTools()
        by_name = {finder.name: finder, **self._tools}
        self._call_runner = CallRunner(
            by_name,
            approve,
            on_event=self.on_event,
            max_parallel_tools=max_parallel_tools,
            seconds=tool_seconds,
            engine_tools=self._list_engine_tools,
        )
        self._offer_tools(conversation)

    def __repr__(self) -> str:
        conversation = self.conversation
        figures = f"{len(self.tools)} tools, {conversation.tokens:,} of {conversation.window:,} tokens"
        return f"<Agent {conversation.id}: {figures}>"

    # Life

    async def close(self, reason: str | None = None) -> None:
        """Stop a running turn and close the conversations. With a reason the session ends; it can be resumed."""
        if self._turn_task is not None:
            self._turn_task.cancel()
            await asyncio.wait([self._turn_task])
        conversations = self._open_conversations
        self._open_conversations = []
        closing = self._closing
        self._closing = ()
        # The last first; one that fails does not stop the others.
        async with contextlib.AsyncExitStack() as exit_stack:
            for close in reversed(closing):
                exit_stack.push_async_callback(close)
            for conversation in conversations:
                exit_stack.push_async_callback(
                    conversation.close,
                    reason if conversation is self.conversation else None,
                )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # Properties

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The schemas offered to the model, including the engine's own."""
        return self.conversation.tools

    @property
    def is_busy(self) -> bool:
        """Whether a turn is running."""
        return self._turn_lock.locked()

    # Turns

    async def turn(
        self, message: MessageInput, *, event: str | None = None
    ) -> AsyncGenerator[TurnItem, None]:
        """Run one turn: yield the model's text and every event as they come, then the final `ModelAnswer`.

        `event`: a message sent again under the same event id is stored once.
        Closing the generator, or cancelling its reader, stops the turn: running tools are ended, and the history
        records it.
        """
        async with self._turn_lock:
            items = self._item_queue = asyncio.Queue[TurnItem | None]()
            task = self._turn_task = asyncio.create_task(self._run_turn(message, event))
            task.add_done_callback(lambda _: items.put_nowait(None))
            try:
                while (item := await items.get()) is not None:
                    yield item
                yield await task
            finally:
                self._item_queue = None
                task.cancel()
                await asyncio.wait([task])
                self._turn_task = None
                if not task.cancelled():
                    task.exception()

    async def send(self, message: MessageInput) -> ModelAnswer:
        """Run one turn and return its final answer."""
        async with contextlib.aclosing(self.turn(message)) as items:
            async for item in items:
                if isinstance(item, ModelAnswer):
                    return item
        raise AssertionError("a turn ends with its answer or an error")

    def on_event(self, event: Event) -> None:
        """Pass an event to the cause log, to the reader of the turn and to the listener."""
        self.journal(event)
        if self._item_queue is not None:
            self._item_queue.put_nowait(event)
        if self._listener is not None:
            self._listener(event)

    # Other conversations

    async def switch(self, session: str) -> Conversation:
        """Continue in another session of the same store."""
        tenant = self.conversation.session.tenant
        target = await self.conversation.store.resolve(session, tenant=tenant)
        async with self._turn_lock:
            self.conversation = await self.conversation.open_another(resume=target.id)
            self._open_conversations.append(self.conversation)
            self._offer_tools(self.conversation)
        return self.conversation

    async def use_model(self, name: str) -> Route:
        """Continue with another model."""
        if self.routes is None:
            raise InputError(
                "this agent cannot change its model: it was opened without `routes`"
            )
        route = await self.routes(name)
        await self.conversation.use_model(route)
        return route

    # Inside

    async def _run_turn(self, message: MessageInput, event: str | None) -> ModelAnswer:
        progress = _Progress(time.monotonic())
        try:
            answer = await self._run_rounds(message, progress, event)
        except asyncio.CancelledError:
            self._emit_turn_end("interrupted", progress)
            raise
        except Exception as error:
            self._emit_turn_end("failed", progress, f"{type(error).__name__}: {error}")
            raise
        self._emit_turn_end(
            "max_rounds" if progress.rounds >= self.max_rounds else "answered", progress
        )
        return answer

    async def _run_rounds(
        self, message: MessageInput, progress: _Progress, event: str | None
    ) -> ModelAnswer:
        answer = await self._ask(message, event=event)
        while answer.calls and progress.rounds < self.max_rounds:
            progress.rounds += 1
            progress.calls += len(answer.calls)
            context = replace(self.context, conversation=self.conversation)
            await self._call_runner.run(
                answer.calls, context, self.conversation.add_results
            )
            is_last_round = progress.rounds == self.max_rounds
            answer = await self._ask(
                None,
                inject=load_prompt_text("last_round").format(rounds=self.max_rounds)
                if is_last_round
                else None,
            )
        if answer.calls:
            not_run_reply = ToolReply(
                f"[Not run: the limit of {self.max_rounds} rounds was reached.]",
                failed=True,
            )
            await self.conversation.add_results(
                [make_result_message(call, not_run_reply) for call in answer.calls]
            )
        return answer

    async def _ask(
        self,
        message: MessageInput,
        *,
        inject: str | None = None,
        event: str | None = None,
    ) -> ModelAnswer:
        answer: ModelAnswer | None = None
        async with contextlib.aclosing(
            self.conversation.stream(message, event=event, inject=inject)
        ) as pieces:
            async for piece in pieces:
                if isinstance(piece, ModelAnswer):
                    answer = piece
                elif self._item_queue is not None:
                    self._item_queue.put_nowait(piece)
        if answer is None:
            raise AssertionError("a stream ends with its answer or an error")
        return answer

    def _emit_turn_end(
        self, reason: EndReason, progress: _Progress, error: str = ""
    ) -> None:
        seconds = time.monotonic() - progress.start_time
        self.on_event(
            TurnEnded(
                self.conversation.session.id,
                reason,
                rounds=progress.rounds,
                calls=progress.calls,
                seconds=seconds,
                error=error,
            )
        )

    def _offer_tools(self, conversation: Conversation) -> None:
        schemas = [tool.schema for tool in self._tools.values()]
        if conversation.toolbox.all_tools != schemas:
            conversation.use_tools(schemas)

    def _list_engine_tools(self) -> list[str]:
        return [
            str(schema.get("function", {}).get("name"))
            for schema in self.conversation.toolbox.own_schemas
        ]


def _index_by_name(tools: Sequence[Tool]) -> Mapping[str, Tool]:
    by_name: dict[str, Tool] = {}
    for tool in tools:
        if tool.name in by_name:
            raise InputError(
                f"two tools are called {tool.name}; a model could not tell them apart"
            )
        by_name[tool.name] = tool
    return by_name


# Calls

INTERRUPTED = (
    "[Interrupted: the user stopped the turn before this tool finished. "
    "What it had done until then stays done.]"
)
NO_OUTPUT_TEXT = "(no output)"
_MAX_NAMES_LISTED = 30


@dataclass(slots=True)
class _CallRun:
    """A call in progress. `start_time`: when its tool was started; the time until approval does not count."""

    call: Call
    context: ToolContext
    arguments: dict[str, Any] = field(default_factory=dict)
    start_time: float | None = None
    was_refused: bool = False

    @property
    def seconds(self) -> float:
        return 0.0 if self.start_time is None else time.monotonic() - self.start_time


@dataclass(slots=True)
class CallRunner:
    """Run the calls of an answer: several at a time, but approvals and writes one by one.

    Every call gets a result, even if its tool fails; the results are in the order of the calls.
    """

    tools: Mapping[str, Tool]
    approve: Approver
    on_event: Listener
    max_parallel_tools: int
    seconds: float
    engine_tools: Callable[[], Sequence[str]]
    """The names of the engine's own tools."""
    _slots: asyncio.Semaphore = field(init=False)
    _approval_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _write_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.max_parallel_tools)

    async def run(
        self,
        calls: Sequence[Call],
        context: ToolContext,
        store_results: Callable[[list[Message]], Coroutine[Any, Any, Any]],
    ) -> None:
        """Run every call and store the results; also on cancellation, with a note for unfinished calls."""
        runs = [_CallRun(call, replace(context, call_id=call.id)) for call in calls]
        tasks = [asyncio.create_task(self._run_and_report(run)) for run in runs]
        try:
            await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await finish_despite_cancellation(
                store_results(_collect_results(calls, tasks))
            )

    async def _run_and_report(self, run: _CallRun) -> ToolReply:
        reply = ToolReply(INTERRUPTED, failed=True)
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

    async def _run_call(self, run: _CallRun) -> ToolReply:
        name = run.call.name
        try:
            run.arguments = _parse_arguments(run.call)
            tool = self.tools.get(name)
            engine_tools = self.engine_tools()
            if tool is None and name not in engine_tools:
                names = (
                    ", ".join([*self.tools, *engine_tools][:_MAX_NAMES_LISTED])
                    or "none"
                )
                return ToolReply(
                    f"Failed: there is no tool {name!r}. Tools: {names}.", failed=True
                )
            return await self._approve_and_call(run, tool)
        except EverthreadError as error:
            return ToolReply(f"Failed: {error}", failed=True)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool is foreign code; the model gets its error
            return ToolReply(
                f"Failed: {name} raised {type(error).__name__}: {error}", failed=True
            )

    async def _approve_and_call(self, run: _CallRun, tool: Tool | None) -> ToolReply:
        """Ask for approval before the call takes a slot, so that other calls do not wait for the user."""
        permission = None if tool is None else tool.needs(run.arguments, run.context)
        if permission is not None and tool is not None:
            must_check_again = self._approval_lock.locked() or self._write_lock.locked()
            async with self._approval_lock:
                if must_check_again:
                    # Show the file as an earlier write has left it.
                    async with self._write_lock:
                        permission = (
                            tool.needs(run.arguments, run.context) or permission
                        )
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
            self.on_event(
                ToolStarted(session, run.call.id, run.call.name, run.arguments)
            )
            return await self._call_in_time(run, tool)

    async def _call_in_time(self, run: _CallRun, tool: Tool | None) -> ToolReply:
        timeout = asyncio.timeout(self.seconds)
        name = run.call.name
        try:
            async with timeout:
                if tool is None:
                    return ToolReply(
                        await run.context.conversation.handle_tool_call(
                            name, run.arguments
                        )
                    )
                return _as_reply(name, await tool.call(run.arguments, run.context))
        except TimeoutError:
            if not timeout.expired():
                raise
            return ToolReply(
                f"Failed: {name} did not finish within {self.seconds:,.0f} s and was ended.",
                failed=True,
            )

    async def _reply_refusal(
        self, run: _CallRun, tool: Tool, permission: Permission
    ) -> ToolReply:
        """Return the result of a call that was not approved: the tool's own `was_refused`, if it has one."""
        call_refused = getattr(tool, "refused", None)
        if callable(call_refused):
            return _as_reply(
                run.call.name, await call_refused(run.arguments, run.context)
            )
        # Prefer the approver's own words: it knows whether a user was asked.
        explain = getattr(self.approve, "refusal", None)
        reason = (
            explain(permission)
            if callable(explain)
            else f"Refused: {permission.kind} {permission.what!r} was not allowed."
        )
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


def make_result_message(call: Call, reply: ToolReply) -> Message:
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


def _parse_arguments(call: Call) -> dict[str, Any]:
    value = json_value(call.arguments) if call.arguments.strip() else {}
    if isinstance(value, dict):
        return value
    problem = (
        "no valid JSON"
        if value is None
        else f"a JSON {type(value).__name__}, not an object"
    )
    raise InputError(
        f"the arguments of {call.name} are {problem}, so nothing was run. Send them again as one JSON object."
    )


def _collect_results(
    calls: Sequence[Call], tasks: Sequence[asyncio.Task[ToolReply]]
) -> list[Message]:
    """Return the results in the order of the calls, one for each id."""
    results: dict[str, Message] = {}
    for call, task in zip(calls, tasks, strict=True):
        reply = (
            ToolReply(INTERRUPTED, failed=True) if task.cancelled() else task.result()
        )
        results.setdefault(call.id, make_result_message(call, reply))
    return list(results.values())
