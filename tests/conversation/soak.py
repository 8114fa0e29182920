"""A long conversation with everything that goes wrong, and the books compared afterwards.

Each turn is one of: a message, a streamed message, one with tools, one that is cancelled, a compaction by hand, an
undo, a restart. The provider plays faults by a seed. In the end the store is held against the provider's log.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from everthread import ContextOverflowError, Conversation, ModelError
from everthread.conversation.answer_recorder import INTERRUPTED_ANSWER_TEXT
from everthread.core.messages import text_of
from everthread.core.summary_marks import mark_summary, without_summary
from everthread.core.types import ModelReply, ModelRequest
from everthread.core.validation import validate_messages
from everthread.errors import NothingToUndoError
from everthread.lab.provider import FaultPlan
from tests.chat_messages import call_reply, result_message
from tests.conversation.conversation_setup import make_text, numbered_text
from tests.conversation.http_setup import (
    TOOL,
    HttpConversations,
    answer_script,
    open_http_conversations,
    served_model,
)

RATES: Any = {
    "rate_limit": 0.02,
    "server_error": 0.03,
    "overloaded": 0.03,
    "reset": 0.03,
    "truncated": 0.02,
    "no_usage": 0.03,
    "stream_overflow": 0.02,
    "stream_error": 0.02,
    "delay": 0.05,
    "payload_too_large": 0.01,
}
NAME = "gpt-4o"


class Soak:
    def __init__(self, conversations: HttpConversations, seed: int) -> None:
        self.place = conversations
        self.dice = random.Random(seed)  # noqa: S311 - repeatable, no secret
        self.said: list[str] = []
        self.done: Counter[str] = Counter()
        self.conversation: Conversation | None = None
        self.thread = ""

    async def run(self, turns: int) -> None:
        for turn in range(turns):
            if self.conversation is None:
                resume = self.thread if turn else None
                self.conversation = await self.place.open(
                    NAME, tools=[TOOL], resume=resume, system="Be brief."
                )
                self.thread = self.conversation.id
            kinds = ("send", "stream", "tools", "cancel", "compress", "undo", "restart")
            (action,) = self.dice.choices(kinds, weights=(8, 8, 6, 2, 1, 1, 2))
            self.done[action] += 1
            try:
                await getattr(self, f"_{action}")(self.conversation, turn)
            except (ModelError, ContextOverflowError):
                self.done["failed"] += (
                    1  # the provider failed permanently; the message is stored nevertheless
                )
        assert self.conversation is None or not self.conversation.messages or self.thread

    def _words(self, turn: int) -> str:
        text = numbered_text(turn, self.dice.randint(20, 900), "matter")
        self.said.append(text)
        return text

    async def _send(self, conversation: Conversation, turn: int) -> None:
        await self._results(conversation, (await conversation.send(self._words(turn))).calls)

    async def _stream(self, conversation: Conversation, turn: int) -> None:
        last: Any = None
        async for piece in conversation.stream(self._words(turn)):
            last = piece
        await self._results(conversation, last.calls)

    async def _tools(self, conversation: Conversation, turn: int) -> None:
        await self._results(
            conversation,
            (await conversation.send(f"{self._words(turn)} use tools")).calls,
        )

    async def _results(self, conversation: Conversation, calls: Any) -> None:
        while calls:
            results: list[Any] = [
                result_message(call.id, make_text(self.dice.choice((50, 600, 9_000)), call.id))
                for call in calls
            ]
            await conversation.add_results(results)
            calls = (await conversation.send()).calls

    async def _cancel(self, conversation: Conversation, turn: int) -> None:
        async with aclosing(conversation.stream(self._words(turn))) as stream:
            async for _piece in stream:
                break

    async def _compress(self, conversation: Conversation, _turn: int) -> None:
        await conversation.compress()

    async def _undo(self, conversation: Conversation, _turn: int) -> None:
        with suppress(NothingToUndoError):
            await conversation.undo()

    async def _restart(self, conversation: Conversation, _turn: int) -> None:
        await conversation.close()
        self.conversation = None


def answer(request: ModelRequest) -> ModelReply | str:
    """Call a tool if the request asks for tools, else answer in text."""
    last = request.messages[-1]
    if last["role"] == "user" and text_of(last).endswith("use tools"):
        return call_reply(
            ("terminal", {"command": "make"}, f"call_{abs(hash(text_of(last))) % 10**9}")
        )
    return make_text(60, f"answer to {len(request.messages)}")


async def soak(folder: Path, *, seed: int, turns: int, window: int = 16_000) -> Counter[str]:
    plan = FaultPlan(RATES, seed=seed, seconds=0.01)
    async with open_http_conversations(
        folder, [served_model(NAME, window)], answer_script(answer), faults=plan
    ) as conversations:
        work = Soak(conversations, seed)
        await work.run(turns)
        await compare(conversations, work)
        return work.done


async def compare(conversations: HttpConversations, soak: Soak) -> None:
    """Compare the store with the log: nothing lost or doubled, every request valid, every token accounted for."""
    history = await conversations.store.load_history(soak.thread)
    stored_texts = Counter(text_of(item.body) for item in history if item.body["role"] == "user")
    expected_texts = Counter(_as_sent(text, stored_texts) for text in soak.said)
    assert expected_texts == stored_texts, (
        expected_texts - stored_texts,
        stored_texts - expected_texts,
    )
    for record in conversations.provider.log:
        if record.request is not None:
            assert not validate_messages(record.request.messages, api="openai"), record.number
    answer_texts = Counter(
        text_of(record.reply.message)
        for record in conversations.main_calls()
        if record.reply is not None
        and record.status == 200
        and not record.fault
        and not record.events
    )
    stored_answers = Counter(
        text_of(without_summary(mark_summary(item.body)) or {"role": "assistant"})
        if item.kind == "summary"
        else text_of(item.body)
        for item in history
        if item.body["role"] == "assistant"
    )
    interrupted = sum(
        count for text, count in stored_answers.items() if text.endswith(INTERRUPTED_ANSWER_TEXT)
    )
    lost_answers = answer_texts - stored_answers
    assert sum(lost_answers.values()) <= interrupted, lost_answers
    usage_records = await conversations.store.usage.list_usage(soak.thread)
    reported = [item for item in usage_records if not item.estimated]
    answered_tokens = [
        record.canonical_usage.total_tokens
        for record in conversations.provider.log
        if record.status == 200
        and record.usage
        and record.fault in ("", "delay")
        and not record.events
    ]
    unaccounted_tokens = Counter(answered_tokens) - Counter(
        item.usage.total_tokens for item in reported
    )
    # Usage is estimated for a call whose answer was not read to its end.
    assert sum(unaccounted_tokens.values()) <= len(usage_records) - len(reported), (
        unaccounted_tokens
    )
    assert (await conversations.store.check()).problems == ()
    await asyncio.sleep(0)


def _as_sent(text: str, stored: Counter[str]) -> str:
    """Return the message as stored, including its request for tools."""
    return text if text in stored else f"{text} use tools"
