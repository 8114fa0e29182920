"""Long conversations through the lossless engine: is everything still reachable, does it fit, what does it cost.

Facts are planted in what the user says and in tool output. Each must be found by `lcm_grep`, and be read by
`lcm_expand` under the id that gave; and every message must be in view or under a node that is. No model is called.
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
from benchmarks.shared import shared
from benchmarks.table import Row, absent
from everthread import open_store
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.compaction.lossless import LosslessEngine
from everthread.conversation.conversation import Conversation
from everthread.core.messages import Message, text_of
from everthread.core.types import Reply
from everthread.core.validation import validate_messages
from everthread.testing import PrefixWatch
from everthread.thread.events import CompactionDone, Event
from everthread.thread.options import Route, SessionOptions, Setup

WANTED = 20
"""Compactions in a chain."""
NEAR = 1.5
"""Near linear: the second half of a chain takes so much more than the first. With the square it would be 3."""
PLANTED = 60
WINDOW = 32_000
_NODE = re.compile(r"^\[node (n[0-9a-f]{12}): ", re.MULTILINE)


@dataclass
class Chain:
    """What happened on the way."""

    compactions: int = 0
    seconds: list[float] = field(default_factory=list)
    """Of the processor, in the compactions of each turn that had any; so are the next."""
    after: list[int] = field(default_factory=list)
    leaves: list[int] = field(default_factory=list)
    covered: list[int] = field(default_factory=list)
    """Tokens of the messages under the new leaves."""
    nodes: list[int] = field(default_factory=list)
    """That were made, leaves included."""
    searched: int = 0
    expanded: int = 0
    facts: int = 0
    limit: int = 0
    invalid: int = 0
    uncovered: int = 0
    broken: int = 0
    """Requests that did not extend the one before in their session."""


def run() -> list[Row]:
    rows = _rows(
        "generated, English, code and Chinese", asyncio.run(_chain(_generated()))
    )
    rows += _rows(
        "examples/long_session.py, twice over", asyncio.run(_chain(_example()))
    )
    real = shared("transcripts", "coding-long-claude.json")
    if real is None:
        return [*rows, absent("the long real transcript")]
    messages = json.loads(real.read_text("utf-8"))["messages"]
    return [
        *rows,
        *_rows("coding-long-claude", asyncio.run(_chain(messages, WINDOW // 2))),
    ]


def _rows(what: str, chain: Chain) -> list[Row]:
    times = chain.seconds
    nodes = chain.nodes
    slower = _grown(times, chain.covered)
    grown = _grown(nodes, chain.covered)
    found = f"{chain.searched}/{chain.facts} by lcm_grep, {chain.expanded}/{chain.facts} by lcm_expand of what it named"
    return [
        Row(
            f"{what}: compactions",
            str(chain.compactions),
            f"≥ {WANTED}",
            chain.compactions >= WANTED,
        ),
        Row(
            "planted facts reachable",
            found,
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
            f"{sum(nodes)}; {_both(grown, _grown(nodes, chain.leaves))}",
            "near linear",
            grown <= NEAR,
        ),
        Row(
            "a compaction",
            f"{1_000 * sum(times) / chain.compactions:.0f} ms; {_both(slower, _grown(times, chain.leaves))}",
            "near linear",
            slower <= NEAR,
        ),
    ]


def _both(by_token: float, by_leaf: float) -> str:
    return f"second half {by_token:.2f} x the first for a token covered, {by_leaf:.2f} x for a leaf"


def _grown(figures: Sequence[float], work: Sequence[int]) -> float:
    """What the second half of a chain took for the same work, compared with the first half.

    Work is counted in tokens covered: leaves that became smaller would hide that there are more of them.
    """
    half = len(figures) // 2
    before, after = (
        sum(figures[part]) / max(sum(work[part]), 1)
        for part in (slice(half), slice(half, None))
    )
    return after / before if before else 0.0


async def _chain(messages: Sequence[Message], window: int = WINDOW) -> Chain:
    """The conversation, message by message, as a client would have it."""
    chain = Chain()
    watch = PrefixWatch()
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder) / "store.db")
        done: list[CompactionDone] = []

        def listen(event: Event) -> None:
            watch(event)
            if isinstance(event, CompactionDone):
                done.append(event)

        route = Route("gpt-4o", "openai_chat", window)
        setup = Setup(
            store,
            route,
            LosslessEngine,
            lambda context: JournalWriter(context.counter),
            SessionOptions(background=False),
            clock=time.process_time,
            listener=listen,
        )
        talk = await Conversation.open(setup)
        planted, facts = _planted(messages)
        chain.facts = len(facts)
        chain.limit = setup.options.budget(window).compacted_limit
        for message in planted:
            await _said(talk, message)
            if message["role"] != "assistant" or message.get("tool_calls") or not done:
                continue  # a turn that is not over, or that the client gave up, has calls without results
            chain.compactions += len(done)
            chain.seconds.append(sum(event.duration for event in done))
            chain.after += (event.tokens_after for event in done)
            kept = await store.nodes(talk.id)
            leaves = [node.covered_tokens for node in kept if node.level == 0]
            chain.leaves.append(len(leaves) - sum(chain.leaves))
            chain.covered.append(sum(leaves) - sum(chain.covered))
            chain.nodes.append(len(kept) - sum(chain.nodes))
            chain.invalid += bool(validate_messages(talk.messages, api="openai"))
            done.clear()
        chain.broken = len(watch.broken)
        await _look(talk, facts, chain)
        await talk.close()
        await store.close()
    return chain


async def _said(talk: Conversation, message: Message) -> None:
    role = message["role"]
    if role == "tool":
        await talk.add_results([message])
    elif role == "assistant":
        await talk.prepare()
        await talk.record(Reply(message, "stop"))
    elif role == "user":
        await talk.add(message)


async def _look(talk: Conversation, facts: dict[str, str], chain: Chain) -> None:
    """Each fact is searched for by its name, then read under the id the search gave."""
    for name, value in facts.items():
        found = await talk.handle_tool_call("lcm_grep", {"pattern": name})
        chain.searched += value in found
        named = re.search(r"(?:message:\d+|output:[0-9a-f]{16})", found)
        chain.expanded += named is not None and await _holds(talk, named[0], value)
    chain.uncovered = await _uncovered(talk)


async def _holds(talk: Conversation, wanted: str, value: str) -> bool:
    """Whether `lcm_expand` gives it on one of its pages."""
    offset = 0
    while True:
        answer = await talk.handle_tool_call(
            "lcm_expand", {"id": wanted, "offset": offset}
        )
        onward = re.search(r"go on with offset (\d+)\]$", answer)
        if value in answer or onward is None:
            return value in answer
        offset = int(onward[1])


async def _uncovered(talk: Conversation) -> int:
    """Messages of the thread that are neither in view nor under a node in view."""
    nodes = {node.id: node for node in await talk.store.nodes(talk.id)}
    shown = await talk.store.messages(talk.session.id)
    waiting = [node for stored in shown for node in _NODE.findall(text_of(stored.body))]
    known = {stored.id if stored.origin is None else stored.origin for stored in shown}
    derived: set[int] = set()
    while waiting:
        node = nodes[waiting.pop()]
        waiting += node.sources if node.level else ()
        derived |= set() if node.level else set(map(int, node.sources))
    for number in derived:
        stored = await talk.store.message(number)
        known.add(stored.id if stored.origin is None else stored.origin)
    # The first message may hold the summary besides its own words: it is in view under another id.
    words = "\n".join(text_of(stored.body) for stored in shown)
    said = await talk.store.history(talk.id)
    return sum(
        stored.id not in known and text_of(stored.body) not in words for stored in said
    )


def _planted(messages: Sequence[Message]) -> tuple[list[Message], dict[str, str]]:
    """The conversation with facts in it, at places all along: in a user's words and in tool output."""
    make = random.Random(11)  # noqa: S311 - always the same facts
    holders = [place for place, message in enumerate(messages) if _may_hold(message)]
    chosen = set(make.sample(holders, min(PLANTED, len(holders))))
    facts: dict[str, str] = {}
    planted: list[Message] = []
    for place, message in enumerate(messages):
        if place in chosen:
            name = f"box_{len(facts):03d}_{make.randrange(10**4):04d}"
            value = f"shelf-{make.randrange(16**6):06x}"
            facts[name] = value
            message = {  # noqa: PLW2901
                **message,
                "content": f"{message['content']}\nNote: {name} stands on {value}.",
            }
        planted.append(message)
    return planted, facts


