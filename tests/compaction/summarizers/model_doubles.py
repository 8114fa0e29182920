"""Conversations to summarise, summaries to answer with, and a model that answers by a function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from everthread.compaction.summarizers.llm_summarizer import LlmSummarizer
from everthread.compaction.summarizers.summarizer import SummaryDraft, SummaryRequest
from everthread.compaction.summary.sections import render_sections
from everthread.core.messages import Message
from everthread.core.tokens import TokenCounter
from everthread.core.types import ModelReply, ModelRequest
from tests.compaction.histories import flatten

COUNTER = TokenCounter("gpt-4o")

GOOD = {
    "Active Task": "Make the retry limit 7.",
    "Goal": "A parser that survives bad input.",
    "Completed Actions": "1. EDIT src/parser.py — limit raised to 5 [tool: edit]",
    "Critical Context": "The port is 8443.",
}
GOOD_TEXT = render_sections(GOOD)


def make_message(role: str, text: str) -> Message:
    return {"role": role, "content": text}


def make_history(turns: int = 12, *, words: int = 60) -> list[Message]:
    """Return a chat of this many exchanges, each with a unique text."""
    filler = " ".join(["The parser reads tokens and keeps the position of each."] * (words // 10))
    return flatten(
        (
            make_message("user", f"Question {number}: {filler}"),
            make_message("assistant", f"Answer {number}: {filler}"),
        )
        for number in range(turns)
    )


def summary_request(
    messages: Sequence[Message] | None = None, *, budget: int = 600, **more: Any
) -> SummaryRequest:
    messages = make_history() if messages is None else messages
    return SummaryRequest(messages=messages, pruned=messages, budget=budget, **more)


@dataclass
class FunctionModel:
    """A model that answers each request by the function `answer`, and records the requests."""

    answer: Callable[[ModelRequest], Awaitable[ModelReply]]
    name: str = "gpt-4o"
    window: int = 128_000
    requests: list[ModelRequest] = field(default_factory=list)

    async def complete(self, request: ModelRequest) -> ModelReply:
        self.requests.append(request)
        return await self.answer(request)


def model_that_says(*texts: str, **options: Any) -> FunctionModel:
    """Return a model that answers with these texts in turn; the last one repeats."""
    left = list(texts)

    async def answer(_request: ModelRequest) -> ModelReply:
        return make_reply(left.pop(0) if len(left) > 1 else left[0])

    return FunctionModel(answer, **options)


def make_reply(text: str, **fields: Any) -> ModelReply:
    return ModelReply(
        **{
            "message": make_message("assistant", text),
            "stop": "stop",
            "usage": {"prompt_tokens": 10},
            **fields,
        }
    )


def last_message_text(request: ModelRequest) -> str:
    """Return the last message of a request, which asks for the summary."""
    return str(request.messages[-1]["content"])


async def summarize(
    model: FunctionModel, request: SummaryRequest, **options: object
) -> SummaryDraft:
    return await LlmSummarizer(model, COUNTER, **options).summarize(request)  # type: ignore[arg-type] # one test varies each
