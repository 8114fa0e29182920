"""The tool loop: ask the model, run the tools it calls and return the results, until it answers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from everthread.agent import MAX_PARALLEL_TOOLS, MAX_ROUNDS, MAX_TOOL_SECONDS
from everthread.agent.cache_misses import CacheMissLog
from everthread.agent.call_runner import ToolCallRunner, make_result_message
from everthread.agent.memory import MemoryFiles
from everthread.agent.prompt_texts import load_prompt_text
from everthread.agent.tool_interface import Approver, Tool, ToolContext, ToolReply
from everthread.agent.tools.find_tools import FindTools
from everthread.agent.turn_events import EndReason, TurnEnded
from everthread.conversation.answer_recorder import ModelAnswer
from everthread.conversation.conversation import Conversation
from everthread.conversation.given_messages import MessageInput
from everthread.core.types import StreamDelta
from everthread.errors import InputError
from everthread.thread.events import Event, Listener
from everthread.thread.route import Route

TurnItem = StreamDelta | Event | ModelAnswer
FindRoute = Callable[[str], Awaitable[Route]]
"""Finds the route to a model by its name."""


@dataclass(slots=True)
class _TurnProgress:
    """The start of a turn and its counts so far."""

    start_time: float
    round_count: int = 0
    call_count: int = 0


class Agent:
    """A conversation whose model can use tools.

    `approve` decides on permissions. `listener` gets every event: the agent's own, and the conversation's if
    `on_event` is its listener. `find_route` finds a model by its name.
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
        cache_misses: CacheMissLog | None = None,
        memory: MemoryFiles | None = None,
        find_route: FindRoute | None = None,
        resources: contextlib.AsyncExitStack | None = None,
    ) -> None:
        self.conversation = conversation
        self.context = context
        self.max_rounds = max_rounds
        self.cache_misses = cache_misses or CacheMissLog()
        self.memory = memory
        self.find_route = find_route
        self._resources = resources
        self._tools = _index_by_name(tools)
        self._listener = listener
        self._open_conversations = [conversation]
        self._item_queue: asyncio.Queue[TurnItem | None] | None = None
        self._turn_task: asyncio.Task[ModelAnswer] | None = None
        self._turn_lock = asyncio.Lock()
        finder = FindTools()
        by_name = {finder.name: finder, **self._tools}
        self._call_runner = ToolCallRunner(
            by_name,
            approve,
            on_event=self.on_event,
            max_parallel_tools=max_parallel_tools,
            max_seconds=tool_seconds,
            list_engine_tools=self._list_engine_tools,
        )
        self._offer_tools(conversation)

    def __repr__(self) -> str:
        conversation = self.conversation
        figures = (
            f"{len(self.tools)} tools, {conversation.tokens:,} of {conversation.window:,} tokens"
        )
        return f"<Agent {conversation.id}: {figures}>"

    async def close(self, reason: str | None = None) -> None:
        """Stop a running turn and close the conversations. With a reason the session ends; it can be resumed."""
        if self._turn_task is not None:
            self._turn_task.cancel()
            await asyncio.wait([self._turn_task])
        conversations = self._open_conversations
        self._open_conversations = []
        # The last first; one that fails does not stop the others.
        async with contextlib.AsyncExitStack() as exit_stack:
            if self._resources is not None:
                exit_stack.push_async_callback(self._resources.aclose)
            for conversation in conversations:
                exit_stack.push_async_callback(
                    conversation.close,
                    reason if conversation is self.conversation else None,
                )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The schemas offered to the model, including the engine's own."""
        return self.conversation.tools

    @property
    def is_busy(self) -> bool:
        """Whether a turn is running."""
        return self._turn_lock.locked()

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
        """Pass an event to the log of cache misses, to the reader of the turn and to the listener."""
        self.cache_misses(event)
        if self._item_queue is not None:
            self._item_queue.put_nowait(event)
        if self._listener is not None:
            self._listener(event)

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
        if self.find_route is None:
            raise InputError(
                "this agent cannot change its model: it was opened without `find_route`"
            )
        route = await self.find_route(name)
        await self.conversation.use_model(route)
        return route

    async def _run_turn(self, message: MessageInput, event: str | None) -> ModelAnswer:
        progress = _TurnProgress(time.monotonic())
        try:
            answer = await self._run_rounds(message, progress, event)
        except asyncio.CancelledError:
            self._emit_turn_end("interrupted", progress)
            raise
        except Exception as error:
            self._emit_turn_end("failed", progress, f"{type(error).__name__}: {error}")
            raise
        is_at_limit = progress.round_count >= self.max_rounds
        self._emit_turn_end("max_rounds" if is_at_limit else "answered", progress)
        return answer

    async def _run_rounds(
        self, message: MessageInput, progress: _TurnProgress, event: str | None
    ) -> ModelAnswer:
        answer = await self._ask(message, event=event)
        while answer.calls and progress.round_count < self.max_rounds:
            progress.round_count += 1
            progress.call_count += len(answer.calls)
            context = replace(self.context, conversation=self.conversation)
            await self._call_runner.run(answer.calls, context, self.conversation.add_results)
            note = None
            if progress.round_count == self.max_rounds:
                note = load_prompt_text("last_round").format(rounds=self.max_rounds)
            answer = await self._ask(None, inject=note)
        if answer.calls:
            text = f"[Not run: the limit of {self.max_rounds} rounds was reached.]"
            reply = ToolReply(text, failed=True)
            results = [make_result_message(call, reply) for call in answer.calls]
            await self.conversation.add_results(results)
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

    def _emit_turn_end(self, reason: EndReason, progress: _TurnProgress, error: str = "") -> None:
        seconds = time.monotonic() - progress.start_time
        self.on_event(
            TurnEnded(
                self.conversation.session.id,
                reason,
                rounds=progress.round_count,
                calls=progress.call_count,
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
            raise InputError(f"two tools are called {tool.name}; a model could not tell them apart")
        by_name[tool.name] = tool
    return by_name
