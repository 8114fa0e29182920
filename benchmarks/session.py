"""Measure the CPU of a turn outside the model, in all threads, and its growth with the stored history."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.table import Row
from everthread import open_store
from everthread.compaction.compressor import ContextCompressor
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.conversation.conversation import Conversation
from everthread.conversation.setup import Setup
from everthread.core.types import ModelReply
from everthread.store.records import NewMessage
from everthread.store.search_records import SearchQuery
from everthread.thread.route import Route

FEW_MESSAGES = 12
MANY_MESSAGES = 1_000
TURNS = 40
ROUNDS = 15
MAX_RATIO = 1.2
WINDOW = 1_000_000


def run() -> list[Row]:
    """Measure both sizes in turns and take the quickest round of each, since other load only adds time."""
    small_times: list[float] = []
    large_times: list[float] = []
    for _ in range(ROUNDS):
        small_times.append(asyncio.run(_time_turn(FEW_MESSAGES)))
        large_times.append(asyncio.run(_time_turn(MANY_MESSAGES)))
    few_seconds = min(small_times)
    many_seconds = min(large_times)
    ratio = many_seconds / few_seconds
    return [
        Row(
            f"a turn outside the model, {FEW_MESSAGES} stored messages",
            f"{1_000 * few_seconds:.2f} ms",
        ),
        Row(
            f"the same with {MANY_MESSAGES:,} stored messages",
            f"{1_000 * many_seconds:.2f} ms, {ratio:.2f} ×",
            f"≤ {MAX_RATIO:g} ×",
            ratio <= MAX_RATIO,
        ),
    ]


async def _time_turn(stored_count: int) -> float:
    """Return the CPU seconds of one turn (prepare, encode, record, store), the first quartile of all turns."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder) / "store.db")
        route = Route("claude-sonnet-4-5", "anthropic", WINDOW, provider="anthropic")
        setup = Setup(
            store=store,
            route=route,
            make_engine=ContextCompressor,
            make_summarizer=lambda context: JournalWriter(context.counter),
        )
        conversation = await Conversation.open(setup)
        await store.append(
            conversation.session.id,
            [_stored_message(index) for index in range(stored_count)],
        )
        await conversation.close()
        conversation = await Conversation.open(setup, resume=conversation.id)
        # Wait until the stored messages are indexed: indexing is not part of a turn.
        await store.search(SearchQuery("books"))
        times = []
        for turn in range(TURNS):
            started = time.process_time()
            prepared = await conversation.prepare(
                f"Question {turn}: how do the books of month {turn} stand?"
            )
            _ = prepared.body
            await conversation.record(
                ModelReply(
                    {"role": "assistant", "content": "They are settled."},
                    "stop",
                    _usage(),
                )
            )
            times.append(time.process_time() - started)
        await store.close()
        return statistics.quantiles(times, n=4)[0]


def _stored_message(index: int) -> NewMessage:
    """Return one of a turn's four messages: a question, a call, its result, the answer."""
    about = f"account {index * 7919 % 1_000} and its entries"
    function = {"name": "ledger", "arguments": f'{{"account": {index}}}'}
    calls: Any = [{"id": f"call_{index}", "type": "function", "function": function}]
    messages: list[Any] = [
        {"role": "user", "content": f"Message {index}: look at {about}."},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {
            "role": "tool",
            "tool_call_id": f"call_{index - 1}",
            "content": f"The books of {about}.",
        },
        {"role": "assistant", "content": f"Message {index}: {about} are settled."},
    ]
    return NewMessage(messages[index % 4])


def _usage() -> dict[str, int]:
    return {
        "input_tokens": 900,
        "output_tokens": 5,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
    }
