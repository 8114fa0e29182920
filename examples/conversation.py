"""A recorded session, held again with a model whose window is far too small for it. Offline, no key.

The model is simulated: it answers what was answered then, over real HTTP, and counts, caches and refuses as Claude
does. Everything else is the real thing.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

from everthread import Conversation, open_conversation
from everthread.config import parse_config
from everthread.lab.provider import Provider, RecordedAnswers, ServedModel
from everthread.thread.events import CompactionDone, Event, OutputStored

SESSION = Path(__file__).with_name("long_session.json")
MODEL = "claude-sonnet-5"
WINDOW = 64_000


def say(text: str = "") -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def show(event: Event) -> None:
    """What a front end would draw."""
    if isinstance(event, CompactionDone):
        say(
            f"  compaction {event.count}: {event.tokens_before:,} -> {event.tokens_after:,} tokens, "
            f"{event.messages_before} -> {event.messages_after} messages, summary by {event.author}"
        )
    elif isinstance(event, OutputStored):
        say(
            f"  stored a large result outside the context: {event.output}, {event.chars:,} characters"
        )


async def replay(conversation: Conversation, messages: list[Any]) -> int:
    """Every user message again, the tools answering as they did; how many turns that were."""
    results = {
        message["tool_call_id"]: message for message in messages if message["role"] == "tool"
    }
    turns = 0
    for message in messages:
        if message["role"] != "user":
            continue
        turns += 1
        answer = await conversation.send(message)
        while answer.calls and all(call.id in results for call in answer.calls):
            await conversation.add_results([results[call.id] for call in answer.calls])
            answer = await conversation.send()
    return turns


async def main() -> str:
    session = json.loads(SESSION.read_text("utf-8"))
    os.environ["DEMO_KEY"] = "none-needed"
    async with Provider(
        [ServedModel(MODEL, WINDOW, shows="max_model_len")],
        RecordedAnswers(session["messages"]),
    ) as provider:
        config = parse_config(
            f"model: {{default: {MODEL}, provider: anthropic, base_url: '{provider.url}', api_key_env: DEMO_KEY}}"
        )
        conversation = await open_conversation(
            config=config,
            system=session["messages"][0]["content"],
            tools=session["tools"],
            listener=show,
            summarizer="journal",
        )
        say(
            f"{len(session['messages'])} messages through a window of {conversation.window:,} tokens:"
        )
        turns = await replay(conversation, session["messages"])
        spent = await conversation.usage()
        tokens = sum(call.usage.total_tokens for call in spent)
        dollars = sum((call.cost for call in spent if call.cost is not None), Decimal(0))
        await conversation.close()
        calls = [record for record in provider.log if record.path.endswith("/messages")]
        refused = sum(record.status != 200 for record in calls)
        cached = sum(record.cached_tokens for record in calls) / max(
            1, sum(record.prompt_tokens for record in calls)
        )
        say(
            f"{turns} turns in {len(calls)} calls, {refused} refused for size; {cached:.0%} of the prompts read from "
            f"the cache; {tokens:,} tokens for ${dollars:.2f}"
        )
        return conversation.id


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ.setdefault("EVERTHREAD_HOME", home)
        asyncio.run(main())
