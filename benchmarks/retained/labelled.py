"""Recorded threads through a chain of compactions: which labels still stand in the context, which are found."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.retained.contenders import (
    HARNESS,
    HARNESS_USERS,
    HEAD_TAIL,
    HEADROOM,
    HERMES,
    LANGCHAIN,
    LANGCHAIN_TRIMS,
)
from benchmarks.retained.finding import text_of
from benchmarks.retained.labels import Label, labels, normal
from benchmarks.retained.race import OURS, Contexts
from benchmarks.retained.recordings import THREADS, Recorded, recording, thread
from everthread import open_store
from everthread.core.messages import Message
from everthread.store.records import NewMessage, NewSession
from everthread.store.search_records import SearchQuery
from everthread.thread.lookup.store_lookup import StoreLookup

DEPTHS = (1, 5, 10)
PLACES = 8
"""So many places of a search are looked at: as many as one call of the `recall` tool shows."""
PEERS = (
    HEAD_TAIL,
    LANGCHAIN,
    LANGCHAIN_TRIMS,
    HEADROOM,
    HARNESS,
    HARNESS_USERS,
    HERMES,
)


@dataclass
class Outcome:
    """What became of the labels of one thread."""

    total: dict[int, list[Label]] = field(default_factory=dict)
    """By how many compactions there were: the labels of what had been said by then."""
    kept: dict[int, dict[str, set[Label]]] = field(default_factory=dict)
    """By how many, and by contender."""
    found: set[Label] = field(default_factory=set)
    """After the last: those that search brings back, of the ones that no longer stand in our context."""

    def reachable(self) -> set[Label]:
        """In our context after the last compaction, or among the first places of a search."""
        return self.kept[DEPTHS[-1]][OURS] | self.found


def measure(kind: str, half: str, window: int, peers: Collection[str]) -> Outcome:
    contexts = Contexts(window, peers, PEERS)
    every = labels(THREADS[kind, half])
    outcome = Outcome()
    fed: list[Message] = []
    told: set[tuple[str, int]] = set()
    compactions = 0
    for piece in pieces(thread(kind, half)):
        messages = [recorded.message for recorded in piece]
        fed += messages
        told.update((recorded.name, recorded.number) for recorded in piece)
        if not contexts.append(messages) or not contexts.compact():
            continue
        compactions += 1
        if compactions in DEPTHS:
            so_far = [
                label for label in every if (label.recording, label.number) in told
            ]
            outcome.total[compactions] = so_far
            outcome.kept[compactions] = {
                name: _held(context.messages, so_far)
                for name, context in contexts.current.items()
            }
        if compactions == DEPTHS[-1]:
            break
    lost = [
        label
        for label in outcome.total[DEPTHS[-1]]
        if label not in outcome.kept[DEPTHS[-1]][OURS]
    ]
    outcome.found = asyncio.run(_search(fed, lost))
    return outcome


@dataclass
class SessionEnd:
    """What became of the labels of one session by its end."""

    total: list[Label]
    kept: dict[str, set[Label]]
    """By contender."""
    compactions: int


def measure_session(name: str, window: int, peers: Collection[str]) -> SessionEnd:
    """Feed a recorded session to its end, compacting when the threshold is reached."""
    contexts = Contexts(window, peers, PEERS)
    every = labels([name])
    recorded = (
        Recorded(message, name, number)
        for number, message in enumerate(recording(name))
        if message is not None
    )
    compactions = 0
    for piece in pieces(recorded):
        if contexts.append([one.message for one in piece]):
            compactions += contexts.compact()
    kept = {
        who: _held(context.messages, every) for who, context in contexts.current.items()
    }
    return SessionEnd(every, kept, compactions)


def _held(messages: Sequence[Message], among: Iterable[Label]) -> set[Label]:
    text = normal("\n".join(map(text_of, messages)))
    return {label for label in among if label.words in text}


async def _search(messages: Sequence[Message], lost: Sequence[Label]) -> set[Label]:
    """The labels whose words stand in one of the first places that their question finds in the stored thread.

    The tool `recall` must show them, and `everthread sessions search` too.
    """
    found = set()
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder) / "store.db")
        session = await store.create_session(NewSession())
        await store.append(session.id, [NewMessage(message) for message in messages])
        lookup = StoreLookup(store, session.tenant, session.id)
        for label in lost:
            places = await lookup.search(label.question, limit=PLACES)
            page = await store.find(
                SearchQuery(label.question, session.tenant, session.id, limit=PLACES)
            )
            shown = (
                [place.text for place in places.excerpts],
                [hit.snippet for hit in page.hits],
            )
            if all(
                any(label.words in normal(text) for text in texts) for texts in shown
            ):
                found.add(label)
        await store.close()
    return found


def pieces(messages: Iterable[Recorded]) -> Iterator[list[Recorded]]:
    """Messages that arrive together: one, or an assistant's calls with their results."""
    piece: list[Recorded] = []
    for recorded in messages:
        if piece and recorded.message.get("role") != "tool":
            yield piece
            piece = []
        piece.append(recorded)
    if piece:
        yield piece
