"""Run long conversations through the lossless engine: is everything reachable, does it fit, and at which cost?

Facts are planted in the user's messages and in tool output. `lcm_grep` must find each, and `lcm_expand` must return it
by the id found. Every message must be in the context or covered by a node in the context. No model is called.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import random
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.corpus import Corpus
from benchmarks.shared import find_shared
from benchmarks.table import Row, make_absent_row
from everthread import open_store
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.compaction.lossless import LosslessEngine
from everthread.conversation.conversation import Conversation
from everthread.conversation.setup import Setup
from everthread.core.messages import Message, text_of
from everthread.core.types import ModelReply
from everthread.core.validation import validate_messages
from everthread.testing import PrefixWatch
from everthread.thread.events import CompactionDone, Event
from everthread.thread.options import SessionOptions
from everthread.thread.route import Route

MIN_COMPACTIONS = 20
"""Compactions in a chain."""
MAX_LINEAR_GROWTH = 1.5
"""The second half of a chain may take at most this many times as long as the first; quadratic growth would take 3."""
FACT_COUNT = 60
WINDOW = 32_000
_NODE = re.compile(r"^\[node (n[0-9a-f]{12}): ", re.MULTILINE)


@dataclass
class ChainFigures:
    """The figures of a chain of compactions."""

    compactions: int = 0
    seconds: list[float] = field(default_factory=list)
    """CPU seconds of the compactions of each turn with a compaction; the lists below have the same order."""
    after: list[int] = field(default_factory=list)
    leaves: list[int] = field(default_factory=list)
    covered: list[int] = field(default_factory=list)
    """Tokens of the messages under the new leaves."""
    nodes: list[int] = field(default_factory=list)
    """Number of new nodes, leaves included."""
    searched: int = 0
    expanded: int = 0
    facts: int = 0
    limit: int = 0
    invalid: int = 0
    uncovered: int = 0
    broken: int = 0
    """Number of requests that did not extend the one before in their session."""


def run() -> list[Row]:
    rows = _rows(
        "generated, English, code and Chinese",
        asyncio.run(_run_chain(_generate_session())),
    )
    rows += _rows("examples/long_session.py, twice over", asyncio.run(_run_chain(_load_example())))
    real = find_shared("transcripts", "coding-long-claude.json")
    if real is None:
        return [*rows, make_absent_row("the long real transcript")]
    messages = json.loads(real.read_text("utf-8"))["messages"]
    return [
        *rows,
        *_rows("coding-long-claude", asyncio.run(_run_chain(messages, WINDOW // 2))),
    ]


def _rows(name: str, chain: ChainFigures) -> list[Row]:
    times = chain.seconds
    nodes = chain.nodes
    time_growth = _measure_growth(times, chain.covered)
    node_growth = _measure_growth(nodes, chain.covered)
    reachable_text = (
        f"{chain.searched}/{chain.facts} by lcm_grep, "
        f"{chain.expanded}/{chain.facts} by lcm_expand of what it named"
    )
    milliseconds = 1_000 * sum(times) / chain.compactions
    growth_text = _format_growth(time_growth, _measure_growth(times, chain.leaves))
    return [
        Row(
            f"{name}: compactions",
            str(chain.compactions),
            f"≥ {MIN_COMPACTIONS}",
            chain.compactions >= MIN_COMPACTIONS,
        ),
        Row(
            "planted facts reachable",
            reachable_text,
            "all",
            chain.searched == chain.expanded == chain.facts,
        ),
        Row(
            "largest context after one",
            f"{max(chain.after):,} of {chain.limit:,} tokens",
            "≤ 75 % of T",
            max(chain.after) <= chain.limit,
        ),
        Row(
            "messages neither in view nor under a node in view",
            str(chain.uncovered),
            "0",
            chain.uncovered == 0,
        ),
        Row(
            "invalid contexts, broken prefixes",
            f"{chain.invalid}, {chain.broken}",
            "0, 0",
            chain.invalid + chain.broken == 0,
        ),
        Row(
            "nodes",
            f"{sum(nodes)}; {_format_growth(node_growth, _measure_growth(nodes, chain.leaves))}",
            "near linear",
            node_growth <= MAX_LINEAR_GROWTH,
        ),
        Row(
            "a compaction",
            f"{milliseconds:.0f} ms; {growth_text}",
            "near linear",
            time_growth <= MAX_LINEAR_GROWTH,
        ),
    ]


def _format_growth(by_token: float, by_leaf: float) -> str:
    return f"second half {by_token:.2f} x the first for a token covered, {by_leaf:.2f} x for a leaf"


def _measure_growth(figures: Sequence[float], work_units: Sequence[int]) -> float:
    """Return the time of a chain's second half for the same work, as a multiple of the first half's.

    Work is counted in covered tokens: counting leaves would hide growth if the leaves became smaller.

    """
    half = len(figures) // 2
    first_ratio, second_ratio = (
        sum(figures[half_slice]) / max(sum(work_units[half_slice]), 1)
        for half_slice in (slice(half), slice(half, None))
    )
    return second_ratio / first_ratio if first_ratio else 0.0


async def _run_chain(messages: Sequence[Message], window: int = WINDOW) -> ChainFigures:
    """Run the conversation through the engine, message by message, as a client would."""
    chain = ChainFigures()
    watch = PrefixWatch()
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder) / "store.db")
        events: list[CompactionDone] = []

        def listen(event: Event) -> None:
            watch(event)
            if isinstance(event, CompactionDone):
                events.append(event)

        route = Route("gpt-4o", "openai_chat", window)
        setup = Setup(
            store=store,
            route=route,
            make_engine=LosslessEngine,
            make_summarizer=lambda context: JournalWriter(context.counter),
            options=SessionOptions(background=False),
            clock=time.process_time,
            listener=listen,
        )
        conversation = await Conversation.open(setup)
        planted, facts = _plant_facts(messages)
        chain.facts = len(facts)
        chain.limit = setup.options.budget(window).max_compacted_tokens
        for message in planted:
            await _add_message(conversation, message)
            if message["role"] != "assistant" or message.get("tool_calls") or not events:
                continue  # a turn that is not over, or that the client gave up, has calls without results
            chain.compactions += len(events)
            chain.seconds.append(sum(event.duration for event in events))
            chain.after += (event.tokens_after for event in events)
            nodes = await store.state.list_nodes(conversation.id)
            leaves = [node.covered_tokens for node in nodes if node.level == 0]
            chain.leaves.append(len(leaves) - sum(chain.leaves))
            chain.covered.append(sum(leaves) - sum(chain.covered))
            chain.nodes.append(len(nodes) - sum(chain.nodes))
            chain.invalid += bool(validate_messages(conversation.messages, api="openai"))
            events.clear()
        chain.broken = len(watch.broken)
        await _look_up_facts(conversation, facts, chain)
        await conversation.close()
        await store.close()
    return chain


async def _add_message(conversation: Conversation, message: Message) -> None:
    role = message["role"]
    if role == "tool":
        await conversation.add_results([message])
    elif role == "assistant":
        await conversation.prepare()
        await conversation.record(ModelReply(message, "stop"))
    elif role == "user":
        await conversation.add(message)


async def _look_up_facts(
    conversation: Conversation, facts: dict[str, str], chain: ChainFigures
) -> None:
    """Search for each fact by its name, then read it under the id that the search returned."""
    for name, value in facts.items():
        answer = await conversation.handle_tool_call("lcm_grep", {"pattern": name})
        chain.searched += value in answer
        match = re.search(r"(?:message:\d+|output:[0-9a-f]{16})", answer)
        chain.expanded += match is not None and await _expand_contains(
            conversation, match[0], value
        )
    chain.uncovered = await _count_uncovered(conversation)


async def _expand_contains(conversation: Conversation, expand_id: str, value: str) -> bool:
    """Return whether `lcm_expand` returns the value on one of its pages."""
    offset = 0
    while True:
        answer = await conversation.handle_tool_call(
            "lcm_expand", {"id": expand_id, "offset": offset}
        )
        next_page = re.search(r"go on with offset (\d+)\]$", answer)
        if value in answer or next_page is None:
            return value in answer
        offset = int(next_page[1])


async def _count_uncovered(conversation: Conversation) -> int:
    """Count the messages of the thread that are neither in the context nor covered by a node in the context."""
    nodes = {node.id: node for node in await conversation.store.state.list_nodes(conversation.id)}
    shown_messages = await conversation.store.list_messages(conversation.session.id)
    open_nodes = [
        node
        for stored_message in shown_messages
        for node in _NODE.findall(text_of(stored_message.body))
    ]
    covered_ids = {
        stored_message.id if stored_message.origin is None else stored_message.origin
        for stored_message in shown_messages
    }
    derived_ids: set[int] = set()
    while open_nodes:
        node = nodes[open_nodes.pop()]
        open_nodes += node.sources if node.level else ()
        derived_ids |= set() if node.level else set(map(int, node.sources))
    for number in derived_ids:
        stored_message = await conversation.store.load_message(number)
        covered_ids.add(
            stored_message.id if stored_message.origin is None else stored_message.origin
        )
    # The first message may hold the summary besides its own words: it is in view under another id.
    words = "\n".join(text_of(stored_message.body) for stored_message in shown_messages)
    history = await conversation.store.load_history(conversation.id)
    return sum(
        stored_message.id not in covered_ids and text_of(stored_message.body) not in words
        for stored_message in history
    )


def _plant_facts(messages: Sequence[Message]) -> tuple[list[Message], dict[str, str]]:
    """Return the conversation with facts planted throughout, in user messages and tool output, and the facts."""
    rng = random.Random(11)  # noqa: S311 - always the same facts
    possible_indexes = [index for index, message in enumerate(messages) if _can_hold_fact(message)]
    chosen_indexes = set(rng.sample(possible_indexes, min(FACT_COUNT, len(possible_indexes))))
    facts: dict[str, str] = {}
    planted: list[Message] = []
    for index, message in enumerate(messages):
        if index in chosen_indexes:
            name = f"box_{len(facts):03d}_{rng.randrange(10**4):04d}"
            value = f"shelf-{rng.randrange(16**6):06x}"
            facts[name] = value
            message = {  # noqa: PLW2901
                **message,
                "content": f"{message['content']}\nNote: {name} stands on {value}.",
            }
        planted.append(message)
    return planted, facts


def _can_hold_fact(message: Message) -> bool:
    return message["role"] in ("user", "tool") and isinstance(message.get("content"), str)


def _generate_session(turns: int = 270) -> list[Message]:

    corpus = Corpus(5)
    rng = random.Random(5)  # noqa: S311
    messages: list[Message] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Question {turn}: {corpus.text(rng)}"})
        for step in range(rng.randrange(1, 4)):
            messages += _make_tool_step(f"call_{turn}_{step}", lambda: corpus.text(rng))
        messages.append({"role": "assistant", "content": f"Answer {turn}: {corpus.text(rng)}"})
    return messages


def _make_tool_step(call_id: str, text: Callable[[], str]) -> list[Message]:
    function = {
        "name": "terminal",
        "arguments": json.dumps({"command": f"grep -rn {text()[:30]!r} src"}),
    }
    call: Any = {"id": call_id, "type": "function", "function": function}
    result: Message = {
        "role": "tool",
        "tool_call_id": call_id,
        "content": f"{text()}\n{text()}",
    }
    return [{"role": "assistant", "content": None, "tool_calls": [call]}, result]


def _load_example() -> list[Message]:
    path = Path(__file__).parents[1] / "examples" / "long_session.py"
    spec = importlib.util.spec_from_file_location("long_session", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    messages: list[Message] = module.conversation()["messages"][1:]
    return [message for number in range(2) for message in _rename_calls(messages, number)]


def _rename_calls(messages: Sequence[Message], number: int) -> list[Message]:
    """Return the same messages with other call ids."""
    text = json.dumps(messages, ensure_ascii=False).replace('"call_', f'"call_{number}_')
    renamed: list[Message] = json.loads(text)
    return renamed


if __name__ == "__main__":
    started = time.perf_counter()
    for row in run():
        print(row)
    print(f"{time.perf_counter() - started:.0f} s")
