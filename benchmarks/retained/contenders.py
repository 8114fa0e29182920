"""What a compaction is measured against: other ways to make a history as small.

All are given the size of our result and may use all of it. Where one has a summary, that may be as long as ours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.peers import Peer, own_peer
from benchmarks.retained.finding import Context, text_of
from benchmarks.retained.textrank import extract
from everthread import TokenCounter
from everthread.core.messages import Message

HEAD_TAIL = "head + tail"
TEXT_RANK = "text-rank"
LANGCHAIN = "LangChain"
LANGCHAIN_WHOLE = "LangChain untrimmed"
LANGCHAIN_TRIMS = "trim_messages"
HEADROOM = "Headroom"
HARNESS = "Pydantic AI harness"
HARNESS_USERS = "the harness with keep_user_messages"
HERMES = "Hermes"
EVERY = (
    HEAD_TAIL,
    TEXT_RANK,
    LANGCHAIN,
    LANGCHAIN_WHOLE,
    LANGCHAIN_TRIMS,
    HEADROOM,
    HARNESS,
    HARNESS_USERS,
    HERMES,
)
LANGCHAIN_TRIM = 4_000
"""What LangChain's middleware shows its summariser unless told otherwise: so many tokens of the end."""
FRAME = 24
"""Tokens around a summary: its message and the line that announces it."""


class Contender(Protocol):
    def compact(self, context: Context, size: int, summary: int) -> Context:
        """The context in at most `size` tokens, at most `summary` of them written by a summariser."""
        ...


@dataclass(frozen=True)
class HeadAndTail:
    """The first exchange, and as much of the end as there is room for; between them an extract, or nothing."""

    counter: TokenCounter
    between: Callable[[str, int], str] | None = None

    def compact(self, context: Context, size: int, summary: int) -> Context:
        messages = list(context.messages)
        head = _head(messages)
        room = size - self.counter.request(messages[:head])
        if self.between is None:
            return Context(
                [
                    *messages[:head],
                    *messages[max(_tail(messages, room, self.counter.message), head) :],
                ]
            )
        text = ""
        start = head
        for _ in range(2):  # what an extract leaves of its room, the end may have
            start = max(
                _tail(messages, room - summary - FRAME, self.counter.message), head
            )
            text = self.between("\n".join(map(text_of, messages[head:start])), summary)
            summary = self.counter.text(text)
        made: Message = {
            "role": "user",
            "content": f"Extract of earlier messages:\n{text}",
        }
        return Context([*messages[:head], made, *messages[start:]])


def text_rank(counter: TokenCounter) -> HeadAndTail:
    """The same head and about the same tail as ours; the summary is a text-rank extract of the same length."""
    return HeadAndTail(
        counter, lambda text, tokens: extract(text, tokens, counter.text)
    )


@dataclass(frozen=True)
class LangChainSummary:
    """LangChain's SummarizationMiddleware. Its summariser, there being no model, is a text-rank extract."""

    counter: TokenCounter
    peer: Peer
    trim: int | None

    def compact(self, context: Context, size: int, summary: int) -> Context:
        messages = list(context.messages)
        keep = size - summary - FRAME
        best = Context([])
        for _ in range(4):  # until it fits, and uses what there is
            line = {
                "do": "summarize",
                "keep": keep,
                "trim": self.trim,
                "messages": wired(messages, self.counter),
            }
            answer = self.peer.ask(
                line, lambda asked: _extracted(asked, summary, self.counter)
            )
            kept = [messages[int(place)] for place in answer["kept"]]
            made: list[Message] = (
                [{"role": "user", "content": answer["summary"]}]
                if answer["summary"]
                else []
            )
            left = size - self.counter.request([*made, *kept])
            if left >= 0 and len(kept) >= len(best.messages):
                best = Context([*made, *kept], answer["summary"] or "")
            if 0 <= left < size // 50 or keep + left < 1:
                break
            keep += left
        return best


@dataclass(frozen=True)
class LangChainTrim:
    """LangChain's trim_messages: the end, from a user message on."""

    counter: TokenCounter
    peer: Peer

    def compact(self, context: Context, size: int, summary: int) -> Context:  # noqa: ARG002 - it writes none
        messages = list(context.messages)
        answer = self.peer.ask(
            {
                "do": "trim",
                "most": size - FRAME,
                "messages": wired(messages, self.counter),
            }
        )
        return Context([messages[int(place)] for place in answer["kept"]])


@dataclass(frozen=True)
class HeadroomCompress:
    """Headroom's `compress`. It makes messages smaller and drops none; what does not fit then goes from the middle."""

    counter: TokenCounter
    peer: Peer

    def compact(self, context: Context, size: int, summary: int) -> Context:
        line = {
            "do": "compress",
            "window": size,
            "messages": wired(context.messages, self.counter),
        }
        made = self.peer.ask(line)["messages"]
        return HeadAndTail(self.counter).compact(Context(made), size, summary)


