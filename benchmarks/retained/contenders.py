"""Other ways to make a history smaller, for comparison with a compaction.

Each gets the size of our result and may use all of it. Its summary, if it has one, may be as long as ours.

"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.peers import Peer, get_peer
from benchmarks.retained.context_facts import Context, whole_text
from benchmarks.retained.textrank import extract
from everthread import TokenCounter
from everthread.core.messages import Message

HEAD_TAIL = "head + tail"
TEXT_RANK = "text-rank"
LANGCHAIN = "LangChain"
LANGCHAIN_UNTRIMMED = "LangChain untrimmed"
LANGCHAIN_TRIM_MESSAGES = "trim_messages"
HEADROOM = "Headroom"
HARNESS = "Pydantic AI harness"
HARNESS_USERS = "the harness with keep_user_messages"
HERMES = "Hermes"
ALL_CONTENDERS = (
    HEAD_TAIL,
    TEXT_RANK,
    LANGCHAIN,
    LANGCHAIN_UNTRIMMED,
    LANGCHAIN_TRIM_MESSAGES,
    HEADROOM,
    HARNESS,
    HARNESS_USERS,
    HERMES,
)
LANGCHAIN_TRIM_TOKENS = 4_000
"""Number of tokens that LangChain's middleware shows its summariser by default: the last ones."""
SUMMARY_OVERHEAD_TOKENS = 24
"""Tokens around a summary: its message and the line that announces it."""


class Contender(Protocol):
    def compact(self, context: Context, size: int, summary: int) -> Context:
        """Return the context in at most `size` tokens, at most `summary` of them by a summariser."""
        ...


@dataclass(frozen=True)
class HeadAndTail:
    """Keep the first exchange and as much of the end as fits; between them an extract, or nothing."""

    counter: TokenCounter
    between: Callable[[str, int], str] | None = None

    def compact(self, context: Context, size: int, summary: int) -> Context:
        messages = list(context.messages)
        head = _count_head(messages)
        room = size - self.counter.request(messages[:head])
        if self.between is None:
            return Context(
                [
                    *messages[:head],
                    *messages[max(_find_tail_start(messages, room, self.counter.message), head) :],
                ]
            )
        text = ""
        start = head
        for _ in range(2):  # the end may use the tokens that an extract leaves free
            start = max(
                _find_tail_start(
                    messages,
                    room - summary - SUMMARY_OVERHEAD_TOKENS,
                    self.counter.message,
                ),
                head,
            )
            text = self.between("\n".join(map(whole_text, messages[head:start])), summary)
            summary = self.counter.text(text)
        made: Message = {
            "role": "user",
            "content": f"Extract of earlier messages:\n{text}",
        }
        return Context([*messages[:head], made, *messages[start:]])


def make_text_rank(counter: TokenCounter) -> HeadAndTail:
    """Return the contender with about our head and tail, and a text-rank extract as long as our summary."""
    return HeadAndTail(counter, lambda text, tokens: extract(text, tokens, counter.text))


@dataclass(frozen=True)
class LangChainSummary:
    """LangChain's SummarizationMiddleware. Its summariser is a text-rank extract, because there is no model."""

    counter: TokenCounter
    peer: Peer
    trim: int | None

    def compact(self, context: Context, size: int, summary: int) -> Context:
        messages = list(context.messages)
        keep = size - summary - SUMMARY_OVERHEAD_TOKENS
        best = Context([])
        for _ in range(4):  # until it fits and uses the whole size
            line = {
                "do": "summarize",
                "keep": keep,
                "trim": self.trim,
                "messages": number_messages(messages, self.counter),
            }
            answer = self.peer.ask(
                line, lambda asked: _answer_with_extract(asked, summary, self.counter)
            )
            kept = [messages[int(place)] for place in answer["kept"]]
            made: list[Message] = (
                [{"role": "user", "content": answer["summary"]}] if answer["summary"] else []
            )
            left = size - self.counter.request([*made, *kept])
            if left >= 0 and len(kept) >= len(best.messages):
                best = Context([*made, *kept], answer["summary"] or "")
            if 0 <= left < size // 50 or keep + left < 1:
                break
            keep += left
        return best


@dataclass(frozen=True)
class LangChainTrimMessages:
    """LangChain's trim_messages: keep the end, from a user message on."""

    counter: TokenCounter
    peer: Peer

    def compact(self, context: Context, size: int, summary: int) -> Context:  # noqa: ARG002 - it writes none
        messages = list(context.messages)
        answer = self.peer.ask(
            {
                "do": "trim",
                "most": size - SUMMARY_OVERHEAD_TOKENS,
                "messages": number_messages(messages, self.counter),
            }
        )
        return Context([messages[int(place)] for place in answer["kept"]])