def _may_hold(message: Message) -> bool:
    return message["role"] in ("user", "tool") and isinstance(
        message.get("content"), str
    )


def _generated(turns: int = 270) -> list[Message]:

    corpus = Corpus(5)
    make = random.Random(5)  # noqa: S311
    story: list[Message] = []
    for turn in range(turns):
        story.append(
            {"role": "user", "content": f"Question {turn}: {corpus.text(make)}"}
        )
        for step in range(make.randrange(1, 4)):
            story += _step(f"call_{turn}_{step}", lambda: corpus.text(make))
        story.append(
            {"role": "assistant", "content": f"Answer {turn}: {corpus.text(make)}"}
        )
    return story


def _step(call_id: str, text: Callable[[], str]) -> list[Message]:
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


def _example() -> list[Message]:
    path = Path(__file__).parents[1] / "examples" / "long_session.py"
    spec = importlib.util.spec_from_file_location("long_session", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    messages: list[Message] = module.conversation()["messages"][1:]
    return [message for number in range(2) for message in _renamed(messages, number)]


def _renamed(messages: Sequence[Message], number: int) -> list[Message]:
    """The same story with call ids of its own."""
    text = json.dumps(messages, ensure_ascii=False).replace(
        '"call_', f'"call_{number}_'
    )
    renamed: list[Message] = json.loads(text)
    return renamed


if __name__ == "__main__":
    started = time.perf_counter()
    for row in run():
        print(row)
    print(f"{time.perf_counter() - started:.0f} s")
