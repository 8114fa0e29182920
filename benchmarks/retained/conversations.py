"""The conversations that are compacted: real ones where they are at hand, the shipped one, generated ones.

Every one goes on for as long as it is asked: where recorded messages end, generated turns follow.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from benchmarks.retained.planted import Fact, Plant, plants
from benchmarks.retained.stories import story
from benchmarks.shared import shared
from everthread.core.messages import Message
from examples.long_session import Session

SHIPPED = Path(__file__).parents[2] / "examples" / "long_session.json"
REAL = {"coding": "coding-long-claude", "support": "support-*"}


@dataclass(frozen=True, slots=True)
class Piece:
    """Messages that arrive together: one message, or an assistant's calls with their results."""

    messages: list[Message]
    fact: Fact | None = None
    """What is planted with it."""


@dataclass(frozen=True, slots=True)
class Conversation:
    name: str
    messages: Callable[[], Iterator[Message]]
    seed: int

    def pieces(self, every: int, count: Callable[[Message], int]) -> Iterator[Piece]:
        """The conversation piece by piece; for every so many tokens a fact is planted where the user speaks next."""
        waiting = iter(plants(self.seed))
        owed = 0
        for messages in _pieces(self.messages()):
            while owed >= every and messages[0].get("role") == "user":
                owed -= every
                plant = next(waiting, None)
                if plant is not None:
                    yield from _planted(plant)
            owed += sum(map(count, messages))
            yield Piece(messages)


def conversations(order: int = 0) -> list[Conversation]:
    """Those that can be had on this machine, with facts planted in one of many orders."""
    found = [
        Conversation(
            "shipped", lambda: chain(_recorded(SHIPPED), _sessions(8)), 10 * order + 1
        ),
        Conversation("generated", lambda: story(order), 10 * order + 2),
    ]
    for seed, (name, pattern) in enumerate(REAL.items(), 10 * order + 3):
        folder = shared("transcripts")
        files = sorted(folder.glob(f"{pattern}.json")) if folder else []
        if files:
            found.append(Conversation(name, functools.partial(_continued, files), seed))
    return found


def _continued(files: list[Path]) -> Iterator[Message]:
    for number, file in enumerate(files):
        yield from _renamed(_recorded(file), f"r{number}")
    yield from _sessions(9)


def _recorded(file: Path) -> Iterator[Message]:
    """Without the system prompt, which is not part of what is compacted."""
    return (
        message
        for message in json.loads(file.read_text("utf-8"))["messages"]
        if message["role"] != "system"
    )


def _sessions(seed: int) -> Iterator[Message]:
    """More work on the shipped session's project, without end."""
    for number in count(seed):
        session = Session(seed=number)
        for episode in range(34, 68):
            session.episode(episode)
        yield from _renamed(session.messages, f"s{number}")


def _renamed(messages: Iterable[Any], prefix: str) -> Iterator[Message]:
    """With call ids of their own, so that two recordings can follow each other."""
    for message in messages:
        new = dict(message)
        if new.get("tool_calls"):
            new["tool_calls"] = [
                {**call, "id": f"{prefix}_{call['id']}"} for call in new["tool_calls"]
            ]
        if new.get("tool_call_id"):
            new["tool_call_id"] = f"{prefix}_{new['tool_call_id']}"
        yield new  # type: ignore[misc] # the same keys as before


def _planted(plant: Plant) -> Iterator[Piece]:
    made = [*_pieces(iter(plant.messages))]
    yield from (Piece(messages) for messages in made[:-1])
    yield Piece(made[-1], plant.fact)


def _pieces(messages: Iterator[Message]) -> Iterator[list[Message]]:
    piece: list[Message] = []
    for message in messages:
        if piece and message.get("role") != "tool":
            yield piece
            piece = []
        piece.append(message)
    if piece:
        yield piece
