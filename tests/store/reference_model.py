"""Threads as plain lists: apply every operation to them and to the store, then compare both."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest

from everthread.errors import NothingToUndoError, UnknownIdError
from everthread.store.records import NewCompaction, NewMessage, NewSession
from everthread.store.store import Store
from tests.store.messages import (
    new_user_message,
    read_context,
    read_history,
    summary_message,
    texts_of,
)


@dataclass
class ModelSession:
    """A session: its messages, the number of inherited ones, and the ones its summary covers."""

    id: str
    shows: list[str]
    given: int = 0
    covers: set[str] = field(default_factory=set)


@dataclass
class Thread:
    id: str
    before: list[str]
    """The part of its history that only its parent showed."""
    chain: list[ModelSession]
    every_id: list[str]
    own: list[NewMessage] = field(default_factory=list)
    """Messages given to this thread, not to its parent."""
    ended: bool = False

    @property
    def tip(self) -> ModelSession:
        return self.chain[-1]

    @property
    def history(self) -> list[str]:
        first, *rest = self.chain
        start = self.before or first.shows[: first.given]
        added = itertools.chain(
            first.shows[first.given :],
            *(stretch.shows[stretch.given :] for stretch in rest),
        )
        return [*start, *(text for text in added if not text.startswith("summary"))]


class Model:
    """Threads of a store and their expected content. The numbers given to an operation choose a thread or a message."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.threads: list[Thread] = []
        self.ids: dict[str, int] = {}
        self._names = (f"m{number}" for number in itertools.count())

    def pick(self, number: int) -> Thread:
        return self.threads[number % len(self.threads)]

    def _new(self, thread: Thread, count: int) -> list[NewMessage]:
        made = [new_user_message(next(self._names)) for _ in range(count)]
        thread.own += made
        return made

    async def start(self, number: int, _: int) -> None:
        session = await self.store.create_session(NewSession(system=f"prompt {number % 3}"))
        self.threads.append(
            Thread(
                session.id,
                [],
                [ModelSession(session.id, [])],
                [session.id],
            )
        )
        await self.append(len(self.threads) - 1, number % 4)

    async def append(self, number: int, amount: int) -> None:
        """Append through any id of the thread; repeat some messages."""
        thread = self.pick(number)
        again = thread.own[amount % 5 :][:2]
        new = self._new(thread, 1 + amount % 4)
        stored = await self.store.append(
            thread.every_id[amount % len(thread.every_id)], [*again, *new]
        )
        thread.tip.shows += texts_of(stored[len(again) :])
        thread.ended = False
        await self._learn(thread)

    async def compact(self, number: int, amount: int) -> None:
        """Compact, with messages that arrive meanwhile."""
        thread = self.pick(number)
        tip = thread.tip
        seen = await self.store.list_messages(tip.id)
        head_count = min(1 + amount % 2, len(seen))
        tail_start = max(len(seen) - amount % 4, head_count)
        head = seen[:head_count]
        middle = seen[head_count:tail_start]
        tail = seen[tail_start:]
        late = self._new(thread, amount % 3)
        await self.store.append(tip.id, late)
        words = f"summary {amount}"
        head_ids = [message.id for message in head]
        tail_ids = [message.id for message in tail]
        made = await self.store.continue_session(
            tip.id,
            [*head_ids, summary_message(words), *tail_ids],
            seen_count=len(seen),
            compaction=NewCompaction(covered=[message.id for message in middle]),
        )
        assert made.is_committed
        arrived = [str(message.body["content"]) for message in late]
        tip.shows += arrived
        shows = [*texts_of(head), words, *texts_of(tail), *arrived]
        session = ModelSession(
            made.session.id,
            shows,
            len(shows),
            set(texts_of(middle)),
        )
        thread.chain.append(session)
        thread.every_id.append(made.session.id)
        thread.ended = thread.ended and not arrived
        await self._learn(thread)

    async def undo(self, number: int, amount: int) -> None:
        thread = self.pick(number)
        asked = thread.every_id[amount % len(thread.every_id)]
        if len(thread.chain) == 1:
            with pytest.raises(NothingToUndoError):
                await self.store.undo(asked)
            return
        await self.store.undo(asked)
        last = thread.chain.pop()
        thread.tip.shows += last.shows[last.given :]

    async def branch(self, number: int, amount: int) -> None:
        thread = self.pick(number)
        history = thread.history
        if not history:
            return
        at = history[amount % len(history)]
        share_count = history.index(at) + 1
        shared = history[:share_count]
        later = set(history[share_count:])
        any_id = thread.every_id[amount % len(thread.every_id)]
        branch = await self.store.branch(any_id, self.ids[at])
        shows = list(shared)
        for session in reversed(thread.chain):
            if at in session.shows and not session.covers & later:
                shows = session.shows[: session.shows.index(at) + 1]
                break
        if shows == shared:
            first = ModelSession(branch.id, shows)
            inherited = []
        else:
            first = ModelSession(branch.id, shows, len(shows))
            inherited = shared
        self.threads.append(Thread(branch.id, inherited, [first], [branch.id]))

    async def end(self, number: int, _: int) -> None:
        thread = self.pick(number)
        ended = await self.store.end_session(thread.id, "user")
        assert ended.id == thread.tip.id
        thread.ended = True

    async def delete(self, number: int, _: int) -> None:
        thread = self.pick(number)
        assert await self.store.delete_thread(thread.every_id[-1]) == len(thread.every_id)
        self.threads.remove(thread)
        with pytest.raises(UnknownIdError):
            await self.store.load_session(thread.id)
        if not self.threads:
            await self.start(number, 0)

    async def _learn(self, thread: Thread) -> None:
        self.ids |= {
            str(message.body["content"]): message.id
            for message in await self.store.load_history(thread.id)
        }

    async def compare(self, store: Store) -> None:
        """Check that a store has these threads, starting from each of their ids."""
        for thread in self.threads:
            for key in thread.every_id:
                assert await store.get_compression_tip(key) == thread.tip.id
            assert await read_context(store, thread.id) == ", ".join(thread.tip.shows)
            assert await read_history(store, thread.every_id[-1]) == ", ".join(thread.history)
            session = await store.load_session(thread.tip.id)
            assert session.is_live is not thread.ended


OPERATIONS = (
    "start",
    "append",
    "append",
    "append",
    "compact",
    "compact",
    "undo",
    "branch",
    "end",
    "delete",
)
