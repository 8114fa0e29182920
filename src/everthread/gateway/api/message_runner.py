"""Answer one message of a thread and report its events."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from everthread.agent import commands
from everthread.agent.loop import Agent
from everthread.conversation.answer_recorder import ModelAnswer
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.secrets.redaction import redact
from everthread.core.types import StreamDelta
from everthread.gateway.api.agent_pool import AgentPool, AgentSlot
from everthread.gateway.api.turn_log import TurnLog
from everthread.gateway.error_answers import RequestRefused
from everthread.store.turn_records import QueuedTurn
from everthread.thread.events import CompactionFailed, Event, UsageRecorded

TEXT_DELTAS = ("text", "reasoning", "refusal")
"""The kinds of deltas that clients get. Calls are reported by the tools' own events."""


@dataclass(slots=True)
class TurnUsage:
    """Usage of the calls of a turn."""

    usage: CanonicalUsage = field(default_factory=CanonicalUsage)
    call_count: int = 0
    unpriced_count: int = 0
    dollars: Decimal = Decimal(0)

    def add(self, event: UsageRecorded) -> None:
        self.usage += event.usage
        self.call_count += 1
        if event.cost is None:
            self.unpriced_count += 1
        else:
            self.dollars += event.cost

    def as_json(self) -> dict[str, Any]:
        usage = self.usage
        return {
            "calls": self.call_count,
            "input": usage.input_tokens,
            "output": usage.output_tokens,
            "cache_read": usage.cache_read_tokens,
            "cache_write": usage.cache_write_tokens,
            "reasoning": usage.reasoning_tokens,
            "cost": None if self.unpriced_count else float(self.dollars),
        }


class MessageRunner:
    """Answers one message and writes its events to the log."""

    def __init__(
        self, pool: AgentPool, slot: AgentSlot, log: TurnLog, turn_usage: TurnUsage
    ) -> None:
        if slot.agent is None:
            raise AssertionError("a slot that was taken has an agent")
        self._pool = pool
        self._slot = slot
        self._log = log
        self._turn_usage = turn_usage
        self._agent: Agent = slot.agent
        self._is_streaming = False

    async def answer(self, turn: QueuedTurn) -> dict[str, Any]:
        """Answer the message and return the result as JSON values."""
        self._slot.on_event = self._on_event
        try:
            content = turn.message.get("content")
            if isinstance(content, str) and commands.parse(content):
                return await self._run_command(turn, content)
            await self._compact_large_history()
            answer = await self._run_turn(turn)
        finally:
            self._slot.on_event = None
        return {
            "text": answer.text,
            "message_id": answer.id,
            "session": self._agent.conversation.session.id,
            "stop": answer.stop,
            "usage": self._turn_usage.as_json(),
        }

    async def _run_command(self, turn: QueuedTurn, line: str) -> dict[str, Any]:
        name, argument = commands.parse(line) or ("", "")
        agent = self._agent
        try:
            if name == "model" and argument:
                self._pool.check_model(argument)
            result = await commands.run(agent, agent.conversation.store, line)
        except RequestRefused as refused:
            result = commands.CommandResult(f"/{name} failed: {refused.message}", failed=True)
        if name == "model" and argument and not result.failed:
            await self._pool.choose_model(turn.thread, argument)
        thread_id = turn.thread
        if result.next_session is not None:
            thread_id = (await agent.conversation.store.load_session(result.next_session)).thread
            await self._pool.inherit_model(turn.thread, thread_id)
        return {
            "text": result.text,
            "command": name,
            "data": dict(result.data),
            "failed": result.failed,
            "thread": thread_id,
            "usage": self._turn_usage.as_json(),
        }

    async def _compact_large_history(self) -> None:
        """Compact a history above 85 % of the window before answering the message. Report a failure and continue."""
        conversation = self._agent.conversation
        try:
            await conversation.compact_before_incoming()
        except Exception as error:  # noqa: BLE001 - reported; the message is still answered
            self._on_event(
                CompactionFailed(
                    conversation.session.id, redact(f"{type(error).__name__}: {error}")
                )
            )

    async def _run_turn(self, turn: QueuedTurn) -> ModelAnswer:
        async with contextlib.aclosing(
            self._agent.turn(dict(turn.message), event=turn.id)
        ) as items:
            try:
                self._is_streaming = True
                async for item in items:
                    if isinstance(item, ModelAnswer):
                        return item
                    if not isinstance(item, StreamDelta):
                        self._report(item)
                    elif item.kind in TEXT_DELTAS and item.text:
                        self._log.append(
                            "delta",
                            {"event": "delta", "kind": item.kind, "text": item.text},
                        )
            finally:
                self._is_streaming = False  # later events are reported by `_on_event`
        raise AssertionError("a turn ends with its answer or an error")

    def _on_event(self, event: Event) -> None:
        """Report an event outside a turn. Within a turn the same events arrive in order with the deltas."""
        if not self._is_streaming:
            self._report(event)

    def _report(self, event: Event) -> None:
        if isinstance(event, UsageRecorded):
            self._turn_usage.add(event)
        self._log.append(event.kind, event.as_dict())
