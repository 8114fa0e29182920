"""Run Hermes Agent's context compressor in its own environment: it answers each JSON line with one.

    {"do": "summarize", "keep": K, "messages": […]}
        ContextCompressor keeps about the last K tokens and its protected start, turns older results into one line and
        asks for a summary of the rest: {"ask": [["", text]]} goes out, {"summary": text} must come back, and
        {"summary", "messages": […]} ends it.

Messages are OpenAI chat dicts with an `id` and the `tokens` they have.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from agent.context_compressor import ContextCompressor  # type: ignore[import-not-found] # its own environment

Line = dict[str, Any]
WINDOW = 200_000
"""Only the tail's budget depends on the window, and the caller sets that budget."""


class AskingCompressor(ContextCompressor):  # type: ignore[misc] # its package is in another environment
    """The compressor, with the benchmark as its summariser."""

    written = ""

    def _generate_summary(
        self,
        turns_to_summarize: list[Line],
        focus_topic: str | None = None,  # noqa: ARG002 - as its base class
        memory_context: str = "",  # noqa: ARG002
    ) -> str | None:
        before = self._previous_summary or ""
        text = f"{before}\n{self._serialize_for_summary(turns_to_summarize)}"
        print_line({"ask": [["", text]]})
        self.written = json.loads(sys.stdin.readline())["summary"]
        return str(self._with_summary_prefix(self.written))


def main() -> None:
    for line in sys.stdin:
        peer_request = json.loads(line)
        print_line(
            summarize(peer_request) if peer_request["messages"] else {"summary": "", "messages": []}
        )


def summarize(peer_request: Line) -> Line:
    compressor = AskingCompressor("gpt-4o", quiet_mode=True, config_context_length=WINDOW)
    compressor.tail_token_budget = max(peer_request["keep"], 1)
    messages = [
        {key: value for key, value in message.items() if key not in ("id", "tokens")}
        for message in peer_request["messages"]
    ]
    made = compressor.compress(messages, force=True)
    shown = [
        {
            key: message[key]
            for key in ("role", "content", "tool_calls", "tool_call_id")
            if message.get(key)
        }
        for message in made
    ]
    return {"summary": compressor.written, "messages": shown}


def print_line(line: Line) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
