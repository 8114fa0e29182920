"""Run Pydantic AI's harness in its own environment: it answers each JSON line with one, until the input ends.

{"do": "summarize", "keep": K, "users": bool, "messages": […]} SummarizingCompaction keeps the last K tokens and, with
`users`, the users' messages before them; it asks for a summary of the messages before: {"ask": [[id, text], …]} goes
out, {"summary": text} must come back, and {"summary", "messages": [id or [role, text], …]} ends it.

Messages are OpenAI chat dicts with an `id` and the `tokens` they have.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from pydantic_ai.messages import (
    CompactionPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai_harness.compaction import SummarizingCompaction, compact_now

Line = dict[str, Any]


def main() -> None:
    for line in sys.stdin:
        print_line(asyncio.run(summarize(json.loads(line))))


async def summarize(peer_request: Line) -> Line:
    names = {
        call["id"]: call["function"]["name"]
        for message in peer_request["messages"]
        for call in message.get("tool_calls", ())
    }
    given = [(message["id"], _decode(message, names)) for message in peer_request["messages"]]
    ids = {id(message): name for name, message in given}
    written = ""

    def summarizer(some: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        nonlocal written
        print_line({"ask": [["", text] for message in some for _, text in _texts(message)]})
        written = json.loads(sys.stdin.readline())["summary"]
        # An empty answer is an error there.
        return ModelResponse([TextPart(written or "(nothing)")])

    if not given:
        return {"summary": "", "messages": []}
    strategy = SummarizingCompaction[None](
        max_messages=1,
        keep_tokens=max(peer_request["keep"], 1),
        keep_messages=10_000,
        keep_user_messages=peer_request["users"],
        summary_prompt="{messages}",
    )
    made = await compact_now(
        strategy, [message for _, message in given], model=FunctionModel(summarizer)
    )
    shown: list[Any] = []
    for message in made:
        shown += (
            [ids[id(message)]]
            if id(message) in ids
            else [[role, text] for role, text in _texts(message)]
        )
    return {"summary": written, "messages": shown}


def _decode(message: Line, names: dict[str, str]) -> ModelMessage:
    text = message["content"] or ""
    if message["role"] == "assistant":
        calls = [
            ToolCallPart(call["function"]["name"], call["function"]["arguments"], call["id"])
            for call in message.get("tool_calls", ())
        ]
        return ModelResponse([*([TextPart(text)] if text or not calls else []), *calls])
    if message["role"] == "tool":
        called = message.get("tool_call_id", "")
        return ModelRequest([ToolReturnPart(names.get(called, "tool"), text, called)])
    return ModelRequest([UserPromptPart(text)])


def _texts(message: ModelMessage) -> list[tuple[str, str]]:
    """Return the texts of a message, each with its role."""
    role = "assistant" if isinstance(message, ModelResponse) else "user"
    texts = []
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            texts.append((role, f"{part.tool_name} {part.args_as_json_str()}"))
        elif isinstance(part, TextPart | UserPromptPart | ToolReturnPart | CompactionPart):
            texts.append((role, str(part.content)))
    return texts


def print_line(line: Line) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
