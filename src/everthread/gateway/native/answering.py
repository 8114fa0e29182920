"""One turn: a slash command is done, anything else goes through the agent to the model."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from everthread.agent import commands
from everthread.agent.loop import Agent
from everthread.conversation.events import CompactionFailed, Event, UsageRecorded
from everthread.conversation.responses import Answer
from everthread.core.exchange import StreamDelta
from everthread.core.redaction import redact
from everthread.core.usage import CanonicalUsage
from everthread.gateway.access import Refused
from everthread.gateway.native.agents import AgentPool, Seat
from everthread.gateway.native.logs import TurnLog
from everthread.store.models import QueuedTurn

SPOKEN = ("text", "reasoning", "refusal")
"""The pieces of an answer that are passed on; of calls the tools' own events tell."""


@dataclass(slots=True)
class Spent:
    """What the calls of a turn used."""

    used: CanonicalUsage = field(default_factory=CanonicalUsage)
    calls: int = 0
    unpriced: int = 0
    dollars: Decimal = Decimal(0)

    def add(self, event: UsageRecorded) -> None:
        self.used += event.usage
        self.calls += 1
        if event.cost is None:
            self.unpriced += 1
        else:
            self.dollars += event.cost

    def figures(self) -> dict[str, Any]:
        used = self.used
        return {
            "calls": self.calls, "input": used.input_tokens, "output": used.output_tokens,
            "cache_read": used.cache_read_tokens, "cache_write": used.cache_write_tokens,
            "reasoning": used.reasoning_tokens, "cost": None if self.unpriced else float(self.dollars),
        }  # fmt: skip


class Answering:
    """Does what a message asks for and tells of it."""

    def __init__(self, pool: AgentPool, seat: Seat, log: TurnLog, spent: Spent) -> None:
        if seat.agent is None:
            raise AssertionError("a seat that was taken has an agent")
        self._pool, self._seat, self._log, self._spent = pool, seat, log, spent
        self._agent: Agent = seat.agent
        self._reading = False

    async def answer(self, turn: QueuedTurn) -> dict[str, Any]:
        """What came of it, as JSON values."""
        self._seat.tell = self._heard
        try:
            said = turn.message.get("content")
            if isinstance(said, str) and commands.parse(said):
                return await self._command(turn, said)
            await self._tidied()
            answer = await self._turn(turn)
        finally:
            self._seat.tell = None
        return {
            "text": answer.text, "message_id": answer.id, "session": self._agent.conversation.session.id,
            "stop": answer.stop, "usage": self._spent.figures(),
        }  # fmt: skip

    # A command

    async def _command(self, turn: QueuedTurn, line: str) -> dict[str, Any]:
        name, argument = commands.parse(line) or ("", "")
        agent = self._agent
        try:
            if name == "model" and argument:
                self._pool.check_model(argument)
            result = await commands.run(agent, agent.conversation.store, line)
        except Refused as refused:
            result = commands.CommandResult(f"/{name} failed: {refused.message}", failed=True)
        if name == "model" and argument and not result.failed:
            await self._pool.choose_model(turn.thread, argument)
        thread = turn.thread
        if result.switch is not None:
            thread = (await agent.conversation.store.session(result.switch)).thread
            await self._pool.inherit(turn.thread, thread)
        return {
            "text": result.text, "command": name, "data": dict(result.data), "failed": result.failed,
            "thread": thread, "usage": self._spent.figures(),
        }  # fmt: skip

    # A message

    async def _tidied(self) -> None:
        """The safety net before the agent sees the message. Whatever goes wrong is told, and the message goes on."""
        talk = self._agent.conversation
        try:
            await talk.hygiene()
        except Exception as error:  # noqa: BLE001 - it is told; a message is not dropped for it
            self._heard(CompactionFailed(talk.session.id, redact(f"{type(error).__name__}: {error}")))

    async def _turn(self, turn: QueuedTurn) -> Answer:
        async with contextlib.aclosing(self._agent.turn(dict(turn.message), event=turn.id)) as items:
            try:
                self._reading = True
                async for item in items:
                    if isinstance(item, Answer):
                        return item
                    if isinstance(item, StreamDelta):
                        self._said(item)
                    else:
                        self._tell(item)
            finally:
                self._reading = False  # from here on nobody reads the turn, and the rest is heard
        raise AssertionError("a turn ends with its answer or an error")

    def _heard(self, event: Event) -> None:
        """What happens outside a turn; within one its events come in order with what is said."""
        if not self._reading:
            self._tell(event)

    def _tell(self, event: Event) -> None:
        if isinstance(event, UsageRecorded):
            self._spent.add(event)
        self._log.tell(event.kind, event.as_dict())

    def _said(self, piece: StreamDelta) -> None:
        if piece.kind in SPOKEN and piece.text:
            self._log.tell("delta", {"event": "delta", "kind": piece.kind, "text": piece.text})