@dataclass(frozen=True)
class HarnessSummary:
    """SummarizingCompaction of Pydantic AI's harness. Its summariser, there being no model, is a text-rank extract."""

    counter: TokenCounter
    peer: Peer
    users: bool
    """Whether it keeps what people said."""

    def compact(self, context: Context, size: int, summary: int) -> Context:
        messages = list(context.messages)
        keep = size - summary - FRAME
        best = Context([])
        made = messages
        for _ in range(5):  # until it fits, and uses what there is
            line = {
                "do": "summarize",
                "keep": keep,
                "users": self.users,
                "messages": wired(messages, self.counter),
            }
            answer = self.peer.ask(
                line, lambda asked: _extracted(asked, summary, self.counter)
            )
            made = [
                messages[int(shown)]
                if isinstance(shown, str)
                else {"role": shown[0], "content": shown[1]}
                for shown in answer["messages"]
            ]
            left = size - self.counter.request(made)
            if left >= 0 and len(made) >= len(best.messages):
                best = Context(made, answer["summary"])
            if 0 <= left < size // 50 or keep <= 1:
                break
            keep = max(1, keep + left)
        return (
            best
            if best.messages
            else HeadAndTail(self.counter).compact(Context(made), size, summary)
        )


@dataclass(frozen=True)
class HermesSummary:
    """The compressor of Hermes Agent. Its summariser, there being no model, is a text-rank extract."""

    counter: TokenCounter
    peer: Peer

    def compact(self, context: Context, size: int, summary: int) -> Context:
        messages = list(context.messages)
        keep = size - summary - FRAME
        best = Context([])
        made = messages
        for _ in range(5):  # until it fits, and uses what there is
            line = {
                "do": "summarize",
                "keep": keep,
                "messages": wired(messages, self.counter),
            }
            answer = self.peer.ask(
                line, lambda asked: _extracted(asked, summary, self.counter)
            )
            made = answer["messages"]
            left = size - self.counter.request(made)
            if left >= 0 and len(made) >= len(best.messages):
                best = Context(made, answer["summary"])
            if 0 <= left < size // 50 or keep <= 1:
                break
            keep = max(1, keep + left)
        return (
            best
            if best.messages
            else HeadAndTail(self.counter).compact(Context(made), size, summary)
        )


def _extracted(
    asked: dict[str, Any], tokens: int, counter: TokenCounter
) -> dict[str, Any]:
    text = "\n".join(content for _, content in asked["ask"])
    return {"summary": extract(text, tokens, counter.text)}


def contenders(counter: TokenCounter, peers: Collection[str]) -> dict[str, Contender]:
    """All that can be measured here: those whose package could be installed."""
    found: dict[str, Contender] = {
        HEAD_TAIL: HeadAndTail(counter),
        TEXT_RANK: text_rank(counter),
    }
    if "headroom" in peers:
        found[HEADROOM] = HeadroomCompress(counter, own_peer("headroom"))
    if "pydantic_harness" in peers:
        found[HARNESS] = HarnessSummary(
            counter, own_peer("pydantic_harness"), users=False
        )
        found[HARNESS_USERS] = HarnessSummary(
            counter, own_peer("pydantic_harness"), users=True
        )
    if "hermes" in peers:
        found[HERMES] = HermesSummary(counter, own_peer("hermes"))
    if "langchain" in peers:
        peer = own_peer("langchain")
        found[LANGCHAIN] = LangChainSummary(counter, peer, LANGCHAIN_TRIM)
        found[LANGCHAIN_WHOLE] = LangChainSummary(counter, peer, None)
        found[LANGCHAIN_TRIMS] = LangChainTrim(counter, peer)
    return found


def wired(messages: Sequence[Message], counter: TokenCounter) -> list[dict[str, Any]]:
    """As a peer is given them: numbered, with their size."""
    found = []
    for place, message in enumerate(messages):
        line = {
            key: value
            for key, value in message.items()
            if key in ("role", "tool_calls", "tool_call_id")
        }
        found.append(
            {
                **line,
                "content": wired_content(message),
                "id": str(place),
                "tokens": counter.message(message),
            }
        )
    return found


def wired_content(message: Message) -> str:
    content = message.get("content")
    return (
        content if isinstance(content, str) else text_of({**message, "tool_calls": []})
    )


def _head(messages: Sequence[Message]) -> int:
    """Through the first user message, and its answer if that called nothing."""
    first = (
        next(
            (
                place
                for place, message in enumerate(messages)
                if message["role"] == "user"
            ),
            -1,
        )
        + 1
    )
    follows = messages[first] if first < len(messages) else None
    return (
        first + 1
        if follows and follows["role"] == "assistant" and not follows.get("tool_calls")
        else first
    )


def _tail(
    messages: Sequence[Message], room: int, count: Callable[[Message], int]
) -> int:
    """Where the longest end within `room` begins; results are not cut off from their call."""
    start = len(messages)
    for place in range(len(messages) - 1, -1, -1):
        room -= count(messages[place])
        if room < 0:
            break
        if messages[place]["role"] != "tool":
            start = place
    return start
