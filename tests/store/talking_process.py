"""A process that talks in threads, compacts and undoes, until it is killed; and its log."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

from everthread.errors import NothingToUndoError
from everthread.factory import open_store
from everthread.store.records import NewCompaction, NewMessage, new_id
from everthread.store.store import Store


@dataclass
class Log:
    """Requests of a child (`ask`) and confirmations (`ack`)."""

    path: Path
    file: int = field(init=False)

    def __post_init__(self) -> None:
        self.file = os.open(self.path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def __call__(self, *words: str) -> None:
        os.write(self.file, (" ".join(words) + "\n").encode())


@dataclass(frozen=True)
class Speaker:
    """A client that writes to threads: until `amount` messages are stored, or for ever."""

    log: Log
    name: str
    threads: list[str]
    amount: int | None
    undo: float
    """The share of steps that undo a compaction."""

    async def speak(self, store: Store) -> None:
        chance = random.Random(self.name)  # noqa: S311 - chance, not secrecy
        sent_count = 0
        while self.amount is None or sent_count < self.amount:
            thread = chance.choice(self.threads)
            dice = chance.random()
            if dice < self.undo:
                with contextlib.suppress(NothingToUndoError):
                    await store.undo(thread)
            elif dice < self.undo + 0.12:
                await _compact(store, thread, self.name)
            else:
                texts = [
                    f"{self.name}.{sent_count + number}" for number in range(chance.randint(1, 3))
                ]
                sent_count += len(texts)
                self.log("ask", thread, *texts)
                await store.append(thread, [event_message(text) for text in texts])
                self.log("ack", thread, *texts)


def talk(
    *,
    url: str,
    log: str,
    seed: int,
    threads: list[str],
    amount: int | None = None,
    undo: float = 0.03,
) -> None:
    """Let two speakers of one process write."""
    file = Log(Path(log))

    async def all_speak() -> None:
        store = open_store(url)
        await asyncio.gather(
            *(
                Speaker(
                    file,
                    f"{seed}.{number}",
                    threads,
                    amount,
                    undo,
                ).speak(store)
                for number in range(2)
            )
        )
        await store.close()

    asyncio.run(all_speak())


def event_message(text: str) -> NewMessage:
    """Return a message whose event is its text, so that it is stored once."""
    return NewMessage({"role": "user", "content": text}, event=text)


async def _compact(store: Store, thread: str, name: str) -> None:
    tip = await store.get_compression_tip(thread)
    messages = await store.list_messages(tip)
    if len(messages) < 8:
        return
    summary = NewMessage(
        {"role": "user", "content": f"summary by {name}"},
        kind="summary",
        event=f"s{new_id()}",
    )
    await store.continue_session(
        tip,
        [messages[0].id, summary, *(message.id for message in messages[-3:])],
        seen_count=len(messages),
        compaction=NewCompaction(covered=[message.id for message in messages[1:-3]]),
    )
