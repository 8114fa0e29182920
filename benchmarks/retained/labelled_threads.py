"""Compact recorded threads repeatedly, and look for their labels in the context and by search."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.retained.contender_contexts import OURS, Contexts
from benchmarks.retained.contenders import (
    HARNESS,
    HARNESS_USERS,
    HEAD_TAIL,
    HEADROOM,
    HERMES,
    LANGCHAIN,
    LANGCHAIN_TRIM_MESSAGES,
)
from benchmarks.retained.context_facts import whole_text
from benchmarks.retained.labels import Label, load_labels, normalize
from benchmarks.retained.recordings import (
    THREADS,
    Recorded,
    load_recording,
    load_thread,
)
from everthread import open_store
from everthread.core.messages import Message
from everthread.store.records import NewMessage, NewSession
from everthread.store.search_records import SearchQuery
from everthread.thread.lookup.store_lookup import StoreLookup

DEPTHS = (1, 5, 10)
MAX_SEARCH_RESULTS = 8
"""Number of results of a search: as many as one call of the `recall` tool shows."""
PEERS = (
    HEAD_TAIL,
    LANGCHAIN,
    LANGCHAIN_TRIM_MESSAGES,
    HEADROOM,
    HARNESS,
    HARNESS_USERS,
    HERMES,
)


@dataclass
class Outcome:
    """The labels of one thread: all, those kept, and those found."""

    total: dict[int, list[Label]] = field(default_factory=dict)
    """By the number of compactions: the labels of the messages until then."""
    kept: dict[int, dict[str, set[Label]]] = field(default_factory=dict)
    """The kept labels, by the number of compactions and by contender."""
    found: set[Label] = field(default_factory=set)
    """After the last compaction: labels that left our context and that a search finds."""

    def list_reachable(self) -> set[Label]:
        """Return the labels in our context after the last compaction, or among the first results of a search."""
        return self.kept[DEPTHS[-1]][OURS] | self.found


def measure(kind: str, half: str, window: int, peers: Collection[str]) -> Outcome:
    contexts = Contexts(window, peers, PEERS)
    every = load_labels(THREADS[kind, half])
    outcome = Outcome()
    fed: list[Message] = []
    told: set[tuple[str, int]] = set()
    compactions = 0
    for piece in group_messages(load_thread(kind, half)):
        messages = [recorded.message for recorded in piece]
        fed += messages
        told.update((recorded.name, recorded.number) for recorded in piece)
        if not contexts.append(messages) or not contexts.compact():
            continue
        compactions += 1
        if compactions in DEPTHS:
            so_far = [label for label in every if (label.recording, label.number) in told]
            outcome.total[compactions] = so_far
            outcome.kept[compactions] = {
                name: _find_kept(context.messages, so_far)
                for name, context in contexts.current.items()
            }
        if compactions == DEPTHS[-1]:
            break
    lost = [
        label for label in outcome.total[DEPTHS[-1]] if label not in outcome.kept[DEPTHS[-1]][OURS]
    ]
    outcome.found = asyncio.run(_find_by_search(fed, lost))
    return outcome


@dataclass
class SessionEnd:
    """The labels of one session at its end: all, and those kept."""

    total: list[Label]
    kept: dict[str, set[Label]]
    """The kept labels, by contender."""
    compactions: int


def measure_session(name: str, window: int, peers: Collection[str]) -> SessionEnd:
    """Feed a recorded session to its end, compacting when the threshold is reached."""
    contexts = Contexts(window, peers, PEERS)
    every = load_labels([name])
    recorded = (
        Recorded(message, name, number)
        for number, message in enumerate(load_recording(name))
        if message is not None
    )
    compactions = 0
    for piece in group_messages(recorded):
        if contexts.append([one.message for one in piece]):
            compactions += contexts.compact()
    kept = {who: _find_kept(context.messages, every) for who, context in contexts.current.items()}
    return SessionEnd(every, kept, compactions)


def _find_kept(messages: Sequence[Message], among: Iterable[Label]) -> set[Label]:
    text = normalize("\n".join(map(whole_text, messages)))
    return {label for label in among if label.words in text}


async def _find_by_search(messages: Sequence[Message], lost: Sequence[Label]) -> set[Label]:
    """Return the labels whose words are in the first results for their question.

    Both the tool `recall` and `everthread sessions search` must show them.

    """
    found = set()
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder) / "store.db")
        session = await store.create_session(NewSession())
        await store.append(session.id, [NewMessage(message) for message in messages])
        lookup = StoreLookup(store, session.tenant, session.id)
        for label in lost:
            places = await lookup.search(label.question, limit=MAX_SEARCH_RESULTS)
            page = await store.find(
                SearchQuery(label.question, session.tenant, session.id, limit=MAX_SEARCH_RESULTS)
            )
            shown = (
                [place.text for place in places.excerpts],
                [hit.snippet for hit in page.hits],
            )
            if all(any(label.words in normalize(text) for text in texts) for texts in shown):
                found.add(label)
        await store.close()
    return found


def group_messages(messages: Iterable[Recorded]) -> Iterator[list[Recorded]]:
    """Yield messages that arrive together: a single one, or an assistant's calls with their results."""
    piece: list[Recorded] = []
    for recorded in messages:
        if piece and recorded.message.get("role") != "tool":
            yield piece
            piece = []
        piece.append(recorded)
    if piece:
        yield piece
