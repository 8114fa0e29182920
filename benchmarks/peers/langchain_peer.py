"""Run LangChain in its own environment: it answers each JSON line with one, until the input ends.

{"do": "summarize", "keep": K, "trim": N or null, "messages": […]} SummarizationMiddleware keeps the last K tokens and
asks for a summary of (the last N tokens of) the messages before: {"ask": [[id, text], …]} goes out, {"summary": text}
must come back, {"summary", "kept": [ids]} ends it. {"do": "trim", "most": K, "messages": […]} trim_messages: {"kept":
[ids]}.

Messages are OpenAI chat dicts with an `id` and the `tokens` they have.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import (
    BaseMessage,
    RemoveMessage,
    convert_to_messages,
    trim_messages,
)

Line = dict[str, Any]


def main() -> None:
    for line in sys.stdin:
        peer_request = json.loads(line)
        sizes = {
            message["id"]: (message.pop("tokens"), len(message["content"]))
            for message in peer_request["messages"]
        }
        messages = convert_to_messages(peer_request["messages"])

        def count(some: Any, sizes: dict[str, tuple[int, int]] = sizes) -> int:
            return sum(_tokens(message, *sizes[str(message.id)]) for message in some)

        print_line(
            summarize(peer_request, messages, count)
            if peer_request["do"] == "summarize"
            else trim(peer_request, messages, count)
        )


def _tokens(message: BaseMessage, tokens: int, length: int) -> int:
    """Return the tokens of a message; if the message was cut, its share."""
    message_chars = len(message.content)
    return tokens if message_chars == length else 4 + tokens * message_chars // length


def summarize(peer_request: Line, messages: list[BaseMessage], count: Any) -> Line:
    written: list[str] = []

    def summarizer(some: list[BaseMessage]) -> str:
        print_line({"ask": [[message.id, message.content] for message in some]})
        written.append(json.loads(sys.stdin.readline())["summary"])
        return written[-1]

    middleware: Any = SummarizationMiddleware(
        FakeListChatModel(responses=["unused"]),
        trigger=("messages", 1),
        keep=("tokens", max(peer_request["keep"], 1)),
        token_counter=count,
        trim_tokens_to_summarize=peer_request["trim"],
        summarizer=summarizer,
    )
    update = middleware.before_model({"messages": messages}, None)
    if update is None:
        return {"summary": None, "kept": [message.id for message in messages]}
    new = [message for message in update["messages"] if not isinstance(message, RemoveMessage)]
    return {"summary": new[0].content, "kept": [message.id for message in new[1:]]}


def trim(peer_request: Line, messages: list[BaseMessage], count: Any) -> Line:
    kept = trim_messages(
        messages,
        max_tokens=peer_request["most"],
        token_counter=count,
        strategy="last",
        start_on="human",
    )
    return {"kept": [message.id for message in kept]}


def print_line(line: Line) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
