"""Load the conversations to compact: real ones if available, the shipped one, and generated ones.

Each has no end: generated turns follow the recorded messages.

"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from benchmarks.retained.generated_sessions import generate_session
from benchmarks.retained.planted_turns import Fact, PlantedTurn, make_planted_turns
from benchmarks.shared import find_shared
from everthread.core.messages import Message
from examples.long_session import Session

SHIPPED = Path(__file__).parents[2] / "examples" / "long_session.json"
REAL = {"coding": "coding-long-claude", "support": "support-*"}


@dataclass(frozen=True, slots=True)
class MessageGroup:
    """Messages that arrive together: one message, or an assistant's calls with their results."""

    messages: list[Message]
    fact: Fact | None = None
    """The fact that these messages plant."""


@dataclass(frozen=True, slots=True)
class Conversation:
    name: str
    messages: Callable[[], Iterator[Message]]
    seed: int

    def groups(self, every: int, count: Callable[[Message], int]) -> Iterator[MessageGroup]:
        """Yield the groups of the conversation. Plant a fact before the user's next message each `every` tokens."""
        waiting = iter(make_planted_turns(self.seed))
        owed = 0
        for messages in _group_messages(self.messages()):
            while owed >= every and messages[0].get("role") == "user":
                owed -= every
                plant = next(waiting, None)
                if plant is not None:
                    yield from _make_planted_groups(plant)
            owed += sum(map(count, messages))
            yield MessageGroup(messages)


def load_conversations(order: int = 0) -> list[Conversation]:
    """Return the conversations available on this machine, with facts planted in one of many orders."""
    found = [
        Conversation(
            "shipped",
            lambda: chain(_load_recording(SHIPPED), _generate_sessions(8)),
            10 * order + 1,
        ),
        Conversation("generated", lambda: generate_session(order), 10 * order + 2),
    ]
    for seed, (name, pattern) in enumerate(REAL.items(), 10 * order + 3):
        folder = find_shared("transcripts")
        files = sorted(folder.glob(f"{pattern}.json")) if folder else []
        if files:
            found.append(Conversation(name, functools.partial(_join_recordings, files), seed))
    return found


def _join_recordings(files: list[Path]) -> Iterator[Message]:
    for number, file in enumerate(files):
        yield from _prefix_call_ids(_load_recording(file), f"r{number}")
    yield from _generate_sessions(9)


def _load_recording(file: Path) -> Iterator[Message]:
    """Return the messages without the system prompt, which is not compacted."""
    return (
        message
        for message in json.loads(file.read_text("utf-8"))["messages"]
        if message["role"] != "system"
    )


def _generate_sessions(seed: int) -> Iterator[Message]:
    """Yield more work on the shipped session's project, without end."""
    for number in count(seed):
        session = Session(seed=number)
        for episode in range(34, 68):
            session.episode(episode)
        yield from _prefix_call_ids(session.messages, f"s{number}")


def _prefix_call_ids(messages: Iterable[Any], prefix: str) -> Iterator[Message]:
    """Yield messages with prefixed call ids, so that two recordings can follow each other."""
    for message in messages:
        new = dict(message)
        if new.get("tool_calls"):
            new["tool_calls"] = [
                {**call, "id": f"{prefix}_{call['id']}"} for call in new["tool_calls"]
            ]
        if new.get("tool_call_id"):
            new["tool_call_id"] = f"{prefix}_{new['tool_call_id']}"
        yield new  # type: ignore[misc] # the same keys as before


def _make_planted_groups(plant: PlantedTurn) -> Iterator[MessageGroup]:
    made = [*_group_messages(iter(plant.messages))]
    yield from (MessageGroup(messages) for messages in made[:-1])
    yield MessageGroup(made[-1], plant.fact)


def _group_messages(messages: Iterator[Message]) -> Iterator[list[Message]]:
    piece: list[Message] = []
    for message in messages:
        if piece and message.get("role") != "tool":
            yield piece
            piece = []
        piece.append(message)
    if piece:
        yield piece