@dataclass(frozen=True)
class HeadroomCompress:
    """Headroom's `compress`. It makes messages smaller and drops none; messages that do not fit are then removed."""

    counter: TokenCounter
    peer: Peer

    def compact(self, context: Context, size: int, summary: int) -> Context:
        line = {
            "do": "compress",
            "window": size,
            "messages": number_messages(context.messages, self.counter),
        }
        made = self.peer.ask(line)["messages"]
        return HeadAndTail(self.counter).compact(Context(made), size, summary)


@dataclass(frozen=True)
class HarnessSummary:
    """SummarizingCompaction of Pydantic AI's harness, with a text-rank extract as its summariser."""

    counter: TokenCounter
    peer: Peer
    users: bool
    """Whether it keeps the users' messages."""

    def compact(self, context: Context, size: int, summary: int) -> Context:
        messages = list(context.messages)
        keep = size - summary - SUMMARY_OVERHEAD_TOKENS
        best = Context([])
        made = messages
        for _ in range(5):  # until it fits and uses the whole size
            line = {
                "do": "summarize",
                "keep": keep,
                "users": self.users,
                "messages": number_messages(messages, self.counter),
            }
            answer = self.peer.ask(
                line, lambda asked: _answer_with_extract(asked, summary, self.counter)
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
    """The compressor of Hermes Agent. Its summariser is a text-rank extract, because there is no model."""

    counter: TokenCounter
    peer: Peer

    def compact(self, context: Context, size: int, summary: int) -> Context:
        messages = list(context.messages)
        keep = size - summary - SUMMARY_OVERHEAD_TOKENS
        best = Context([])
        made = messages
        for _ in range(5):  # until it fits and uses the whole size
            line = {
                "do": "summarize",
                "keep": keep,
                "messages": number_messages(messages, self.counter),
            }
            answer = self.peer.ask(
                line, lambda asked: _answer_with_extract(asked, summary, self.counter)
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


def _answer_with_extract(
    asked: dict[str, Any], tokens: int, counter: TokenCounter
) -> dict[str, Any]:
    text = "\n".join(content for _, content in asked["ask"])
    return {"summary": extract(text, tokens, counter.text)}


def make_contenders(counter: TokenCounter, peers: Collection[str]) -> dict[str, Contender]:
    """Return the contenders whose packages could be installed here."""
    found: dict[str, Contender] = {
        HEAD_TAIL: HeadAndTail(counter),
        TEXT_RANK: make_text_rank(counter),
    }
    if "headroom" in peers:
        found[HEADROOM] = HeadroomCompress(counter, get_peer("headroom"))
    if "pydantic_harness" in peers:
        found[HARNESS] = HarnessSummary(counter, get_peer("pydantic_harness"), users=False)
        found[HARNESS_USERS] = HarnessSummary(counter, get_peer("pydantic_harness"), users=True)
    if "hermes" in peers:
        found[HERMES] = HermesSummary(counter, get_peer("hermes"))
    if "langchain" in peers:
        peer = get_peer("langchain")
        found[LANGCHAIN] = LangChainSummary(counter, peer, LANGCHAIN_TRIM_TOKENS)
        found[LANGCHAIN_UNTRIMMED] = LangChainSummary(counter, peer, None)
        found[LANGCHAIN_TRIM_MESSAGES] = LangChainTrimMessages(counter, peer)
    return found


def number_messages(messages: Sequence[Message], counter: TokenCounter) -> list[dict[str, Any]]:
    """Return messages in a peer's form: numbered, with their sizes."""
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
                "content": content_as_text(message),
                "id": str(place),
                "tokens": counter.message(message),
            }
        )
    return found


def content_as_text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else whole_text({**message, "tool_calls": []})


def _count_head(messages: Sequence[Message]) -> int:
    """Count the messages through the first user message, and its answer if that has no calls."""
    first = (
        next(
            (place for place, message in enumerate(messages) if message["role"] == "user"),
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


def _find_tail_start(
    messages: Sequence[Message], room: int, count: Callable[[Message], int]
) -> int:
    """Return the index at which the longest end within `room` begins; keep results with their calls."""
    start = len(messages)
    for place in range(len(messages) - 1, -1, -1):
        room -= count(messages[place])
        if room < 0:
            break
        if messages[place]["role"] != "tool":
            start = place
    return start
