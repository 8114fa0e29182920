"""The tool loop: ask the model, run what it calls, give it the results, until it answers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from everthread.agent import MAX_ROUNDS, PARALLEL, TOOL_SECONDS
from everthread.agent.base import Approver, Tool, ToolContext, ToolReply, text
from everthread.agent.calls import CallRunner, as_result
from everthread.agent.events import CauseLog, Ending, TurnEnded
from everthread.agent.memory import MemoryFiles
from everthread.agent.tools.conversation import FindTools
from everthread.conversation.conversation import Conversation
from everthread.conversation.events import Event, Listener
from everthread.conversation.options import Route
from everthread.conversation.requests import Answer, Given
from everthread.core.types import StreamDelta
from everthread.errors import InputError

Item = StreamDelta | Event | Answer
Routes = Callable[[str], Awaitable[Route]]
"""Finds the route to a model by its name."""
Closing = Callable[[], Awaitable[Any]]
"""Something to be closed with the agent."""


@dataclass(slots=True)
class _Progress:
    """The start of a turn and its counts so far."""

    began: float
    rounds: int = 0
    calls: int = 0


class Agent:
    """A conversation whose model can use tools.

    `approve` decides on permissions. `listener` gets every event: the agent's own, and the conversation's where
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
        parallel: int = PARALLEL,
        tool_seconds: float = TOOL_SECONDS,
        listener: Listener | None = None,
        journal: CauseLog | None = None,
        memory: MemoryFiles | None = None,
        routes: Routes | None = None,
        closing: Sequence[Closing] = (),
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
        self._opened = [conversation]
        self._items: asyncio.Queue[Item | None] | None = None
        self._work: asyncio.Task[Answer] | None = None
        self._turning = asyncio.Lock()
        finder = FindTools()
        by_name = {finder.name: finder, **self._tools}
        self._caller = CallRunner(by_name, approve, self.on_event, parallel, tool_seconds, self._engine_tools)
        self._offer_tools(conversation)

    def __repr__(self) -> str:
        conversation = self.conversation
        figures = f"{len(self.tools)} tools, {conversation.tokens:,} of {conversation.window:,} tokens"
        return f"<Agent {conversation.id}: {figures}>"

    # Life

    async def close(self, reason: str | None = None) -> None:
        """Stop a running turn and close the conversations. With a reason the session ends; it can be resumed."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])
        opened, self._opened = self._opened, []
        closing, self._closing = self._closing, ()
        async with contextlib.AsyncExitStack() as ending:  # the last first; one that fails does not stop the others
            for close in reversed(closing):
                ending.push_async_callback(close)
            for conversation in opened:
                ending.push_async_callback(conversation.close, reason if conversation is self.conversation else None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # What it is

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The schemas the model is offered, the engine's own among them."""
        return self.conversation.tools

    @property
    def busy(self) -> bool:
        """A turn is running."""
        return self._turning.locked()

    # Turns

    async def turn(self, message: Given, *, event: str | None = None) -> AsyncGenerator[Item, None]:
        """Run one turn: yield the model's text and every event as they come, then the final `Answer`.

        `event`: a message sent again under the same event id is stored once.
        Closing the generator, or cancelling its reader, stops the turn: running tools are ended, and the history notes
        it.
        """
        async with self._turning:
            items = self._items = asyncio.Queue[Item | None]()
            work = self._work = asyncio.create_task(self._run_turn(message, event))
            work.add_done_callback(lambda _: items.put_nowait(None))
            try:
                while (item := await items.get()) is not None:
                    yield item
                yield await work
            finally:
                self._items = None
                work.cancel()
                await asyncio.wait([work])
                self._work = None
                if not work.cancelled():
                    work.exception()

    async def send(self, message: Given) -> Answer:
        """Run one turn and return its final answer."""
        async with contextlib.aclosing(self.turn(message)) as items:
            async for item in items:
                if isinstance(item, Answer):
                    return item
        raise AssertionError("a turn ends with its answer or an error")

    def on_event(self, event: Event) -> None:
        """Pass an event to the cause log, to the reader of the turn and to the listener."""
        self.journal(event)
        if self._items is not None:
            self._items.put_nowait(event)
        if self._listener is not None:
            self._listener(event)

    # Other conversations

    async def switch(self, session: str) -> Conversation:
        """Continue in another session of the same store."""
        tenant = self.conversation.session.tenant
        target = await self.conversation.store.resolve(session, tenant=tenant)
        async with self._turning:
            self.conversation = await self.conversation.another(resume=target.id)
            self._opened.append(self.conversation)
            self._offer_tools(self.conversation)
        return self.conversation

    async def use_model(self, name: str) -> Route:
        """Continue with another model."""
        if self.routes is None:
            raise InputError("this agent cannot change its model: it was opened without `routes`")
        route = await self.routes(name)
        await self.conversation.use_model(route)
        return route

    # Inside

    async def _run_turn(self, message: Given, event: str | None) -> Answer:
        progress = _Progress(time.monotonic())
        try:
            answer = await self._run_rounds(message, progress, event)
        except asyncio.CancelledError:
            self._end("interrupted", progress)
            raise
        except Exception as error:
            self._end("failed", progress, f"{type(error).__name__}: {error}")
            raise
        self._end("max_rounds" if progress.rounds >= self.max_rounds else "answered", progress)
        return answer

    async def _run_rounds(self, message: Given, progress: _Progress, event: str | None) -> Answer:
        answer = await self._ask(message, event=event)
        while answer.calls and progress.rounds < self.max_rounds:
            progress.rounds += 1
            progress.calls += len(answer.calls)
            context = replace(self.context, conversation=self.conversation)
            await self._caller.run(answer.calls, context, self.conversation.add_results)
            last = progress.rounds == self.max_rounds
            answer = await self._ask(None, inject=text("last_round").format(rounds=self.max_rounds) if last else None)
        if answer.calls:
            unused = ToolReply(f"[Not run: the limit of {self.max_rounds} rounds was reached.]", failed=True)
            await self.conversation.add_results([as_result(call, unused) for call in answer.calls])
        return answer

    async def _ask(self, message: Given, *, inject: str | None = None, event: str | None = None) -> Answer:
        answer: Answer | None = None
        async with contextlib.aclosing(self.conversation.stream(message, event=event, inject=inject)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Answer):
                    answer = piece
                elif self._items is not None:
                    self._items.put_nowait(piece)
        if answer is None:
            raise AssertionError("a stream ends with its answer or an error")
        return answer

    def _end(self, reason: Ending, progress: _Progress, error: str = "") -> None:
        spent = time.monotonic() - progress.began
        self.on_event(TurnEnded(self.conversation.session.id, reason, progress.rounds, progress.calls, spent, error))

    def _offer_tools(self, conversation: Conversation) -> None:
        schemas = [tool.schema for tool in self._tools.values()]
        if conversation.toolbox.given != schemas:
            conversation.use_tools(schemas)

    def _engine_tools(self) -> list[str]:
        return [str(schema.get("function", {}).get("name")) for schema in self.conversation.toolbox.own]


def _index_by_name(tools: Sequence[Tool]) -> Mapping[str, Tool]:
    by_name: dict[str, Tool] = {}
    for tool in tools:
        if tool.name in by_name:
            raise InputError(f"two tools are called {tool.name}; a model could not tell them apart")
        by_name[tool.name] = tool
    return by_name
